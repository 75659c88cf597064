"""MiniMax M3: arguments as nested tags, every tag behind one marker: objects hold a tag for each name, lists `item`s.

Tags carry no types: the tool's schema says what a text is, and where it is silent, the tags inside do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phobos.chat.dialects import lark
from phobos.chat.dialects.dialect import Dialect, Opening, Parse, Reasoning, Turn
from phobos.chat.dialects.forms.json_calls import read_end
from phobos.chat.dialects.forms.tagged_calls import MAX_NAME, is_text, to_json
from phobos.chat.dialects.reader import MAX_DEPTH, Add, Mismatch, Reader, quote
from phobos.chat.messages import ToolSpec

MARK = "]<]minimax[>["
_BEGIN, _END = f"{MARK}<tool_call>", f"{MARK}</tool_call>"
_CALL, _CALL_END = f'{MARK}<invoke name="', f"{MARK}</invoke>"
_NAME = re.compile(r"[^<>]+")


@dataclass(frozen=True)
class MiniMaxM3Calls:
    """Calls in one section."""

    openers: tuple[str, ...] = (_BEGIN,)
    opens_at_name: bool = False
    at_start: bool = False
    without_tools: bool = False
    writes_json: bool = False

    @property
    def markers(self) -> Iterable[str]:
        """See `CallForm`."""
        return (MARK,)

    def closers(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """See `CallForm`."""
        names = dict.fromkeys(("item", *(name for tool in tools for name in _find_names(tool.parameters))))
        ends = (*(f"{MARK}</{name}>" for name in names), f"{_CALL_END}\n", _END)
        # Where any tag must follow, its mark is written already.
        return tuple(text for end in ends for text in (end, end.removeprefix(MARK)))

    # Reading

    def read(self, opener: str, reader: Reader, turn: Turn) -> Parse[None]:
        """See `CallForm`."""
        yield from reader.loose(_CALL)
        while True:
            yield from self._read_call(reader, turn)
            turn.hold()
            start = reader.position
            yield from reader.spaces()
            if not (yield from reader.skip(_CALL)):
                reader.seek(start)
                turn.commit()
                break
        yield from read_end(_END, reader, turn)

    def _read_call(self, reader: Reader, turn: Turn) -> Parse[None]:
        name: list[str] = []
        yield from reader.until(('">',), name.append, limit=MAX_NAME)
        tool = turn.tool("".join(name).strip())
        yield from reader.spaces()
        turn.start(tool.name)
        yield from self._read_members(reader, turn.add, tool.parameters, f"{_CALL_END}", 0)

    def _read_members(self, reader: Reader, add: Add, schema: Mapping[str, Any], end: str, depth: int) -> Parse[None]:
        """Tags up to the one that ends their object, as the members of a JSON object."""
        if depth > MAX_DEPTH:
            raise Mismatch
        add("{")
        n_read = 0
        while not (yield from reader.skip(end)):
            name: list[str] = []
            yield from reader.literal(f"{MARK}<")
            yield from reader.until((">",), name.append, limit=MAX_NAME)
            key = "".join(name)
            child = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
            add(f"{', ' if n_read else ''}{json.dumps(key, ensure_ascii=False)}: ")
            yield from self._read_value(
                reader, add, child if isinstance(child, Mapping) else {}, f"{MARK}</{key}>", depth + 1
            )
            yield from reader.spaces()
            n_read += 1
        add("}")

    def _read_items(self, reader: Reader, add: Add, schema: Mapping[str, Any], end: str, depth: int) -> Parse[None]:
        """Items up to the tag that ends their list."""
        add("[")
        n_read = 0
        while not (yield from reader.skip(end)):
            yield from reader.literal(f"{MARK}<item>")
            add(", " if n_read else "")
            yield from self._read_value(reader, add, schema.get("items") or {}, f"{MARK}</item>", depth + 1)
            yield from reader.spaces()
            n_read += 1
        add("]")

    def _read_value(self, reader: Reader, add: Add, schema: Mapping[str, Any], end: str, depth: int) -> Parse[None]:
        kinds = schema.get("type")
        kinds = [kinds] if isinstance(kinds, str) else list(kinds or ())
        if not is_text(schema):
            spaces = yield from reader.spaces()  # not given back: they may be accounted for by now
            is_empty = yield from reader.comes(end)
            has_items = yield from reader.comes(f"{MARK}<item>")
            has_tags = not is_empty and (yield from reader.comes(f"{MARK}<"))
            if (has_items and "object" not in kinds) or (is_empty and kinds[:1] == ["array"]):
                yield from self._read_items(reader, add, schema, end, depth)
                return
            if has_tags or (is_empty and kinds[:1] == ["object"]):
                yield from self._read_members(reader, add, schema, end, depth)
                return
            written = [spaces]
            yield from reader.until((end,), written.append)
            add(to_json("".join(written), schema))
            return
        add('"')
        yield from reader.until((end,), lambda piece: add(quote(piece)))
        add('"')

    # Writing

    def grammar(self, tools: Sequence[ToolSpec], *, parallel: bool, opening: Opening | None) -> str:
        """See `CallForm`."""
        rules: list[str] = []
        named = []
        for i, tool in enumerate(tools):
            body = _write_members(lark.arguments_schema(tool), f"value_{i}", rules)
            named.append(f"{lark.literal(f'{_CALL}{tool.name}{chr(34)}>')} {body}")
        begin = "\n" if opening is not None else f"{_BEGIN}\n"
        call_end = lark.literal(f"{_CALL_END}\n")
        call = f"(named {call_end})+" if parallel else f"named {call_end}"
        return "\n".join(
            (f"calls: {lark.literal(begin)} {call} {lark.literal(_END)}", f"named: {lark.choice(named)}", *rules)
        )


def _find_names(schema: Mapping[str, Any]) -> Iterator[str]:
    """The names of all properties, deepest ones too."""
    for name, child in schema.get("properties", {}).items():
        yield name
        yield from _find_names(child)
    if isinstance(schema.get("items"), Mapping):
        yield from _find_names(schema["items"])


def _write_members(schema: Mapping[str, Any], rule: str, rules: list[str]) -> str:
    """The body of an object's tags, in the schema's order."""
    required = schema.get("required", [])
    parts = []
    for i, (key, child) in enumerate(schema.get("properties", {}).items()):
        if not _NAME.fullmatch(key):
            continue
        part = f"{rule}_{i}"
        rules.append(f"{part}: {lark.literal(f'{MARK}<{key}>')} {_write_value(child, part, f'{MARK}</{key}>', rules)}")
        parts.append(part if key in required else f"{part}?")
    return " ".join(parts)


def _write_value(schema: Mapping[str, Any], rule: str, end: str, rules: list[str]) -> str:
    """The body of a value and its end."""
    if "enum" in schema or "const" in schema:
        values = [value for value in schema.get("enum", [schema.get("const")]) if value is not None]
        texts = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values]
        return f"({lark.choice([lark.literal(text + end) for text in texts])})"
    kinds = schema.get("type", "string")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if "string" in kinds:
        rules += lark.text_until(f"{rule}_text", schema, end)
        return f"{rule}_text"
    kind = next((kind for kind in kinds if kind != "null"), "null")
    if kind == "object" and schema.get("properties"):
        return f"{_write_members(schema, f'{rule}_of', rules)} {lark.literal(end)}"
    if kind == "array":
        item = _write_value(schema.get("items") or {}, f"{rule}_item", f"{MARK}</item>", rules)
        rules.append(f"{rule}_item: {lark.literal(f'{MARK}<item>')} {item}")
        low, high = schema.get("minItems", 0), schema.get("maxItems")
        return f"{rule}_item{{{low},{'' if high is None else high}}} {lark.literal(end)}"
    if kind == "object":
        return lark.literal(end)
    rules.append(f"{rule}_json: {lark.json_rule({**schema, 'type': kind})}")
    return f"{rule}_json {lark.literal(end)}"


MINIMAX_M3 = Dialect(
    "minimax-m3",
    MiniMaxM3Calls(),
    lambda template: MARK in template and "invoke name=" in template,
    Reasoning("<mm:think>", "</mm:think>", after_begin="", before_end="", after_end=""),
)
