"""Calls written as tags: a name, then each argument with its key and its bare text.

The text of an argument carries no type: the tool's schema says what it is. Text that does not fit its type stays a
string. A string is passed on as it is written, anything else once it is complete.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phobos.chat.dialects import lark
from phobos.chat.dialects.dialect import Opening, Parse, Turn
from phobos.chat.dialects.forms.json_calls import read_end
from phobos.chat.dialects.reader import Add, Reader, quote
from phobos.chat.messages import ToolSpec
from phobos.chat.schemas import kinds_of

MAX_NAME = 256
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_INTEGER = re.compile(r"-?(?:0|[1-9]\d*)")
_WORDS = {"true": "true", "True": "true", "false": "false", "False": "false", "null": "null", "None": "null"}
_CDATA, _CDATA_END = "<![CDATA[", "]]>"
_ENTITIES = {"&lt;": "<", "&gt;": ">", "&amp;": "&", "&quot;": '"', "&apos;": "'"}
_ENTITY = re.compile("|".join(_ENTITIES))


@dataclass(frozen=True)
class TaggedCalls:
    """`begin` and `end` stand round a section, `call_begin`, `name_end` and `call_end` round a call, `key_begin`,
    `key_end` and `value_end` round an argument's key and text; `pad` stands on both sides of the text.

    `has_cdata`: text may be wrapped, and else has entities. `marks_strings`: the key's end says `string="true"`.
    `python_words`: the template writes truth values as Python does.
    """

    openers: tuple[str, ...]
    call_begin: str
    name_end: str
    key_begin: str
    key_end: str
    value_end: str
    call_end: str
    begin: str = ""
    end: str = ""
    between: str = "\n"
    pad: str = ""
    gap: str = ""
    has_cdata: bool = False
    marks_strings: bool = False
    python_words: bool = False
    opens_at_name: bool = False
    at_start: bool = False
    without_tools: bool = False
    writes_json: bool = False

    @property
    def markers(self) -> Iterable[str]:
        """See `CallForm`."""
        tags = (self.call_begin, self.name_end, self.key_begin, self.key_end, self.value_end, self.call_end)
        return (self.begin, self.end, *tags)

    def closers(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """See `CallForm`."""
        ends = (self.value_end, self.call_end, self.end)
        cdata = (_CDATA_END + self.value_end,) if self.has_cdata else ()
        return tuple(text for end in (*cdata, *ends) for text in dict.fromkeys((self.pad + end, end)) if text)

    # Reading

    def read(self, opener: str, reader: Reader, turn: Turn) -> Parse[None]:
        """See `CallForm`."""
        whole = self.begin + self.call_begin
        at = whole.find(opener)
        head = whole[at + len(opener) :] if at >= 0 else ""
        while True:
            yield from reader.loose(head)
            yield from self._read_call(reader, turn)
            if not self.begin or not (yield from self._goes_on(reader, turn)):
                break
            head = self.call_begin
        yield from read_end(self.end, reader, turn)

    def _goes_on(self, reader: Reader, turn: Turn) -> Parse[bool]:
        turn.hold()
        start = reader.position
        yield from reader.spaces()
        goes_on = yield from reader.comes(self.call_begin.split()[0])
        if not goes_on:
            reader.seek(start)
            turn.commit()
        return goes_on

    def _read_call(self, reader: Reader, turn: Turn) -> Parse[None]:
        key_begin, call_end = self.key_begin.strip(), self.call_end.split()[0]
        tool = turn.tool((yield from self.read_name(reader)))
        n_read = 0
        while True:
            yield from reader.spaces()
            if (yield from reader.comes(call_end)):
                break
            yield from reader.spaces()
            yield from reader.literal(key_begin)
            yield from self._read_argument(reader, turn, tool, n_read)
            n_read += 1
        if not n_read:
            turn.start(tool.name)
            turn.add("{")
        turn.add("}")
        yield from read_end(self.call_end, reader, turn)

    def read_name(self, reader: Reader) -> Parse[str]:
        """The name of a tool, and what stands between it and the arguments."""
        written: list[str] = []
        name_end, key_begin, call_end = self.name_end.strip(), self.key_begin.strip(), self.call_end.split()[0]
        ends = (name_end,) if name_end else ("\n", key_begin, call_end)
        end = yield from reader.until(ends, written.append, limit=MAX_NAME)
        if end in (key_begin, call_end):
            reader.seek(reader.position - len(end))
        return "".join(written).strip()

    def read_key(self, reader: Reader) -> Parse[tuple[str, bool | None]]:
        """The name of an argument and what stands between it and its text, which may say that it is a string or not."""
        key: list[str] = []
        tags = re.split(r"(?<=>)\s*(?=<)", self.key_end.strip())
        is_string: bool | None = None
        if self.marks_strings:
            ends = ('" string="true">', '" string="false">', '">')
            found = yield from reader.until(ends, key.append, limit=MAX_NAME)
            is_string = None if found == '">' else found == ends[0]
        else:
            yield from reader.until((tags[0],), key.append, limit=MAX_NAME)
            for tag in tags[1:]:
                yield from reader.spaces()
                yield from reader.literal(tag)
        return "".join(key).strip(), is_string

    def _read_argument(self, reader: Reader, turn: Turn, tool: ToolSpec, index: int) -> Parse[None]:
        name, is_string = yield from self.read_key(reader)
        if not index:
            turn.start(tool.name)
        schema = tool.parameters.get("properties", {}).get(name, {})
        turn.add(("{" if not index else ", ") + f"{json.dumps(name, ensure_ascii=False)}: ")
        if self.pad:
            yield from reader.skip(self.pad)
        if is_string is None:
            is_string = is_text(schema)
        if is_string:
            turn.add('"')
            yield from self._read_text(reader, lambda piece: turn.add(quote(piece)))
            turn.add('"')
        else:
            written: list[str] = []
            yield from self._read_text(reader, written.append)
            turn.add(to_json("".join(written), schema))

    def _read_text(self, reader: Reader, add: Add) -> Parse[None]:
        """The text of an argument and its end."""
        end = self.value_end.strip()
        if self.has_cdata:
            if (yield from reader.skip(_CDATA)):
                yield from reader.until((_CDATA_END + end,), add)
                return
            entities = EntityDecoder(add)
            yield from reader.until((end,), entities.push)
            entities.flush()
            return
        yield from reader.until((self.pad + end, end) if self.pad else (end,), add)

    # Writing

    def grammar(self, tools: Sequence[ToolSpec], *, parallel: bool, opening: Opening | None) -> str:
        """See `CallForm`."""
        begin, several = self.begin + self.call_begin, parallel
        in_section = True
        if opening is not None:
            in_section = begin.startswith(opening.opener)
            at = begin.find(opening.opener)
            begin = begin[at + len(opening.opener) :] if at >= 0 else ""
            several = parallel and bool(self.begin) and in_section
        rules: list[str] = []
        named = []
        for i, tool in enumerate(tools):
            named.append(f"call_{i}")
            rules.append(f"call_{i}: {self.write_head(tool)} {self.write_arguments(i, tool, rules)}")
        separator = self.gap + self.call_begin if self.begin else self.between + self.call_begin
        more = f"({lark.literal(separator)} named)*" if several else ""
        end = lark.literal(self.end) if in_section else ""
        return "\n".join((f"calls: {lark.literal(begin)} named {more} {end}", f"named: {lark.choice(named)}", *rules))

    def write_head(self, tool: ToolSpec) -> str:
        """A tool's name up to the arguments, as a Lark body."""
        return lark.literal(tool.name + self.name_end)

    def write_key(self, key: str, schema: Mapping[str, Any]) -> str:
        """What stands before an argument's text."""
        mark = f'" string="{str(is_text(schema)).lower()}">' if self.marks_strings else self.key_end
        return self.key_begin + key + mark

    def write_arguments(self, index: int, tool: ToolSpec, rules: list[str]) -> str:
        """The body of a call's arguments, in the schema's order."""
        schema = lark.arguments_schema(tool)
        required = schema.get("required", [])
        parts = []
        for j, (key, child) in enumerate(schema.get("properties", {}).items()):
            rule = f"value_{index}_{j}"
            rules += self._value(rule, child)
            body = f"{lark.literal(self.write_key(key, child) + self.pad)} {rule}"
            parts.append(body if key in required else f"({body})?")
        return " ".join((*parts, lark.literal(self.call_end)))

    def _value(self, rule: str, schema: Mapping[str, Any]) -> list[str]:
        """Rules for an argument's text and its end."""
        end = self.pad + self.value_end
        if "const" in schema or "enum" in schema:
            values = schema.get("enum", [schema.get("const")])
            texts = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values]
            return [f"{rule}: {lark.choice([lark.literal(self._wrap(text) + end) for text in texts])}"]
        kinds = schema.get("type", "string")
        if kinds == "boolean" and self.python_words:
            return [f"{rule}: {lark.choice([lark.literal(word + end) for word in ('True', 'False')])}"]
        if "string" not in ([kinds] if isinstance(kinds, str) else kinds):
            return [f"{rule}: {lark.json_rule(schema)} {lark.literal(end)}"]
        # A string ends where its closing tag does; what stands behind that is laid out apart from it.
        tag = self.value_end.strip()
        gap = lark.literal(self.value_end[self.value_end.index(tag) + len(tag) :])
        if self.has_cdata:
            wrapped = lark.text_until(f"{rule}_wrapped", schema, _CDATA_END + tag)
            bare = lark.text_until(f"{rule}_bare", schema, tag, chars=r"[^<&\n]")
            return [f"{rule}: ({lark.literal(_CDATA)} {rule}_wrapped | {rule}_bare) {gap}", *wrapped, *bare]
        return [f"{rule}: {rule}_text {gap}", *lark.text_until(f"{rule}_text", schema, tag)]

    def _wrap(self, text: str) -> str:
        if self.has_cdata and re.search(r"[<&\n]", text):
            return _CDATA + text + _CDATA_END
        return text


def is_text(schema: Mapping[str, Any]) -> bool:
    """Whether an argument can only be a string."""
    return kinds_of(schema) == ("string",)


def to_json(text: str, schema: Mapping[str, Any]) -> str:
    """The JSON text of a value of an argument's type, or a string where it does not fit."""
    bare = text.strip()
    kinds = kinds_of(schema)
    word = _WORDS.get(bare)
    if word is not None and (not kinds or ("null" if word == "null" else "boolean") in kinds):
        return word
    is_number = _INTEGER.fullmatch(bare) if kinds and "number" not in kinds else _NUMBER.fullmatch(bare)
    if is_number and (not kinds or "integer" in kinds or "number" in kinds):
        return bare
    if bare[:1] in ("{", "[") and (not kinds or ("object" if bare[0] == "{" else "array") in kinds):
        try:
            json.loads(bare)
        except (ValueError, RecursionError):
            return _from_python(bare) or json.dumps(text, ensure_ascii=False)
        return bare
    return json.dumps(text, ensure_ascii=False)


def _from_python(text: str) -> str | None:
    """A list or mapping as some templates write it, with Python's own quotes and words, as JSON."""
    try:
        return json.dumps(ast.literal_eval(text), ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


class EntityDecoder:
    """Turns XML's five entities into characters, in text that comes in pieces."""

    def __init__(self, add: Add) -> None:
        self._add = add
        self._held = ""

    def push(self, piece: str) -> None:
        """The next piece."""
        text = self._held + piece
        tail = text.rfind("&")
        self._held = ""
        if tail >= 0 and any(e != text[tail:] and e.startswith(text[tail:]) for e in _ENTITIES):
            text, self._held = text[:tail], text[tail:]
        if text:
            self._add(_ENTITY.sub(lambda found: _ENTITIES[found.group()], text))

    def flush(self) -> None:
        """There is no more."""
        if self._held:
            self._add(self._held)
