"""Rows and facts on standard output: aligned on a terminal, plain and uncut in a pipe; and JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from phobos.printable import printable

PIPE_WIDTH = 1000


def print_json(value: Any) -> None:
    """One JSON object; frozen dataclasses become objects, paths text. What cannot be printed is escaped."""
    text = json.dumps(value, default=_plain, ensure_ascii=False, indent=2)
    print("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[int] = ()) -> None:
    """A table with one line a row; the columns named by index in `right` are aligned right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = sys.stdout.isatty()
    console = Console(highlight=False, width=None if terminal else PIPE_WIDTH)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", show_edge=False)
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="right" if index in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    with console.capture() as capture:
        console.print(table)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """`name  value` lines."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(Text(printable(name)), Text(printable(value)))
    with console.capture() as capture:
        console.print(table)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


def print_heading(text: str) -> None:
    """A blank line and a heading, bold on a terminal."""
    from rich.console import Console
    from rich.text import Text

    print()
    Console(highlight=False).print(Text(text, style="bold"))
    sys.stdout.flush()
