"""Conversations of known words, rendered, and cut where the words stand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from phobos.chat.messages import Message, ToolCall, ToolSpec

Render = Callable[[Sequence[Message], Sequence[ToolSpec]], str | None]

USER, NEXT, SAID, THOUGHT, RESULT = "Quserq", "Qnextq", "Qsaidq", "Qthoughtq", "Qresultq"
WORD, ITEM, ODD = "Qwordq", "Qitemq", 'Qoddq <b> & "c" \\d\nQendq'
MAX_TURN = 8192  # characters; what is longer is no turn of two calls
FIRST, SECOND = "qfirstq", "qsecondq"
VALUES: dict[str, Any] = {"qaq": WORD, "qbq": 7531, "qcq": True, "qdq": [ITEM, 8642], "qeq": {"qfq": 9753}}
_TYPES: dict[type, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    list: {"type": "array", "items": {"type": "string"}},
    dict: {"type": "object", "properties": {}, "additionalProperties": {"type": "integer"}},
}
_PROPERTIES = {key: {"description": "q", **_TYPES[type(value)]} for key, value in VALUES.items()}
_SCHEMA = {"type": "object", "properties": _PROPERTIES, "required": ["qaq"]}
TOOLS = (ToolSpec(FIRST, "q", _SCHEMA), ToolSpec(SECOND, "q", _SCHEMA))


def call_of(index: int, values: dict[str, Any]) -> ToolCall:
    """A call of the first or the second tool; the ids are such as the strictest templates want."""
    return ToolCall(("abcDEF123", "defGHI456")[index], (FIRST, SECOND)[index], json.dumps(values, ensure_ascii=False))


@dataclass(frozen=True)
class Turn:
    """What a template writes of an assistant's message: all between the user's text and the results', or the user's
    next."""

    text: str
    calls: tuple[ToolCall, ...] = ()


def render_calls(render: Render, *calls: ToolCall, reasoning: str | None = None) -> Turn | None:
    """A turn that only calls. None where the template refuses or leaves a call out."""
    results = [Message("tool", RESULT, tool_call_id=call.id, name=call.name) for call in calls]
    text = render([Message("user", USER), Message("assistant", None, reasoning, calls), *results], TOOLS)
    if text is None:
        return None
    cut = _between(text, USER, RESULT)
    if cut is None or len(cut) > MAX_TURN or not all(call.name in cut for call in calls):
        return None
    return Turn(cut, calls)


def render_text(render: Render) -> tuple[str, str] | None:
    """What stands before and behind the text of an answer."""
    said = [Message("user", USER), Message("assistant", SAID), Message("user", NEXT)]
    text = render(said, TOOLS)
    if text is None or SAID not in text:
        return None
    before, _, behind = text.rpartition(SAID)
    return before.rpartition(USER)[2], behind.partition(NEXT)[0]


def _between(text: str, begin: str, end: str) -> str | None:
    """What stands between the last `begin` and the `end` behind it."""
    at = text.rfind(begin)
    return None if at < 0 else text[at + len(begin) :].partition(end)[0]


# What is likely one token, and never cut: a tag, or a word between brackets.
MARKER = re.compile(r"</?[^<>\s]{1,48}>|<[|｜][^|｜<>\n]{1,48}[|｜]>|\[/?[A-Z][A-Z_]{1,24}\]")


def common_begin(first: str, second: str) -> int:
    """How far two texts are the same, without the beginning of a marker."""
    n = 0
    while n < min(len(first), len(second)) and first[n] == second[n]:
        n += 1
    for text in (first, second):
        for found in MARKER.finditer(text):
            if found.start() < n < found.end():
                n = found.start()
    return n


def common_end(first: str, second: str) -> int:
    """How much of their ends two texts share, without the end of a marker."""
    n = 0
    while n < min(len(first), len(second)) and first[-n - 1] == second[-n - 1]:
        n += 1
    for text in (first, second):
        for found in MARKER.finditer(text):
            if found.start() < len(text) - n < found.end():
                n = len(text) - found.end()
    return n


def cut_at_end_of_turn(text: str, behind: str) -> str:
    """What of a text stands before the end of the turn, of which `behind` is an example; all where it has none."""
    marks = [found.group() for found in MARKER.finditer(behind)] or list(filter(None, [behind.strip()]))
    return next((text[: text.index(mark)] for mark in marks if mark in text), text)
