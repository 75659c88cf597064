"""The help page of a command: usage, flags by group, what holds without each; in colour on a terminal.

Rich lays it out and honours `NO_COLOR`, `COLUMNS` and what the terminal can do. `docs/cli.md` is made from the same
flags by `scripts/write_cli_docs.py`.
"""

from __future__ import annotations

import inspect
import shutil
import sys
from collections.abc import Sequence
from io import StringIO
from typing import TYPE_CHECKING

import click

from phobos.commands.parsing.flags import Flag

if TYPE_CHECKING:
    from rich.table import Table

MAX_WIDTH = 110
EPILOGUE = (
    "In brackets: what holds without the flag; switches are off unless they say otherwise. Every flag is also a "
    "variable (--ctx-size is PHOBOS_CTX_SIZE) and a line of the --config file (ctx-size = 4096). "
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted."
)


class PhobosCommand(click.Command):
    """A command whose help is laid out here."""

    def get_help(self, ctx: click.Context) -> str:
        """The whole help page."""
        return render_help(self, ctx)


def flag_names(option: click.Option) -> str:
    """`-c, --ctx-size N`: short names first, the negative form last."""
    names = sorted(option.opts, key=lambda name: (name.startswith("--"), option.opts.index(name)))
    text = ", ".join([*names, *option.secondary_opts])
    return text if option.is_flag else f"{text} {metavar(option)}"


def metavar(option: click.Option) -> str:
    """What stands for the value: the flag's own word, or its choices."""
    if option.metavar:
        return option.metavar
    if isinstance(option.type, click.Choice):
        return "|".join(str(choice) for choice in option.type.choices)
    return option.type.name.upper()


def grouped_flags(command: click.Command) -> dict[str, list[Flag]]:
    """The flags of a command by group, in the order they were declared; "General" comes last."""
    groups: dict[str, list[Flag]] = {}
    for option in command.params:
        if isinstance(option, Flag) and not option.hidden:
            groups.setdefault(option.group, []).append(option)
    general = groups.pop("General", None)
    return {**groups, **({"General": general} if general else {})}


def usage_lines(command: click.Command, path: str) -> list[str]:
    """How a command is called; the root says its ways itself."""
    ways: Sequence[str] | None = getattr(command, "usage_ways", None)
    if ways is not None:
        return [f"{path} {way}" for way in ways]
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    words = [(p.metavar or str(p.name).upper()) for p in arguments]
    shown = [word if p.required else f"[{word}]" for word, p in zip(words, arguments, strict=True)]
    return [" ".join([path, *shown, "[FLAGS]"])]


def render_help(
    command: click.Command, ctx: click.Context, *, commands: Sequence[tuple[str, str]] = (), path: str | None = None
) -> str:
    """The help page as text, with escape codes only where standard output is a terminal that wants them."""
    from rich.console import Console
    from rich.text import Text

    width = min(shutil.get_terminal_size((MAX_WIDTH, 24)).columns, MAX_WIDTH)
    console = Console(file=StringIO(), width=width, force_terminal=sys.stdout.isatty(), highlight=False)
    console.print(Text(inspect.cleandoc(command.help or "") + "\n"))
    console.print(Text("Usage", style="bold"))
    for line in usage_lines(command, path or ctx.command_path):
        console.print(Text("  " + line, style="green"))
    if commands:
        console.print(Text("\nCommands", style="bold"))
        console.print(_rows([(name, text, "") for name, text in commands]))
    for group, options in grouped_flags(command).items():
        console.print(Text(f"\n{group}", style="bold"))
        console.print(_rows([(flag_names(o), o.help or "", o.default_text() or "") for o in options]))
    console.print(Text("\n" + EPILOGUE, style="dim"))
    output = console.file
    assert isinstance(output, StringIO)
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines())


def _rows(rows: Sequence[tuple[str, str, str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2), expand=False)
    table.add_column(style="cyan", min_width=18, max_width=36)
    table.add_column()
    for names, text, default in rows:
        body = Text(text)
        if default:
            body.append(f" [{default}]", style="dim")
        table.add_row(Text("  " + names.replace(", --", ",\n  --") if len(names) > 34 else "  " + names), body)
    return table
