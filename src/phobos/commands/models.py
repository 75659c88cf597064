"""`phobos-cli models`: what is on this machine, what the catalog offers, and removing."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from phobos import library, log
from phobos.commands.parsing.candidates import complete_local
from phobos.commands.parsing.flags import flag, with_flags
from phobos.commands.parsing.help import PhobosCommand
from phobos.commands.parsing.options import GENERAL_FLAGS, JSON_FLAG
from phobos.errors import PhobosError, UsageError
from phobos.sizes import format_bytes, format_count

MODELS_FLAGS = [
    flag("--search", group="Models", metavar="TEXT", help="Only models whose name or description has this."),
    flag("--remove", group="Models", metavar="NAME", help="Delete a model and all its parts.",
         shell_complete=complete_local),
    flag("--yes", "-y", group="Models", is_flag=True, help="Do not ask before deleting."),
]  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One model on this machine; `problem` where its file cannot be read."""

    name: str
    path: Path
    n_bytes: int
    n_parts: int
    architecture: str | None = None
    quantization: str | None = None
    n_params: int | None = None
    n_ctx: int | None = None
    problem: str | None = None


@click.command("models", cls=PhobosCommand)
@with_flags(MODELS_FLAGS, JSON_FLAG, GENERAL_FLAGS)
def command(search: str | None, remove: str | None, yes: bool, as_json: bool, **general: Any) -> int:
    """List the models here and those the catalog offers, or remove one."""
    log.configure(general["log"])
    if remove is not None:
        return _remove(remove, yes=yes)
    from phobos.commands.tables import print_json

    local = library.list_models()
    rows = [read_row(model) for model in local if _fits(search, model.name)]
    here = {model.path for model in local}
    offered = [
        entry
        for entry in library.load_catalog().values()
        if library.catalog_path(entry) not in here and _fits(search, f"{entry.name} {entry.summary}")
    ]
    if as_json:
        print_json({"folder": library.models_dir(), "models": rows, "catalog": offered})
    else:
        _print(rows, offered, searched=search is not None)
    return 0


def _fits(search: str | None, text: str) -> bool:
    return all(word in text.lower() for word in (search or "").lower().split())


def read_row(model: library.LocalModel) -> Row:
    """The row of one file, from its header."""
    from phobos.gguf.reader import open_gguf
    from phobos.inspection import count_params
    from phobos.kernels.model_info import quantization_label

    row = Row(model.name, model.path, model.n_bytes, model.n_shards)
    try:
        with open_gguf(model.path) as gguf:
            arch = gguf.architecture
            key = f"{arch}.context_length"
            n_ctx = gguf.get_int(key) if key in gguf.metadata else None
            kinds, n_params = quantization_label(gguf), count_params(gguf)
    except PhobosError as error:
        return Row(model.name, model.path, model.n_bytes, model.n_shards, problem=str(error))
    return Row(row.name, row.path, row.n_bytes, row.n_parts, arch, kinds, n_params, n_ctx)


def _print(rows: list[Row], offered: list[library.CatalogEntry], *, searched: bool) -> None:
    from phobos.commands.tables import print_heading, print_table

    print(f"in {library.models_dir()}:")
    if rows:
        print_table(
            ("MODEL", "SIZE", "PARAMS", "ARCH", "TYPE", "CONTEXT"),
            [_cells(r) for r in rows],
            right=(1, 2, 5),
        )
    elif searched:
        print("nothing of that name")
    else:
        print(f"nothing yet: `phobos-cli pull {library.default_name()}` fetches the default model")
    if offered:
        print_heading("phobos-cli pull NAME fetches one of these:")
        print_table(
            ("NAME", "SIZE", "CONTEXT", "LICENCE", "PUBLISHER", "WHAT"),
            [
                (e.name, f"~{format_bytes(e.approximate_bytes)}", str(e.context), e.licence, e.publisher, e.summary)
                for e in offered
            ],
            right=(1, 2),
        )


def _cells(row: Row) -> tuple[str, ...]:
    if row.problem is not None:
        return (row.name, format_bytes(row.n_bytes), "", "", row.problem, "")
    return (
        row.name,
        format_bytes(row.n_bytes),
        format_count(row.n_params or 0),
        row.architecture or "",
        row.quantization or "",
        str(row.n_ctx or ""),
    )


def _remove(name: str, *, yes: bool) -> int:
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(f"--remove {name} asks for confirmation: add --yes in scripts")
        if not click.confirm(f"Delete {name} for good?", err=True):
            return 1
    removed = library.remove_model(name)
    print(f"removed {removed.path}, {format_bytes(removed.n_bytes)}", file=sys.stderr)
    return 0
