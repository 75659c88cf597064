"""Write `docs/cli.md` from the commands and their flags; with `--check`, fail where the file is not what they say."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import click

from phobos import cli
from phobos.commands.parsing.flags import Flag
from phobos.commands.parsing.help import flag_names, grouped_flags, usage_lines

PATH = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
HEAD = """# The command line

Written by `make docs` from the commands themselves; do not edit it by hand.

A first word that is no command is a prompt. Every flag is also an environment variable and, without its dashes, a line
of the TOML file named by `--config` (`ctx-size = 4096`); the command line wins over the environment, that over the
file. Switches are off unless the table says otherwise. Standard output carries the answer and nothing else. Exit codes:
0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""


def render() -> str:
    """The whole page."""
    ctx = click.Context(cli.root)
    parts = [HEAD]
    for name in (cli.ASK, *cli.COMMANDS):
        command = cli.root.get_command(ctx, name)
        assert command is not None
        parts.append(render_command(command, cli.PROGRAM if name == cli.ASK else f"{cli.PROGRAM} {name}"))
    return "".join(parts)


def render_command(command: click.Command, path: str) -> str:
    """One command: what it does, how it is called, its flags in a table a group."""
    lines = ["", f"## {path}", "", inspect.cleandoc(command.help or ""), "", "```"]
    lines += [*usage_lines(command, path), "```", ""]
    for group, flags in grouped_flags(command).items():
        if group == "General" and path != cli.PROGRAM:
            names = ", ".join(f"`{flag.opts[0]}`" for flag in flags)
            lines += [f"And the general flags {names}.", ""]
            continue
        lines += [f"### {group}", "", "| flag | without it | variable | |", "|---|---|---|---|"]
        lines += [render_flag(flag) for flag in flags]
        lines.append("")
    return "\n".join(lines)


def render_flag(flag: Flag) -> str:
    """A row of the table."""
    cells = [f"`{flag_names(flag)}`", flag.default_text() or "", f"`{flag.envvar}`", flag.help or ""]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main(args: list[str]) -> int:
    """Write or check the page."""
    text = render()
    if "--check" not in args:
        PATH.write_text(text, encoding="utf-8")
        return 0
    if PATH.exists() and PATH.read_text(encoding="utf-8") == text:
        return 0
    print("docs/cli.md is not what the commands say: run make docs", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
