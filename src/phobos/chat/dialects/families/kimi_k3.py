"""Kimi K3: tags between its own tokens, whose attributes count the calls and tell the arguments' types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from phobos.chat.dialects import lark
from phobos.chat.dialects.dialect import Dialect, Opening, Parse, Reasoning
from phobos.chat.dialects.forms.tagged_calls import MAX_NAME, TaggedCalls
from phobos.chat.dialects.reader import Reader
from phobos.chat.messages import ToolSpec
from phobos.chat.schemas import type_of

_OPEN, _CLOSE, _SEP = "<|open|>", "<|close|>", "<|sep|>"
_RESPONSE, _RESPONSE_END = f"{_OPEN}response{_SEP}", f"{_CLOSE}response{_SEP}"
_INDEX, _TYPE = '" index="', '" type="'
_TYPES = {"integer": "number", "number": "number", "boolean": "boolean", "object": "object", "array": "array"}


@dataclass(frozen=True)
class KimiK3Calls(TaggedCalls):
    """Calls behind a response, which may be empty."""

    def read_name(self, reader: Reader) -> Parse[str]:
        """See `TaggedCalls`."""
        name: list[str] = []
        yield from reader.until((_INDEX,), name.append, limit=MAX_NAME)
        yield from reader.until((f'"{_SEP}',), lambda index: None, limit=MAX_NAME)
        return _unescape("".join(name))

    def read_key(self, reader: Reader) -> Parse[tuple[str, bool | None]]:
        """See `TaggedCalls`."""
        key: list[str] = []
        kind: list[str] = []
        yield from reader.until((_TYPE,), key.append, limit=MAX_NAME)
        yield from reader.until((f'"{_SEP}',), kind.append, limit=MAX_NAME)
        return _unescape("".join(key)), "".join(kind) == "string"

    def write_head(self, tool: ToolSpec) -> str:
        """See `TaggedCalls`."""
        return f"{lark.literal(_escape(tool.name) + _INDEX)} /[0-9]{{1,3}}/ {lark.literal(self.name_end)}"

    def write_key(self, key: str, schema: Mapping[str, Any]) -> str:
        """See `TaggedCalls`."""
        kinds = schema.get("type", "string")
        kind = kinds if isinstance(kinds, str) else next((kind for kind in kinds if kind != "null"), "null")
        values = schema.get("enum", [schema.get("const")] if "const" in schema else [])
        if values and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            kind = "number"
        if not isinstance(kinds, str) and "string" in kinds:
            kind = "string"
        return f"{self.key_begin}{_escape(key)}{_TYPE}{_TYPES.get(kind, kind)}{self.key_end}"

    def write_arguments(self, index: int, tool: ToolSpec, rules: list[str]) -> str:
        """See `TaggedCalls`. A tag tells one type: of constants of several types those of the first are left."""
        properties = tool.parameters.get("properties", {})
        kept = {key: _of_one_type(child) for key, child in properties.items()}
        return super().write_arguments(index, replace(tool, parameters={**tool.parameters, "properties": kept}), rules)

    def grammar(self, tools: Sequence[ToolSpec], *, parallel: bool, opening: Opening | None) -> str:
        """See `CallForm`."""
        rules = super().grammar(tools, parallel=parallel, opening=opening)
        if opening is not None:
            return rules
        empty = f"{lark.literal(_RESPONSE)}? {lark.literal(_RESPONSE_END)}"
        return rules.replace("calls:", f"calls: {empty}", 1)


def _of_one_type(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    values = schema.get("enum", ())
    return {**schema, "enum": [v for v in values if type_of(v) == type_of(values[0])]} if values else schema


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;")


def _unescape(text: str) -> str:
    return text.replace("&quot;", '"').replace("&amp;", "&")


KIMI_K3 = Dialect(
    "kimi-k3",
    KimiK3Calls(
        openers=(f"{_OPEN}tools{_SEP}",),
        begin=f"{_OPEN}tools{_SEP}",
        end=f"{_CLOSE}tools{_SEP}",
        call_begin=f'{_OPEN}call tool="',
        name_end=f'"{_SEP}',
        key_begin=f'{_OPEN}argument key="',
        key_end=f'"{_SEP}',
        value_end=f"{_CLOSE}argument{_SEP}",
        call_end=f"{_CLOSE}call{_SEP}",
    ),
    lambda template: _OPEN in template and "xtml" in template,
    Reasoning(f"{_OPEN}think{_SEP}", f"{_CLOSE}think{_SEP}", after_begin="", before_end="", after_end=""),
    dropped=(_RESPONSE, _RESPONSE_END, f"{_CLOSE}message{_SEP}"),
    answer_end=_RESPONSE_END,
    message_begin=_RESPONSE,
)
