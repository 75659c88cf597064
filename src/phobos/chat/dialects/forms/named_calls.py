"""Calls written as a name between markers, then the arguments as a JSON object."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from phobos.chat.dialects import lark
from phobos.chat.dialects.dialect import Opening, Parse, Turn
from phobos.chat.dialects.forms.json_calls import read_arguments, read_end
from phobos.chat.dialects.reader import Mismatch, Reader
from phobos.chat.messages import ToolSpec

MAX_NAME = 160


@dataclass(frozen=True)
class NamedCalls:
    """`begin` and `end` stand round a section, `call_begin`, `name_end` and `call_end` round each call's name and
    arguments. `name_form` finds the name in what stands between (its first group); `name_begin` and `name_tail`, a Lark
    body, stand round it. `fence_end` stands behind the arguments. Where `begin` is empty each call is a section."""

    openers: tuple[str, ...]
    call_begin: str
    name_end: str
    call_end: str
    begin: str = ""
    end: str = ""
    separator: str = ""
    name_form: str = r"\s*(\S+)\s*"
    name_begin: str = ""
    name_tail: str = ""
    id_begin: str = ""
    fence_end: str = ""
    opens_at_name: bool = False
    at_start: bool = False
    without_tools: bool = False
    writes_json: bool = True

    @property
    def markers(self) -> Iterable[str]:
        """See `CallForm`."""
        return (self.begin, self.end, self.call_begin, self.name_end, self.call_end, self.id_begin)

    def closers(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """See `CallForm`."""
        return (self.end,) if self.end else ()

    def read(self, opener: str, reader: Reader, turn: Turn) -> Parse[None]:
        """See `CallForm`."""
        begun = opener == self.call_begin
        while True:
            if not begun:
                yield from reader.loose(self.call_begin)
            yield from self._read_call(reader, turn)
            yield from read_end(self.call_end, reader, turn)
            begun = False
            if not self.begin or not (yield from self._goes_on(reader, turn)):
                break
        yield from read_end(self.end, reader, turn)

    def _goes_on(self, reader: Reader, turn: Turn) -> Parse[bool]:
        turn.hold()
        start = reader.position
        yield from reader.spaces()
        goes_on = yield from reader.comes(self.call_begin)
        if not goes_on:
            reader.seek(start)
            turn.commit()
        return goes_on

    def _read_call(self, reader: Reader, turn: Turn) -> Parse[None]:
        written: list[str] = []
        ends = (self.name_end, self.id_begin) if self.id_begin else (self.name_end,)
        end = yield from reader.until(ends, written.append, limit=MAX_NAME)
        found = re.fullmatch(self.name_form, "".join(written))
        if found is None:
            raise Mismatch
        name = turn.tool(found.group(1)).name
        if self.opens_at_name:
            turn.named(name)
        call_id: list[str] = []
        if end == self.id_begin and end:
            yield from reader.until((self.name_end,), call_id.append, limit=MAX_NAME)
        yield from reader.spaces()
        yield from read_arguments(reader, turn, name, "".join(call_id).strip() or None)
        yield from read_end(self.fence_end, reader, turn)

    def grammar(self, tools: Sequence[ToolSpec], *, parallel: bool, opening: Opening | None) -> str:
        """See `CallForm`."""
        begin, several, in_section = self.begin + self.call_begin, parallel, True
        if opening is not None:
            in_section = bool(self.begin) and begin.startswith(opening.opener) and opening.opener != self.call_begin
            begin = begin.removeprefix(opening.opener) if in_section else ""
            several = parallel and in_section
        rules, names = [], []
        for i, tool in enumerate(tools):
            if opening is not None and opening.name not in (None, tool.name):
                continue
            name = "" if opening is not None and opening.name else lark.literal(self.name_begin + tool.name)
            names.append(f"{name} {self._after_name()} arguments_{i} {lark.literal(self.fence_end + self.call_end)}")
            rules += lark.arguments_rules(f"arguments_{i}", tool)
        more = f"({lark.literal(self.separator + self.call_begin)} named)*" if several else ""
        end = lark.literal(self.end) if in_section else ""
        return "\n".join((f"calls: {lark.literal(begin)} named {more} {end}", f"named: {lark.choice(names)}", *rules))

    def _after_name(self) -> str:
        call_id = f"{lark.literal(self.id_begin)} /[a-zA-Z0-9]{{9}}/" if self.id_begin else ""
        return f"{self.name_tail} {call_id} {lark.literal(self.name_end)}"
