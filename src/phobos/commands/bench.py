"""`phobos-cli bench`: measure prompt and decode speed."""

from __future__ import annotations

from typing import Any

import click

from phobos import library, log
from phobos.commands import options
from phobos.commands.completion import complete_model
from phobos.commands.flags import with_flags
from phobos.commands.help import PhobosCommand


@click.command("bench", cls=PhobosCommand)
@click.argument("file", metavar="FILE", shell_complete=complete_model)
@with_flags(options.ENGINE_FLAGS, options.JSON_FLAG, options.GENERAL_FLAGS)
def command(file: str, **values: Any) -> int:
    """Measure prompt (pp) and decode (tg) speed, as llama-bench reports them."""
    log.configure(values["log"] or "off")
    from phobos import bench

    return bench.run(library.resolve_model(file), values)
