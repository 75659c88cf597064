"""`phobos-cli inspect`: what a model file holds."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from phobos import library, log
from phobos.commands.parsing.candidates import complete_model
from phobos.commands.parsing.flags import flag, with_flags
from phobos.commands.parsing.help import PhobosCommand
from phobos.commands.parsing.options import GENERAL_FLAGS, JSON_FLAG
from phobos.printable import clean
from phobos.sizes import format_bytes, format_count

if TYPE_CHECKING:
    from phobos.inspection import Report

INSPECT_FLAGS = [
    flag("--tensors", group="What is shown", is_flag=True, help="Every tensor, instead of a count by type."),
    flag("--template", group="What is shown", is_flag=True, help="Only the chat template, as it stands in the file."),
]


@click.command("inspect", cls=PhobosCommand)
@click.argument("file", metavar="FILE", shell_complete=complete_model)
@with_flags(INSPECT_FLAGS, JSON_FLAG, GENERAL_FLAGS)
def command(file: str, tensors: bool, template: bool, as_json: bool, **general: Any) -> int:
    """Show what a model file holds, and whether Phobos runs it.

    Metadata, tensors, chat template, tokenizer and dialect, read from the header.
    """
    log.configure(general["log"])
    from phobos.commands.tables import print_json
    from phobos.inspection import inspect_file

    report = inspect_file(library.resolve_model(file))
    if as_json:
        print_json(report)
    elif template:
        text = report.template or ""
        print(clean(text) if sys.stdout.isatty() else text, end="" if (text or "\n").endswith("\n") else "\n")
    else:
        _print(report, all_tensors=tensors)
    return 0


def _print(report: Report, *, all_tensors: bool) -> None:
    from phobos.commands.tables import print_facts, print_heading, print_table

    print_facts(summary(report))
    print_heading("Metadata")
    print_facts([(f.key, f.text if f.n_items is None else f"{f.text} ({f.n_items})") for f in report.metadata])
    print_heading("Tensors")
    if all_tensors:
        rows = [(t.name, t.type, " x ".join(map(str, t.shape)), format_bytes(t.n_bytes)) for t in report.tensors]
        print_table(("NAME", "TYPE", "SHAPE", "SIZE"), rows, right=(3,))
        return
    kinds: dict[str, list[int]] = {}
    for tensor in report.tensors:
        kinds.setdefault(tensor.type, []).append(tensor.n_bytes)
    table = [(kind, str(len(sizes)), format_bytes(sum(sizes))) for kind, sizes in kinds.items()]
    print_table(("TYPE", "TENSORS", "SIZE"), table, right=(1, 2))


def summary(report: Report) -> list[tuple[str, str]]:
    """The facts at the top."""
    heads = f", {report.n_heads} heads, {report.n_kv_heads or report.n_heads} for keys" if report.n_heads else ""
    shape = f"{report.n_layers} layers, width {report.n_embd}{heads}"
    parts = f" in {report.n_shards} parts" if report.n_shards > 1 else ""
    template = f"{len(report.template)} characters, dialect {report.dialect}" if report.template else "none"
    return [
        ("file", report.path),
        ("size", f"{format_bytes(report.n_bytes)}{parts}, GGUF version {report.version}"),
        ("model", report.name),
        ("architecture", f"{report.architecture}: {shape}" if report.n_layers else report.architecture),
        ("parameters", f"{format_count(report.n_params)}, {report.quantization} ({report.types})"),
        ("context", f"{report.n_ctx} tokens" if report.n_ctx else "not said"),
        ("tokenizer", f"{report.tokenizer or 'none'}, {report.n_vocab or 0} tokens, ends with {report.eos_id}"),
        ("chat template", template),
        ("runs here", "yes" if report.problem is None else f"no: {report.problem}"),
    ]
