"""Gemma 4: `call:NAME{key:value,…}`, with bare keys and strings between tokens of their own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phobos.chat.dialects import lark
from phobos.chat.dialects.dialect import Dialect, Opening, Parse, Reasoning, Turn
from phobos.chat.dialects.forms.json_calls import read_end
from phobos.chat.dialects.reader import MAX_DEPTH, Add, Mismatch, Reader, copy_value, quote
from phobos.chat.messages import ToolSpec

MAX_NAME = 160
_BEGIN, _END, _QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'


@dataclass(frozen=True)
class GemmaCalls:
    """Calls between their two tokens, any number of them."""

    openers: tuple[str, ...] = (_BEGIN,)
    opens_at_name: bool = False
    at_start: bool = False
    without_tools: bool = False
    writes_json: bool = False

    @property
    def markers(self) -> Iterable[str]:
        """See `CallForm`."""
        return (_BEGIN, _END, _QUOTE)

    def closers(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """See `CallForm`."""
        return (_QUOTE, _END)

    def read(self, opener: str, reader: Reader, turn: Turn) -> Parse[None]:
        """See `CallForm`."""
        yield from reader.spaces()
        yield from reader.literal("call:")
        name: list[str] = []
        yield from reader.until(("{",), name.append, limit=MAX_NAME)
        turn.start(turn.tool("".join(name).strip()).name)
        yield from _copy_members(reader, turn.add, 0)
        yield from read_end(_END, reader, turn)

    def grammar(self, tools: Sequence[ToolSpec], *, parallel: bool, opening: Opening | None) -> str:
        """See `CallForm`."""
        rules: list[str] = []
        named = []
        for i, tool in enumerate(tools):
            body = _write(lark.arguments_schema(tool), f"value_{i}", rules)
            named.append(f"{lark.literal(f'call:{tool.name}')} {body}")
        call = f"named {lark.literal(_END)}"
        if opening is None:
            call = lark.repeated(f"{lark.literal(_BEGIN)} {call}", "", parallel=parallel)
        return "\n".join((f"calls: {call}", f"named: {lark.choice(named)}", *rules))


def _copy_value(reader: Reader, add: Add, depth: int) -> Parse[None]:
    """Turn one value into JSON."""
    if depth > MAX_DEPTH:
        raise Mismatch
    yield from reader.spaces()
    if (yield from reader.skip(_QUOTE)):
        add('"')
        yield from reader.until((_QUOTE,), lambda piece: add(quote(piece)))
        add('"')
    elif (yield from reader.skip("{")):
        yield from _copy_members(reader, add, depth)
    elif (yield from reader.skip("[")):
        yield from _copy_items(reader, add, depth)
    else:
        yield from copy_value(reader, add)


def _copy_members(reader: Reader, add: Add, depth: int) -> Parse[None]:
    """The members of an object whose bracket has been read."""
    add("{")
    yield from reader.spaces()
    if (yield from reader.skip("}")):
        add("}")
        return
    while True:
        key: list[str] = []
        yield from reader.spaces()
        if (yield from reader.skip(_QUOTE)):
            yield from reader.until((_QUOTE,), key.append, limit=MAX_NAME)
            yield from reader.literal(":")
        else:
            yield from reader.until((":",), key.append, limit=MAX_NAME)
        add(f"{json.dumps(''.join(key).strip(), ensure_ascii=False)}: ")
        yield from _copy_value(reader, add, depth + 1)
        yield from reader.spaces()
        char = yield from reader.peek()
        if char not in (",", "}"):
            raise Mismatch
        reader.advance(1)
        add(", " if char == "," else char)
        if char == "}":
            return


def _copy_items(reader: Reader, add: Add, depth: int) -> Parse[None]:
    """The items of an array whose bracket has been read."""
    add("[")
    yield from reader.spaces()
    if (yield from reader.skip("]")):
        add("]")
        return
    while True:
        yield from _copy_value(reader, add, depth + 1)
        yield from reader.spaces()
        char = yield from reader.peek()
        if char not in (",", "]"):
            raise Mismatch
        reader.advance(1)
        add(", " if char == "," else char)
        if char == "]":
            return


def _write(schema: Mapping[str, Any], rule: str, rules: list[str]) -> str:
    """The name of a rule for a value of this schema."""
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        rules.append(f"{rule}: {lark.choice([lark.literal(_constant(value)) for value in values])}")
        return rule
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else list(kinds or ("string",))
    bodies = []
    for kind in kinds:
        part = f"{rule}_{kind}"
        if kind == "string":
            rules += lark.text_until(part, schema, _QUOTE)
            bodies.append(f"{lark.literal(_QUOTE)} {part}")
        elif kind == "object":
            bodies.append(_write_object(schema, part, rules))
        elif kind == "array":
            bodies.append(_write_array(schema, part, rules))
        else:
            bodies.append(lark.json_rule({**schema, "type": kind}))
    rules.append(f"{rule}: {lark.choice(bodies)}")
    return rule


def _write_object(schema: Mapping[str, Any], rule: str, rules: list[str]) -> str:
    """The body of an object: its properties in the order in which the template sorts them."""
    required = set(schema.get("required", []))
    properties = sorted(schema.get("properties", {}).items(), key=lambda item: item[0].lower())
    # after_i: what may follow once a member stands; first_i: once none stands yet.
    after, first = [""], [""]
    for i, (key, child) in reversed(list(enumerate(properties))):
        value = _write(child, f"{rule}_{i}", rules)
        member = f"{lark.literal(key + ':')} {value}"
        rules.append(f"{rule}_after_{i}: {lark.literal(',')} {member} {after[0]}")
        rules.append(f"{rule}_first_{i}: {member} {after[0]}")
        here_after, here_first = f"{rule}_after_{i}", f"{rule}_first_{i}"
        if key not in required:
            rules[-2] += f" | {after[0]}" if after[0] else ' | ""'
            rules[-1] += f" | {first[0]}" if first[0] else ' | ""'
        after, first = [here_after], [here_first]
    return f"{lark.literal('{')} {first[0]} {lark.literal('}')}"


def _write_array(schema: Mapping[str, Any], rule: str, rules: list[str]) -> str:
    """The body of an array within its bounds."""
    item = _write(schema.get("items") or {}, f"{rule}_item", rules)
    low, high = schema.get("minItems", 0), schema.get("maxItems")
    more = f"({lark.literal(',')} {item}){{{max(low - 1, 0)},{'' if high is None else max(high - 1, 0)}}}"
    body = f"{item} {more}"
    if high == 0:
        body = ""
    elif low == 0:
        body = f"({body})?"
    return f"{lark.literal('[')} {body} {lark.literal(']')}"


def _constant(value: Any) -> str:
    """A constant as the template writes it."""
    if isinstance(value, str):
        return f"{_QUOTE}{value}{_QUOTE}"
    if isinstance(value, list):
        return f"[{','.join(map(_constant, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_constant(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


GEMMA = Dialect(
    "gemma",
    GemmaCalls(),
    lambda template: f"{_BEGIN}call:" in template,
    Reasoning("<|channel>thought", "<channel|>", after_end="", anywhere=True, quotable=False),
)
