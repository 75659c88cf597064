"""`phobos-cli stop`: end a server that runs on this machine."""

from __future__ import annotations

import sys
from typing import Any

import click
from click.shell_completion import CompletionItem

from phobos import log
from phobos.commands.parsing.flags import flag, with_flags
from phobos.commands.parsing.help import PhobosCommand
from phobos.commands.parsing.options import GENERAL_FLAGS
from phobos.host import servers

STOP_FLAGS = [
    flag("--wait", group="Stopping", type=click.FloatRange(min=0), default=60.0, metavar="S",
         help="Longest time to wait for its end, seconds."),
]  # fmt: skip


def complete_server(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Process ids of running servers."""
    running = servers.list_servers()
    return [CompletionItem(str(s.pid), help=s.address) for s in running if str(s.pid).startswith(incomplete)]


@click.command("stop", cls=PhobosCommand)
@click.argument("server", metavar="SERVER", required=False, shell_complete=complete_server)
@with_flags(STOP_FLAGS, GENERAL_FLAGS)
def command(server: str | None, wait: float, **general: Any) -> int:
    """Stop a server: running requests get its grace period.

    SERVER is a process id, an address, a port or a model's name as `ps` shows them; it may be left out where only one
    server runs.
    """
    log.configure(general["log"])
    found = servers.find_server(server)
    servers.stop_server(found, wait)
    print(f"stopped {found.address} (process {found.pid})", file=sys.stderr)
    return 0
