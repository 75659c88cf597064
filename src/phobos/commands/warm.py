"""`phobos-cli warm`: have the kernels of a model compiled before they are needed."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from phobos import library, log
from phobos.commands.parsing import options
from phobos.commands.parsing.flags import with_flags
from phobos.commands.parsing.help import PhobosCommand
from phobos.sizes import format_seconds


@click.command("warm", cls=PhobosCommand)
@with_flags(options.MODEL_FLAGS, options.JSON_FLAG, options.GENERAL_FLAGS)
def command(as_json: bool, **values: Any) -> int:
    """Load a model once, so that its compiled kernels are in the cache."""
    log.configure(values["log"])
    from phobos.commands.tables import print_json
    from phobos.counters import Counters
    from phobos.runtime import LoadLine, start_engine

    counters, line, began_s = Counters(), LoadLine(), time.monotonic()
    try:
        engine = start_engine(options.read_engine(values, library.resolve_model(values["gguf"])), counters, line)
    finally:
        line.clear()
    engine.close(0.0)
    took_s, load = time.monotonic() - began_s, counters.load
    if as_json:
        figures = {"compiled": load.kernels_compiled, "cached": load.kernels_cached, "seconds": round(took_s, 3)}
        print_json({"model": str(engine.model.path), **figures})
    else:
        counts = f"{load.kernels_compiled} kernels compiled, {load.kernels_cached} were in the cache"
        print(f"{counts}, {format_seconds(took_s)} total", file=sys.stderr)
    return 0
