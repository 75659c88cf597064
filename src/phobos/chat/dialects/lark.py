"""Writes grammars in llguidance's variant of Lark, from schemas.

Only text is made here; `engine/constrained/grammar.py` compiles it. JSON is laid out as templates write it (`", "` and
`": "`), so that a call renders back to the tokens the model wrote and no model can fill an answer with white space.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from phobos.chat.dialects.lark_quoting import quote_grammar
from phobos.chat.messages import ToolSpec

LAYOUT: Mapping[str, Any] = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}


def literal(text: str) -> str:
    """A text as a Lark string; nothing for nothing."""
    return json.dumps(text, ensure_ascii=False) if text else ""


_ASCII = {"d": "0-9", "w": "0-9A-Za-z_"}
_PIECE = re.compile(r"\\.|\[|\]|/|\n|[^\\\[\]/\n]+|\\", re.DOTALL)


def pattern(regex: str) -> str:
    """A regular expression as a Lark terminal's body; digits and word characters are ASCII's, as in JSON schema."""
    parts = []
    in_class = False
    for piece in _PIECE.findall(regex):
        kind = piece[1:] if piece[0] == "\\" else ""
        written = piece
        if kind.lower() in _ASCII and not (in_class and kind.isupper()):
            chars = _ASCII[kind.lower()]
            written = chars if in_class else f"[{'^' if kind.isupper() else ''}{chars}]"
        elif piece in ("[", "]"):
            in_class = piece == "["
        elif piece in ("/", "\n"):
            written = r"\/" if piece == "/" else r"\n"
        parts.append(written)
    return "/" + "".join(parts) + "/"


def json_rule(schema: Mapping[str, Any]) -> str:
    """A JSON value of this schema, as a rule's body."""
    return "%json " + json.dumps({"x-guidance": LAYOUT, **schema}, ensure_ascii=False)


def arguments_schema(tool: ToolSpec) -> dict[str, Any]:
    """What of a tool's parameters binds, as plain JSON schema: grammars are written of tools that hold just that."""
    return dict(tool.parameters)


def arguments_rules(rule: str, tool: ToolSpec) -> list[str]:
    """Rules for a tool's arguments as JSON; a free-form tool's text follows its own grammar."""
    if tool.grammar is None:
        return [f"{rule}: {json_rule(arguments_schema(tool))}"]
    (name,) = tool.parameters["properties"]
    head = literal("{" + json.dumps(name) + ': "')
    return [f"{rule}: {head} {rule}_text {literal(chr(34) + '}')}", *quote_grammar(tool.grammar, f"{rule}_text")]


def choice(alternatives: Sequence[str]) -> str:
    """One of several bodies."""
    return " | ".join(alternatives)


def section(begin: str, items: str, separator: str | None, end: str, *, parallel: bool) -> str:
    """A body: items between two texts, several where they may be."""
    more = f" ({literal(separator)} {items})*" if parallel and separator is not None else ""
    return f"{literal(begin)} {items}{more} {literal(end)}"


def repeated(body: str, separator: str, *, parallel: bool) -> str:
    """A rule's body once, or several times."""
    return f"{body} ({literal(separator)} {body})*" if parallel else body


_MAX_COUNT = 10_000


def text_until(rule: str, schema: Mapping[str, Any], end: str, *, chars: str = r"(.|\n)") -> list[str]:
    """Rules for a bare string of this schema, up to and with its end, which it does not hold."""
    name = rule.upper()
    low, high = schema.get("minLength", 0), schema.get("maxLength")
    count = "*" if not low and high is None else f"{{{low},{'' if high is None else min(high, _MAX_COUNT)}}}"
    terminal = f"{pattern(chars + count)} {literal(end)}"
    if isinstance(schema.get("pattern"), str):
        terminal = f"({pattern(_anchored(schema['pattern']))} {literal(end)}) & ({terminal})"
    if low or "pattern" in schema:
        # What is not long enough, or does not fit yet, may not go on behind its end.
        terminal = f"({terminal}) & ~(/(.|\\n)*/ {literal(end)} /(.|\\n)+/)"
    return [f"{rule}[lazy]: {name}", f"{name}: {terminal}"]


def _anchored(regex: str) -> str:
    """A pattern that may match anywhere, as one that matches the whole text."""
    begins, ends = regex.startswith("^"), regex.endswith("$") and not regex.endswith(r"\$")
    inner = regex[1 if begins else 0 : len(regex) - 1 if ends else None]
    anything = r"(.|\n)*"
    return f"{'' if begins else anything}({inner}){'' if ends else anything}"
