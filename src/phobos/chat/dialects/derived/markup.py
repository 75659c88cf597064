"""Reads a call form off rendered turns: what stands round names and arguments.

A `Call` is one call's place in a turn; `Frame` is what stands round all calls alike. The three kinds of forms are tried
in turn: an object that holds name and arguments, a name and an object, arguments in tags or as Python's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from phobos.chat.dialects import lark
from phobos.chat.dialects.derived.probes import (
    MARKER,
    ODD,
    Turn,
    common_begin,
    common_end,
    cut_at_end_of_turn,
)
from phobos.chat.dialects.dialect import CallForm
from phobos.chat.dialects.forms.json_calls import JsonCalls
from phobos.chat.dialects.forms.named_calls import NamedCalls
from phobos.chat.dialects.forms.python_calls import PythonCalls
from phobos.chat.dialects.forms.tagged_calls import TaggedCalls
from phobos.chat.messages import ToolCall


@dataclass(frozen=True)
class Samples:
    """Rendered turns: one call with arguments of all types, two calls (None: the template writes one), one call
    without arguments and one with an odd text; `before` and `behind` are what stands round an answer's text."""

    one: Turn
    two: Turn | None
    empty: Turn | None
    odd: Turn | None
    before: str
    behind: str


@dataclass(frozen=True)
class Frame:
    """`begin` and `end` stand round the calls of a turn, `call_begin` and `call_end` round each, `between` between."""

    begin: str
    call_begin: str
    call_end: str
    between: str
    end: str


def _frame(samples: Samples, pieces: Sequence[str]) -> Frame:
    """The frame of calls whose turn has these pieces round them: before the first, between two, behind the last."""
    first, last = pieces[0], pieces[-1]
    head = first[common_begin(first, samples.before) :]
    tail = cut_at_end_of_turn(last, samples.behind)
    if len(pieces) == 2:
        return Frame("", head.lstrip(), tail.rstrip(), "", "")
    middle = pieces[1]
    n_end = common_begin(middle, tail)
    call_end = middle[:n_end].rstrip()
    n_begin = min(common_end(middle, head), len(middle) - len(call_end))
    call_begin = middle[len(middle) - n_begin :].lstrip()
    between = middle[len(call_end) : len(middle) - len(call_begin)]
    begin, end = head[: len(head) - len(call_begin)].lstrip(), tail[len(call_end) :].rstrip()
    return Frame(begin, call_begin, call_end, between, end)


def find_opener(text: str) -> str | None:
    """What marks the beginning of a call: the first marker, or what looks like one."""
    text = text.strip()
    found = MARKER.match(text)
    if found:
        return found.group()
    bare = text.removesuffix("[").rstrip()
    if "```" in bare:
        return bare
    return text if re.search(r"[<\[|｜{]", text) and len(text) > 1 else None


# An object with the name and the arguments


@dataclass(frozen=True)
class _Object:
    start: int
    end: int
    members: dict[str, Any]


def _find_object(text: str, call: ToolCall, begin: int) -> _Object | None:
    """The object that is a call."""
    decoder = json.JSONDecoder()
    at = text.find("{", begin)
    while at >= 0:
        try:
            members, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            members, end = None, at
        if isinstance(members, dict) and call.name in members.values():
            return _Object(at, end, members)
        at = text.find("{", at + 1)
    return None


def read_object_form(samples: Samples) -> CallForm | None:
    """Calls as JSON objects."""
    turn = samples.two or samples.one
    found: list[_Object] = []
    for call in turn.calls:
        each = _find_object(turn.text, call, found[-1].end if found else 0)
        if each is None:
            return None
        found.append(each)
    names = list(found[0].members)
    call = turn.calls[0]
    wanted = json.loads(call.arguments)
    name_key = next(key for key, value in found[0].members.items() if value == call.name)
    arguments_key = next((key for key, value in found[0].members.items() if _is_arguments(value, wanted)), None)
    if arguments_key is None or abs(names.index(name_key) - names.index(arguments_key)) != 1:
        return None
    place = min(names.index(name_key), names.index(arguments_key))
    others = {key: value for key, value in found[0].members.items() if value != call.id}
    head = "".join(f"{_member(key, others[key])}, " for key in names[:place] if key in others)
    tail = " ".join(_tail_member(key, found[0].members[key], call) for key in names[place + 2 :])
    ends = [0, *(each.end for each in found)]
    starts = [*(each.start for each in found), len(turn.text)]
    pieces = [turn.text[a:b] for a, b in zip(ends, starts, strict=True)]
    bare = JsonCalls((), "", "", name_key=name_key, arguments_key=arguments_key, head=head, tail=tail)
    return _place_objects(samples, pieces, bare)


def _place_objects(samples: Samples, pieces: Sequence[str], bare: JsonCalls) -> CallForm | None:
    """The form of such objects with what stands round them."""
    several = len(pieces) > 2
    separator = pieces[1] if several and not pieces[1].strip(" \n\t,;") else None
    between = bare.between
    if separator is not None:
        begin = pieces[0][common_begin(pieces[0], samples.before) :].lstrip()
        end = cut_at_end_of_turn(pieces[-1], samples.behind).rstrip()
    else:
        frame = _frame(samples, pieces)
        if frame.begin.strip() or frame.end.strip():
            return None
        begin, end, between = frame.call_begin, frame.call_end, frame.between
    placed = replace(bare, begin=begin, end=end, separator=separator, between=between, several=several)
    if begin.strip():
        opener = find_opener(begin)
        return None if opener is None else replace(placed, openers=(opener,))
    name = json.dumps(bare.name_key)
    several = separator is not None and bool(separator.strip())
    openers = (f"{{{name}:", f"{{ {name}:")
    return replace(placed, openers=openers, begin="", several=several, opens_at_name=True, at_start=True)


def _is_arguments(value: Any, wanted: Any) -> bool:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return False
    return bool(value == wanted)


def _member(key: str, value: Any) -> str:
    return f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"


def _tail_member(key: str, value: Any, call: ToolCall) -> str:
    """A member behind the arguments, as a Lark body; an id is any of that length."""
    if value == call.id:
        return (
            f"{lark.literal(f', {json.dumps(key)}: {chr(34)}')} /[a-zA-Z0-9]{{{len(call.id)}}}/ {lark.literal(chr(34))}"
        )
    return lark.literal(f", {_member(key, value)}")


# A name, then an object

_LAYOUTS: tuple[dict[str, Any], ...] = (
    {},
    {"separators": (",", ":")},
    {"indent": 4},
    {"indent": 2},
    {"ensure_ascii": False},
)


def _find_text(text: str, call: ToolCall, begin: int) -> tuple[int, int] | None:
    """Where the arguments' JSON text stands."""
    values = json.loads(call.arguments)
    for layout in _LAYOUTS:
        written = json.dumps(values, **layout)
        if (at := text.find(written, begin)) >= 0:
            return at, at + len(written)
    return None


def read_named_form(samples: Samples) -> CallForm | None:
    """Calls as a name and a JSON object."""
    turn = samples.two or samples.one
    pieces, heads, done = [], [], 0
    for call in turn.calls:
        found = _find_text(turn.text, call, done)
        if found is None:
            return None
        name = turn.text.rfind(call.name, done, found[0])
        if name < 0:
            return None
        pieces.append(turn.text[done:name])
        heads.append(turn.text[name + len(call.name) : found[0]])
        done = found[1]
    pieces.append(turn.text[done:])
    frame = _frame(samples, pieces)
    name_end, id_begin, name_tail, name_form = heads[0], "", "", r"\s*(\S+)\s*"
    if turn.calls[0].id in name_end:
        id_begin, _, name_end = name_end.partition(turn.calls[0].id)
    elif (counted := re.match(r":\d+", name_end)) is not None:
        name_end, name_tail, name_form = name_end[counted.end() :], '":" /[0-9]{1,3}/', r"\s*(.+?)(?::\d+)?\s*"
    elif len({*heads}) > 1:
        return None
    in_section = bool(frame.begin.strip())
    opener = find_opener(frame.begin) if in_section else frame.call_begin
    if not opener or find_opener(opener) is None or not name_end or not frame.call_begin:
        return None
    return NamedCalls(
        openers=(opener,),
        call_begin=frame.call_begin,
        name_end=name_end,
        call_end=frame.call_end,
        begin=frame.begin if in_section else "",
        end=frame.end if in_section else "",
        separator=frame.between,
        name_form=name_form,
        name_tail=name_tail,
        id_begin=id_begin,
    )


# Arguments one by one


@dataclass(frozen=True)
class _Arguments:
    """What stands round one call's arguments: between the name and the first key, each key and its value, each value
    and the next key; `end` is where the last value ends."""

    to_key: str
    to_value: tuple[str, ...]
    to_next: tuple[str, ...]
    end: int
    texts: tuple[str, ...]


def _find_arguments(text: str, call: ToolCall, begin: int) -> _Arguments | None:
    values = json.loads(call.arguments)
    at = text.find(call.name, begin)
    if at < 0:
        return None
    at += len(call.name)
    gaps: list[str] = []
    texts: list[str] = []
    for key, value in values.items():
        place = text.find(key, at)
        if place < 0:
            return None
        gaps.append(text[at:place])
        at = place + len(key)
        found = min(((i, written) for written in _spell(value) if (i := text.find(written, at)) >= 0), default=None)
        if found is None:
            return None
        gaps.append(text[at : found[0]])
        texts.append(found[1])
        at = found[0] + len(found[1])
    return _Arguments(gaps[0], tuple(gaps[1::2]), tuple(gaps[2::2]), at, tuple(texts))


def _spell(value: Any) -> list[str]:
    """How a template may write a value: text as it is, others as JSON or as Python."""
    if isinstance(value, str):
        return [value]
    return list(dict.fromkeys((json.dumps(value), json.dumps(value, separators=(",", ":")), str(value))))


def read_argument_form(samples: Samples) -> CallForm | None:
    """Calls whose arguments stand one by one."""
    turn = samples.two or samples.one
    found: list[_Arguments] = []
    pieces, done = [], 0
    for call in turn.calls:
        each = _find_arguments(turn.text, call, done)
        if each is None:
            return None
        pieces.append(turn.text[done : turn.text.find(call.name, done)])
        found.append(each)
        done = each.end
    pieces.append(turn.text[done:])
    first = found[0]
    if first.to_key == "(" and first.to_value[1] == "=":
        return _read_python(samples, pieces)
    return _read_tags(samples, first, pieces) if len(set(first.to_next)) == 1 else None


def _read_python(samples: Samples, pieces: Sequence[str]) -> CallForm | None:
    head = pieces[0][common_begin(pieces[0], samples.before) :].strip()
    tail = cut_at_end_of_turn(pieces[-1], samples.behind).strip()
    begin, end = head.removesuffix("["), tail.removeprefix("'").removeprefix(")").removeprefix("]")
    if begin == head or not begin:
        return None
    return PythonCalls((begin,), begin, end)


def _read_tags(samples: Samples, first: _Arguments, pieces: Sequence[str]) -> CallForm | None:
    n = min(common_end(first.to_key, first.to_next[0]), len(first.to_key))
    key_begin = first.to_key[len(first.to_key) - n :].lstrip()
    name_end = first.to_key[: len(first.to_key) - len(key_begin)]
    value_end = first.to_next[0][: len(first.to_next[0]) - len(key_begin)]
    key_end, marks_strings = first.to_value[0], False
    if len(set(first.to_value)) != 1:
        marks = [gap.replace("false", "true") for gap in first.to_value]
        marks_strings = len(set(marks)) == 1 and marks[0] == '" string="true">'
        if not marks_strings:
            return None
        key_end = '">'
    if not key_begin or not value_end.strip() or not key_end.strip():
        return None
    # Behind the last value there is its end, then what ends the call.
    if not all(piece.startswith(value_end) for piece in pieces[1:]):
        value_end = value_end.rstrip()
    frame = _frame(samples, [pieces[0], *(piece.removeprefix(value_end) for piece in pieces[1:])])
    pad = "\n" if key_end.endswith("\n") and value_end.startswith("\n") else ""
    if pad:
        key_end, value_end = key_end.removesuffix(pad), value_end.removeprefix(pad)
    whole = frame.begin if frame.begin.strip() else frame.call_begin
    opener = find_opener(whole)
    if opener is None or not frame.call_end.strip() or not frame.call_begin.strip():
        return None
    in_section = bool(frame.begin.strip())
    return TaggedCalls(
        openers=(opener,),
        call_begin=frame.call_begin,
        name_end=name_end,
        key_begin=key_begin,
        key_end=key_end,
        value_end=value_end,
        call_end=frame.call_end,
        begin=frame.begin if in_section else "",
        end=frame.end if in_section else "",
        between="" if in_section else frame.between,
        gap=frame.between if in_section else "",
        pad=pad,
        has_cdata=samples.odd is not None and ("<![CDATA[" in samples.odd.text or ODD not in samples.odd.text),
        marks_strings=marks_strings,
        python_words="True" in first.texts,
    )
