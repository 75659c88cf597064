"""`phobos-cli doctor`: can Phobos run here, and what would help?"""

from __future__ import annotations

from typing import Any

import click

from phobos import log
from phobos.commands.parsing.flags import with_flags
from phobos.commands.parsing.help import PhobosCommand
from phobos.commands.parsing.options import GENERAL_FLAGS, GGUF_FLAG, JSON_FLAG

MARKS = {"ok": "ok", "warn": "slow", "blocked": "BLOCKED"}


@click.command("doctor", cls=PhobosCommand)
@with_flags(GGUF_FLAG, JSON_FLAG, GENERAL_FLAGS)
def command(gguf: str | None, as_json: bool, **general: Any) -> int:
    """Check this machine and a model file.

    Exits with 0 when Phobos can run here and with 1 when it cannot.
    """
    log.configure(general["log"])
    from phobos import doctor
    from phobos.commands.tables import print_json, print_table

    checks = doctor.examine(gguf)
    runnable = doctor.is_runnable(checks)
    if as_json:
        print_json({"runnable": runnable, "checks": checks})
    else:
        print_table(("", "CHECK", "FOUND"), [(MARKS[c.status], c.name, c.text) for c in checks])
        for check in checks:
            if check.advice:
                print(f"{check.name}: {check.advice}")
    return 0 if runnable else 1
