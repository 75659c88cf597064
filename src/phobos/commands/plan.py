"""`phobos-cli plan`: what a model needs and whether it fits here."""

from __future__ import annotations

from typing import Any

import click

from phobos import library, log
from phobos.commands.parsing.candidates import complete_model
from phobos.commands.parsing.flags import with_flags
from phobos.commands.parsing.help import PhobosCommand
from phobos.commands.parsing.options import ENGINE_FLAGS, GENERAL_FLAGS, JSON_FLAG, read_engine
from phobos.sizes import format_bytes


@click.command("plan", cls=PhobosCommand)
@click.argument("file", metavar="FILE", shell_complete=complete_model)
@with_flags(ENGINE_FLAGS, JSON_FLAG, GENERAL_FLAGS)
def command(file: str, as_json: bool, **values: Any) -> int:
    """Tell what a model needs, what this machine has, and what fits; nothing is loaded."""
    log.configure(values["log"])
    from phobos.commands.tables import print_facts, print_heading, print_json, print_table
    from phobos.plan import make_plan

    plan = make_plan(read_engine(values, library.resolve_model(file)))
    if as_json:
        print_json(plan)
        return 0
    rows = [(part.name, format_bytes(part.n_bytes), part.where, part.why) for part in plan.parts]
    print_table(
        ("PART", "SIZE", "WHERE", "WHY"), [*rows, ("total", format_bytes(plan.total_bytes), "", "")], right=(1,)
    )
    print_heading("Here")
    available = format_bytes(plan.memory_available) if plan.memory_available is not None else "unknown"
    of = f" of {format_bytes(plan.memory_total)}" if plan.memory_total is not None else ""
    print_facts(
        [
            ("free memory", available + of),
            ("fits", "yes" if plan.fits else "no"),
            ("context", f"{plan.n_ctx} tokens, {plan.max_ctx} would fit, the model allows {plan.n_ctx_train}"),
            ("archive", f"up to {format_bytes(plan.archive_bytes)} more for evicted conversations"),
            ("so", plan.reason),
        ]
    )
    return 0
