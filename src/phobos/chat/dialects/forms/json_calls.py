"""Calls written as JSON objects that hold a name and arguments, one by one or in a list, most often between tags.

The keys may come in any order and others may stand beside them; arguments that come before the name wait for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from phobos.chat.dialects import lark
from phobos.chat.dialects.dialect import Opening, Parse, Turn
from phobos.chat.dialects.reader import (
    Mismatch,
    Reader,
    copy_members,
    copy_value,
    read_string,
    read_value,
)
from phobos.chat.messages import ToolCall, ToolSpec

_ARGUMENT_KEYS = frozenset(("arguments", "parameters"))
_NAME_KEYS = frozenset(("name", "tool_name"))


@dataclass(frozen=True)
class JsonCalls:
    """`begin` and `end` stand round a section of calls; `separator` stands between the calls of one section, or is
    None where each has its own, and then `between` stands between sections. `head` and `tail` are further members of
    the object, the tail as a Lark body. `several` is false where an answer is one call at most."""

    openers: tuple[str, ...]
    begin: str
    end: str
    separator: str | None = None
    between: str = "\n"
    name_key: str = "name"
    arguments_key: str = "arguments"
    head: str = ""
    tail: str = ""
    several: bool = True
    opens_at_name: bool = False
    at_start: bool = False
    without_tools: bool = False
    writes_json: bool = True

    @property
    def markers(self) -> Iterable[str]:
        """See `CallForm`."""
        return (self.begin, self.end)

    def closers(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """See `CallForm`."""
        return (self.end,) if self.end else ()

    def read(self, opener: str, reader: Reader, turn: Turn) -> Parse[None]:
        """See `CallForm`."""
        if "{" in opener:
            reader.seek(reader.position - len(opener) + opener.index("{"))
        yield from reader.spaces()
        listed = yield from reader.skip("[")
        while True:
            yield from reader.spaces()
            turn.hold()
            yield from self._read_object(reader, turn)
            if not (yield from self._goes_on(reader, turn, listed)):
                break
        yield from read_end(("] " if listed else "") + self.end.replace("]", "", int(listed)), reader, turn)

    def _goes_on(self, reader: Reader, turn: Turn, listed: bool) -> Parse[bool]:
        """Whether another call follows in this section."""
        if self.separator is None and not listed:
            return False
        turn.hold()
        start = reader.position
        yield from reader.spaces()
        yield from reader.skip(",")
        yield from reader.spaces()
        if (yield from reader.peek()) == "{":
            return True
        reader.seek(start)
        turn.commit()
        return False

    def _read_object(self, reader: Reader, turn: Turn) -> Parse[None]:
        yield from reader.literal("{")
        name: str | None = None
        early: str | None = None
        started = False
        while True:
            yield from reader.spaces()
            key = yield from read_string(reader)
            yield from reader.spaces()
            yield from reader.literal(":")
            yield from reader.spaces()
            if name is None and (key == self.name_key or key in _NAME_KEYS):
                name = turn.tool((yield from read_string(reader))).name
                if self.opens_at_name:
                    turn.named(name)
            elif not started and (key == self.arguments_key or key in _ARGUMENT_KEYS):
                if name is None:
                    early = yield from read_value(reader)
                else:
                    yield from read_arguments(reader, turn, name)
                    started = True
            else:
                yield from copy_value(reader, _ignore)
            yield from reader.spaces()
            char = yield from reader.take()
            if char == "}":
                break
            if char != ",":
                raise Mismatch
        if not started:
            if name is None:
                raise Mismatch
            arguments = as_object(early)
            turn.start(name)
            turn.add(arguments)

    def grammar(self, tools: Sequence[ToolSpec], *, parallel: bool, opening: Opening | None) -> str:
        """See `CallForm`."""
        if opening is not None and opening.name is not None:
            tools = [tool for tool in tools if tool.name == opening.name]
            rules = [f"calls: {lark.literal(', ')} {self._member(0)} {lark.literal('}' + self.end)}"]
        else:
            begin = self.begin
            if opening is not None:
                begin = begin.removeprefix(opening.opener)
            inner = lark.section(begin, "call", self.separator, self.end, parallel=parallel)
            if opening is None and self.separator is None:
                more = parallel and self.several
                rules = [f"calls: {lark.repeated('section', self.between, parallel=more)}", f"section: {inner}"]
            else:
                rules = [f"calls: {inner}"]
            calls = [
                f"{lark.literal('{' + self.head + json.dumps(self.name_key) + ': ' + json.dumps(tool.name) + ', ')} "
                f"{self._member(i)} {lark.literal('}')}"
                for i, tool in enumerate(tools)
            ]
            rules.append(f"call: {lark.choice(calls)}")
        for i, tool in enumerate(tools):
            rules += lark.arguments_rules(f"arguments_{i}", tool)
        return "\n".join(rules)

    def write(self, calls: Sequence[ToolCall]) -> str:
        """Calls as the model writes them."""
        written = []
        for call in calls:
            head = f"{{{self.head}{json.dumps(self.name_key)}: {json.dumps(call.name, ensure_ascii=False)}"
            written.append(f"{head}, {json.dumps(self.arguments_key)}: {_lay_out(call.arguments)}}}")
        if self.separator is None:
            return self.between.join(f"{self.begin}{call}{self.end}" for call in written)
        return f"{self.begin}{self.separator.join(written)}{self.end}"

    def _member(self, index: int) -> str:
        return f"{lark.literal(json.dumps(self.arguments_key) + ': ')} arguments_{index} {self.tail}"


def read_end(end: str, reader: Reader, turn: Turn) -> Parse[None]:
    """What closes a call or a section, where the model wrote it."""
    turn.hold()
    read_to = reader.position
    for word in end.split():
        yield from reader.spaces()
        if not (yield from reader.skip(word, cut=True)):
            break
        read_to = reader.position
    reader.seek(read_to)
    turn.commit()


def read_arguments(reader: Reader, turn: Turn, name: str, call_id: str | None = None) -> Parse[None]:
    """Start a call and pass on its arguments, an object; also one written as a string, or null."""
    char = yield from reader.peek()
    if char == "{":
        text = reader.advance(1) + (yield from reader.spaces())
        if (yield from reader.peek()) not in ('"', "}"):
            raise Mismatch
        turn.start(name, call_id)
        turn.add(text)
        yield from copy_members(reader, turn.add, "}", 1)
        return
    arguments = as_object((yield from read_value(reader)))
    turn.start(name, call_id)
    turn.add(arguments)


def as_object(text: str | None) -> str:
    """The JSON text of an object that a value stands for. Raises `Mismatch` where it stands for none."""
    value = json.loads(text or "null")
    if isinstance(value, str):
        text = value.strip() or "{}"
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            raise Mismatch from None
    if value is None:
        return "{}"
    if not isinstance(value, dict):
        raise Mismatch
    return text or "{}"


def _lay_out(arguments: str) -> str:
    """JSON as templates lay it out; text that is none stays a text."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        value = arguments
    return json.dumps(value, ensure_ascii=False)


def _ignore(text: str) -> None:
    """Another member of the object."""
