"""What is said of a command line that cannot be read: where a wrong value stands, the right flag for a wrong one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path

import click
from click.core import ParameterSource

CONFIG = "phobos.config"  # in a context's `meta`: the file whose values are its defaults
_IN_MEMORY = (
    "weights are packed for this processor while they are read, so a model runs from memory, never from its file"
)
_ALWAYS = "Phobos always does this: leave it out"
# Flags of other programs that have another name here or no counterpart, and what to do.
_ELSEWHERE = {
    "--mmap": _IN_MEMORY,
    "--no-mmap": f"{_IN_MEMORY}; leave it out",
    "--mlock": f"{_IN_MEMORY}; leave it out",
    "--flash-attn": _ALWAYS,
    "-fa": _ALWAYS,
    "--cont-batching": _ALWAYS,
    "-cb": _ALWAYS,
    "--jinja": _ALWAYS,
    "--slots": _ALWAYS,
    "-hf": "write --gguf hf:owner/repo:QUANT",
    "-hfr": "write --gguf hf:owner/repo:QUANT",
    "--hf-repo": "write --gguf hf:owner/repo:QUANT",
    "-V": "did you mean --version?",
    "-v": "did you mean --log debug?",
    "--verbose": "did you mean --log debug?",
    "--n-ctx": "did you mean --ctx-size?",
    "--max-tokens": "did you mean --n-predict?",
    "--interactive": "`phobos-cli chat` talks with a model",
    "-i": "`phobos-cli chat` talks with a model",
    "-cnv": "`phobos-cli chat` talks with a model",
}


def find_foreign_flag(args: Sequence[str], known: Sequence[str]) -> str | None:
    """The sentence for a flag of another program that would be read as something else here (`-hf` as `-h -f`)."""
    for arg in args:
        if arg == "--":
            return None
        if arg in _ELSEWHERE and arg not in known:
            return f"there is no flag {arg}: {_ELSEWHERE[arg]}"
    return None


def explain_flag(error: click.NoSuchOption) -> str:
    """The sentence for a flag that does not exist."""
    name = error.option_name
    if name in _ELSEWHERE:
        return f"there is no flag {name}: {_ELSEWHERE[name]}"
    options = [p for p in error.ctx.command.params if isinstance(p, click.Option)] if error.ctx is not None else []
    names = [name for option in options for name in (*option.opts, *option.secondary_opts)]
    near = difflib.get_close_matches(name, [n for n in names if n.startswith("--") == name.startswith("--")], n=1)
    return f"there is no flag {name}" + (f": did you mean {near[0]}?" if near else " (see --help)")


def explain_usage(error: click.ClickException) -> str:
    """The sentence for anything else that Click refuses."""
    if isinstance(error, click.BadParameter) and isinstance(error.param, click.Option) and error.ctx is not None:
        return f"{_place_of(error.param, error.ctx)}: {_plain(error.message)}"
    message = _plain(error.format_message())
    return f"{message[:1].lower()}{message[1:]} (see --help)"


def _place_of(option: click.Option, ctx: click.Context) -> str:
    """Where the value of an option came from."""
    flag = next((name for name in option.opts if name.startswith("--")), option.opts[0])
    source = ctx.get_parameter_source(str(option.name))
    if source is ParameterSource.ENVIRONMENT:
        return f"the environment variable {option.envvar}"
    path: Path | None = ctx.meta.get(CONFIG)
    if source is ParameterSource.DEFAULT_MAP and path is not None:
        return f"{flag[2:]} in {path}{_line_of(path, option)}"
    return flag


def _line_of(path: Path, option: click.Option) -> str:
    names = "|".join(re.escape(name[2:]).replace(r"\-", "[-_]") for name in (*option.opts, *option.secondary_opts))
    lines = path.read_text(encoding="utf-8").splitlines()
    found = next((i for i, line in enumerate(lines, start=1) if re.match(rf'\s*"?(?:{names})"?\s*=', line)), None)
    return f", line {found}" if found is not None else ""


def _plain(message: str) -> str:
    """Click's words without its types' names and ranges."""
    text = " ".join(message.rstrip(".").split())
    text = text.replace("a valid float range", "a number").replace("a valid integer range", "a whole number")
    text = text.replace("a valid float", "a number").replace("a valid integer", "a whole number")
    text = re.sub(r"is not in the range x>=(\S+)$", r"is too small: give at least \1", text)
    return re.sub(r"is not in the range (\S+?)<=x<=(\S+)$", r"is out of range: give \1 to \2", text)
