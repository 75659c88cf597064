"""`phobos-cli bench`: measure prompt and decode speed."""

from __future__ import annotations

from typing import Any

import click

from phobos import library, log
from phobos.commands.parsing import options
from phobos.commands.parsing.candidates import complete_model
from phobos.commands.parsing.flags import flag, with_flags
from phobos.commands.parsing.help import PhobosCommand

MEASURE = "Measuring"
BENCH_FLAGS = [
    flag("--n-prompt", "-p", group=MEASURE, type=click.IntRange(min=0), default=512, metavar="N",
         help="Tokens of the prompt run; 0 leaves it out."),
    flag("--n-gen", "-n", group=MEASURE, type=click.IntRange(min=0), default=128, metavar="N",
         help="Tokens of the decode run; 0 leaves it out."),
    flag("--depth", "-d", group=MEASURE, type=click.IntRange(min=0), multiple=True, default=[0], metavar="N",
         help="Tokens the context holds already (may be given several times)."),
    flag("--rows", group=MEASURE, type=click.IntRange(min=1), multiple=True, default=[1], metavar="N",
         help="Conversations that decode together (may be given several times)."),
    flag("--repetitions", "-r", group=MEASURE, type=click.IntRange(min=1), default=5, metavar="N",
         help="Timed runs of each kind; the median counts."),
    flag("--types", group=MEASURE, without="a model", metavar="LIST",
         help="Instead of a model: products of tensor types (Q4_K,Q6_K, or all) beside the machine's limits."),
    flag("--against", group=MEASURE, type=click.Choice(["llama.cpp"]), without="Phobos alone",
         help="Run the peer in turn with Phobos."),
    flag("--threads", "-t", group=MEASURE, type=click.IntRange(min=1), without="one a core", metavar="N",
         help="Compute threads."),
]  # fmt: skip


@click.command("bench", cls=PhobosCommand)
@click.argument("file", metavar="[FILE]", required=False, shell_complete=complete_model)
@with_flags(BENCH_FLAGS, options.CACHE_FLAGS, options.JSON_FLAG, options.GENERAL_FLAGS)
def command(file: str | None, **values: Any) -> int:
    """Measure prompt (pp) and decode (tg) speed, as llama-bench reports them; or products of tensor types."""
    log.configure(values["log"] or "off")
    from phobos import bench

    if (file is None) == (values["types"] is None):
        raise click.UsageError("name a model file, or tensor types with --types")
    if file is None:
        return bench.run_types(values)
    return bench.run(library.resolve_model(file), values)
