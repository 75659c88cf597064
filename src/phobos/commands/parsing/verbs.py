"""What people type who come from other programs, and what it is here.

`serve MODEL`, `run MODEL`, `list`, `show`, `rm`, `help` and `version` are turned into the program's own words before
anything is parsed. A lone word that is nearly a command, or is one elsewhere, is refused with the right one: as a
prompt it would load a model only to answer a typing mistake. `--` sends any word as a prompt.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from phobos.errors import UsageError

DEFAULT_ADDRESS = "127.0.0.1:8080"
VERBS = {
    "serve": f"Serve a model: serve [MODEL], on {DEFAULT_ADDRESS} unless --listen names another address.",
    "run": "Talk with a model, or ask it once: run [MODEL [PROMPT]].",
    "list": "The same as models.",
    "show": "The same as inspect.",
    "rm": "Delete a model: rm MODEL.",
}
_SAME = {"list": ["models"], "ls": ["models"], "show": ["inspect"], "version": ["--version"]}
# Commands of other programs, and the nearest here.
_ELSEWHERE = {
    "install": "pull", "download": "pull", "get": "pull", "update": "pull", "start": "serve", "server": "serve",
    "up": "serve", "remove": "rm", "delete": "rm", "uninstall": "rm", "status": "ps", "info": "show", "kill": "stop",
    "down": "stop", "search": "models", "logs": "log", "benchmark": "bench", "quit": "stop", "exit": "stop",
}  # fmt: skip
_ALIKE = 0.75  # how alike a lone word and a command are where it is a misspelling


def translate(args: list[str]) -> list[str]:
    """The arguments in the program's own words; `run` is left to whoever can tell a prompt from a flag's value."""
    if not args:
        return args
    verb, rest = args[0], args[1:]
    if verb in _SAME:
        return [*_SAME[verb], *rest]
    if verb == "help":
        return [*translate(rest[:1]), "--help"]
    if verb == "rm":
        named = bool(rest) and not rest[0].startswith("-")
        return ["models", "--remove", *rest] if named else ["models", *rest, "--remove"]
    if verb == "serve":
        return ["--serve", *model_first(rest)]
    return args


def model_first(rest: list[str]) -> list[str]:
    """A model that is named first, as a flag."""
    return ["--gguf", *rest] if rest and not rest[0].startswith("-") else rest


def refuse_misspelt(words: Sequence[str], commands: Sequence[str]) -> None:
    """`UsageError` for a lone word that is meant as a command; also with a word behind it where it is one elsewhere."""
    word = words[0].lower()
    known = [*commands, *VERBS, "help", "version"]
    near = difflib.get_close_matches(word, known, n=1, cutoff=_ALIKE)
    meant = _ELSEWHERE.get(word) if len(words) <= 2 else None
    if meant is None and len(words) == 1 and near:
        meant = near[0]
    if meant is not None:
        raise UsageError(
            f"there is no command {words[0]}: did you mean {meant}? (`phobos-cli -- {' '.join(words)}` sends it as a "
            "prompt)"
        )
