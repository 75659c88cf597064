"""`phobos-cli ps`: the servers that run on this machine."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import click

from phobos import log
from phobos.commands.parsing.flags import with_flags
from phobos.commands.parsing.help import PhobosCommand
from phobos.commands.parsing.options import GENERAL_FLAGS, JSON_FLAG
from phobos.errors import PhobosError
from phobos.host import servers

ANSWER_S = 2.0


@click.command("ps", cls=PhobosCommand)
@with_flags(JSON_FLAG, GENERAL_FLAGS)
def command(as_json: bool, **general: Any) -> int:
    """List the servers that run on this machine: process, address, model, state."""
    log.configure(general["log"])
    from phobos.commands.tables import print_json, print_table

    running = servers.list_servers()
    states = {server.pid: ask_state(server) for server in running}
    if as_json:
        print_json({"servers": [{**vars(server), "state": states[server.pid]} for server in running]})
    elif running:
        rows = [
            (str(s.pid), s.address, Path(s.model).stem, up_text(time.time() - s.listens_since_s), states[s.pid])
            for s in running
        ]
        print_table(("PID", "ADDRESS", "MODEL", "UP", "STATE"), rows, right=(0, 3))
    else:
        print("no server is running: `phobos-cli serve` starts one")
    return 0


def ask_state(server: servers.Server) -> str:
    """What the server says of itself in a word, or why it does not."""
    from phobos.repl.http_client import HttpClient, parse_address

    key = next(iter(os.environ.get("PHOBOS_API_KEY", "").split()), None)
    try:
        client = HttpClient(parse_address(server.address), key)
        _, data = client.fetch("GET", "/health", connect_s=ANSWER_S, read_s=ANSWER_S)
    except PhobosError:
        return "no answer"
    import json

    try:
        return str(json.loads(data)["status"])
    except (ValueError, KeyError, TypeError):
        return "no answer"


def up_text(seconds: float) -> str:
    """`3 s`, `12 min`, `5 h`, `2 d`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds / size)} {unit}"
    return f"{max(0, int(seconds))} s"
