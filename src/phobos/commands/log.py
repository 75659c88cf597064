"""`phobos-cli log`: what a server in the background has written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from phobos import log
from phobos.commands.parsing.flags import flag, with_flags
from phobos.commands.parsing.help import PhobosCommand
from phobos.commands.parsing.options import GENERAL_FLAGS
from phobos.commands.stop import complete_server
from phobos.errors import FileError
from phobos.host import servers

POLL_S = 0.2
LOG_FLAGS = [flag("--follow", "-f", "follow", group="Log", is_flag=True, help="Go on with new lines until it ends.")]


@click.command("log", cls=PhobosCommand)
@click.argument("server", metavar="SERVER", required=False, shell_complete=complete_server)
@with_flags(LOG_FLAGS, GENERAL_FLAGS)
def command(server: str | None, follow: bool, **general: Any) -> int:
    """Print the log of a server that was started with --detach."""
    log.configure(general["log"])
    found = servers.find_server(server)
    path = servers.log_path(found.pid)
    if not path.exists():
        raise FileError(f"process {found.pid} writes its log to its own terminal: only --detach keeps a log file")
    for text in read(path, found if follow else None):
        print(text, end="", flush=True)
    return 0


def read(path: Path, server: servers.Server | None) -> Iterator[str]:
    """What the file holds, and what is added for as long as `server` runs."""
    with path.open(encoding="utf-8", errors="replace") as file:
        while True:
            goes_on = server is not None and server in servers.list_servers()
            yield file.read()
            if not goes_on:
                return
            time.sleep(POLL_S)
