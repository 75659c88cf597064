"""Calls written as Python calls in a list: `[name(key='text', count=3), other()]`.

Text stands in quotes, and is written as Python does, with escapes, or as templates do, just as it is. So a quote closes
it that no backslash stands before and that is followed by what may follow an argument; and a backslash that begins no
escape is one. Other values are JSON's or Python's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phobos.chat.dialects import lark
from phobos.chat.dialects.dialect import Opening, Parse, Turn
from phobos.chat.dialects.forms.json_calls import read_end
from phobos.chat.dialects.forms.named_calls import MAX_NAME
from phobos.chat.dialects.forms.tagged_calls import is_text, to_json
from phobos.chat.dialects.reader import MAX_DEPTH, MAX_HELD, Mismatch, Reader, quote
from phobos.chat.messages import ToolCall, ToolSpec

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "\n": ""}
_PLAIN = re.compile(r"[^\\'\"]+")
_BRACKETS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True)
class PythonCalls:
    """`begin` and `end` stand round the list."""

    openers: tuple[str, ...]
    begin: str
    end: str
    opens_at_name: bool = False
    at_start: bool = False
    without_tools: bool = False
    writes_json: bool = False

    @property
    def markers(self) -> Iterable[str]:
        """See `CallForm`."""
        return (self.begin, self.end)

    def closers(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """See `CallForm`."""
        return ("'", ")", "]" + self.end)

    # Reading

    def read(self, opener: str, reader: Reader, turn: Turn) -> Parse[None]:
        """See `CallForm`."""
        yield from reader.loose((self.begin + "[").removeprefix(opener))
        while True:
            yield from self._read_call(reader, turn)
            turn.hold()
            yield from reader.spaces()
            if not (yield from reader.skip(",")):
                break
            yield from reader.spaces()
        yield from read_end("] " + self.end, reader, turn)

    def _read_call(self, reader: Reader, turn: Turn) -> Parse[None]:
        written: list[str] = []
        yield from reader.until(("(",), written.append, limit=MAX_NAME)
        tool = turn.tool("".join(written).strip())
        yield from reader.spaces()
        if (yield from reader.skip(")")):
            turn.start(tool.name)
            turn.add("{}")
            return
        n_read = 0
        while True:
            key: list[str] = []
            yield from reader.until(("=",), key.append, limit=MAX_NAME)
            if not n_read:
                turn.start(tool.name)
            name = "".join(key).strip()
            turn.add(("{" if not n_read else ", ") + f"{json.dumps(name, ensure_ascii=False)}: ")
            yield from reader.spaces()
            schema = tool.parameters.get("properties", {}).get(name, {})
            end = yield from self._read_value(reader, turn, schema)
            n_read += 1
            if end == ")":
                turn.add("}")
                return
            yield from reader.spaces()

    def _read_value(self, reader: Reader, turn: Turn, schema: Mapping[str, Any]) -> Parse[str]:
        """One argument's value and what ends it, which is returned."""
        mark = yield from reader.peek()
        if mark in ("'", '"'):
            reader.advance(1)
            turn.add('"')
            yield from _read_text(reader, turn, mark)
            turn.add('"')
            return (yield from reader.take())
        written = yield from _read_literal(reader)
        turn.add(json.dumps(written, ensure_ascii=False) if is_text(schema) else to_json(written, schema))
        return (yield from reader.take())

    # Writing

    def grammar(self, tools: Sequence[ToolSpec], *, parallel: bool, opening: Opening | None) -> str:
        """See `CallForm`."""
        begin = self.begin + "["
        if opening is not None:
            begin = begin.removeprefix(opening.opener)
        rules: list[str] = []
        for i, tool in enumerate(tools):
            rules.append(
                f"call_{i}: {lark.literal(tool.name + '(')} {self._arguments(i, tool, rules)} {lark.literal(')')}"
            )
        named = f"named: {lark.choice([f'call_{i}' for i in range(len(tools))])}"
        inner = lark.section(begin, "named", ", ", "]" + self.end, parallel=parallel)
        return "\n".join((f"calls: {inner}", named, *rules))

    def write(self, calls: Sequence[ToolCall]) -> str:
        """Calls as the model writes them."""
        written = []
        for call in calls:
            values = json.loads(call.arguments or "{}")
            written.append(f"{call.name}({', '.join(f'{key}={_constant(value)}' for key, value in values.items())})")
        return f"{self.begin}[{', '.join(written)}]{self.end}"

    def _arguments(self, index: int, tool: ToolSpec, rules: list[str]) -> str:
        """The body of a call's arguments: those that are required, then others in the schema's order."""
        schema = lark.arguments_schema(tool)
        required = schema.get("required", [])
        always: list[str] = []
        others: list[str] = []
        for j, (key, child) in enumerate(schema.get("properties", {}).items()):
            rule = f"value_{index}_{j}"
            rules += _value(rule, child)
            (always if key in required else others).append(f"{lark.literal(key + '=')} {rule}")
        comma = lark.literal(", ")
        if always:
            return " ".join((f" {comma} ".join(always), *(f"({comma} {other})?" for other in others)))
        runs = [
            " ".join((other, *(f"({comma} {later})?" for later in others[i + 1 :]))) for i, other in enumerate(others)
        ]
        return f"({lark.choice(runs)})?" if runs else ""


def _value(rule: str, schema: Mapping[str, Any]) -> list[str]:
    """Rules for an argument's value."""
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return [f"{rule}: {lark.choice([lark.literal(_constant(value)) for value in values])}"]
    kinds = schema.get("type", "string")
    if kinds == "boolean":
        return [f'{rule}: "True" | "False"']
    if not is_text({"type": kinds}):
        return [f"{rule}: {lark.json_rule(schema)}"]
    single = lark.text_until(f"{rule}_single", schema, "'", chars=r"([^'\\]|\\[nrt\\'\"])")
    double = lark.text_until(f"{rule}_double", schema, '"', chars=r"([^\"\\]|\\[nrt\\'\"])")
    return [f"{rule}: {lark.literal(chr(39))} {rule}_single | {lark.literal(chr(34))} {rule}_double", *single, *double]


def _constant(value: Any) -> str:
    """A value as Python writes it, and text in single quotes."""
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"
    return repr(value) if value is None or isinstance(value, bool) else json.dumps(value, ensure_ascii=False)


def _read_text(reader: Reader, turn: Turn, mark: str) -> Parse[None]:
    """Text up to its closing quote, which is read too, passed on as the inside of a JSON string."""
    while True:
        if run := reader.match(_PLAIN):
            turn.add(quote(reader.advance(len(run))))
            continue
        char = yield from reader.peek()
        if char == mark:
            if (yield from _closes(reader, turn)):
                return
            turn.add(quote(char))
        elif char == "\\":
            if (yield from _read_escape(reader, turn, mark)):
                return
        elif char:
            turn.add(quote(reader.advance(1)))
        else:
            raise Mismatch


def _read_escape(reader: Reader, turn: Turn, mark: str) -> Parse[bool]:
    """What a backslash begins. True where it was text, and the quote behind it the closing one: the call ends there."""
    reader.advance(1)
    char = yield from reader.peek()
    if char == mark and (yield from _closes(reader, turn, is_escaped=True)):
        turn.add(quote("\\"))
        return True
    if char != mark and char in _ESCAPES and char:
        reader.advance(1)
    turn.add(quote(_ESCAPES.get(char, "\\")))
    return False


def _closes(reader: Reader, turn: Turn, *, is_escaped: bool = False) -> Parse[bool]:
    """Read a quote, and say whether it closes its text: the next argument, or the call's end and what may be behind
    that, follows. An escaped one closes where nothing else can follow."""
    turn.hold()
    reader.advance(1)
    place = reader.position
    if (yield from reader.skip(")")):
        yield from reader.spaces()
        char = yield from reader.peek()
        closes = not char or char == "]" or (char == "," and not is_escaped)
    else:
        found = not is_escaped and (yield from reader.skip(","))
        closes = found and (yield from _is_key(reader))
    reader.seek(place)
    turn.commit()
    return bool(closes)


def _is_key(reader: Reader) -> Parse[bool]:
    """Whether the name of an argument and its sign come next, or nothing at all."""
    yield from reader.spaces()
    n_read = 0
    while (char := (yield from reader.peek())) and (char.isalnum() or char in "_-."):
        reader.advance(1)
        n_read += 1
    yield from reader.spaces()
    char = yield from reader.peek()
    return not char or (n_read > 0 and char == "=")


def _read_literal(reader: Reader) -> Parse[str]:
    """The text of a value without quotes round it, up to the comma or bracket behind it, which is not read."""
    written, open_brackets, mark = "", "", ""
    while True:
        char = yield from reader.peek()
        if not char or len(written) > MAX_HELD or len(open_brackets) > MAX_DEPTH:
            raise Mismatch
        if not mark and not open_brackets and char in ",)":
            return written.strip()
        reader.advance(1)
        written += char
        if mark:
            if char == "\\":
                written += yield from reader.take()
            elif char == mark:
                mark = ""
        elif char in "'\"":
            mark = char
        elif char in _BRACKETS:
            open_brackets += _BRACKETS[char]
        elif open_brackets and char == open_brackets[-1]:
            open_brackets = open_brackets[:-1]
