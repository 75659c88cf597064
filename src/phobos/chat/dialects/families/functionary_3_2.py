"""Functionary 3.2: `>>>NAME` and a line break before each part of an answer, which is for all or a call's arguments.
The prompt ends with the first mark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from phobos.chat.dialects import lark
from phobos.chat.dialects.dialect import Dialect, Opening, Parse, Turn
from phobos.chat.dialects.forms.json_calls import read_arguments
from phobos.chat.dialects.forms.named_calls import MAX_NAME
from phobos.chat.dialects.reader import Reader
from phobos.chat.messages import ToolSpec

_MARK, _ALL = ">>>", "all"


@dataclass(frozen=True)
class Functionary32Calls:
    """Parts by whom they are for."""

    openers: tuple[str, ...] = (_MARK,)
    opens_at_name: bool = True
    at_start: bool = False
    without_tools: bool = True
    writes_json: bool = True

    @property
    def markers(self) -> Iterable[str]:
        """See `CallForm`."""
        return ()

    def closers(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """See `CallForm`."""
        return ()

    def read(self, opener: str, reader: Reader, turn: Turn) -> Parse[None]:
        """See `CallForm`."""
        if reader.position == 0:
            yield from reader.skip(_MARK)
        written: list[str] = []
        yield from reader.until(("\n",), written.append, limit=MAX_NAME)
        recipient = "".join(written).strip()
        if recipient == _ALL:
            turn.commit()
            return
        name = turn.tool(recipient).name
        turn.named(name)
        yield from reader.spaces()
        yield from read_arguments(reader, turn, name)

    def grammar(self, tools: Sequence[ToolSpec], *, parallel: bool, opening: Opening | None) -> str:
        """See `CallForm`."""
        if opening is not None:
            tools = [tool for tool in tools if opening.name in (None, tool.name)]
        named, rules = [], []
        for i, tool in enumerate(tools):
            named.append(f"{lark.literal(f'{tool.name}{chr(10)}') if opening is None else ''} arguments_{i}")
            rules += lark.arguments_rules(f"arguments_{i}", tool)
        calls = lark.repeated("named", _MARK, parallel=parallel and opening is None)
        return "\n".join((f"calls: {calls}", f"named: {lark.choice(named)}", *rules))


FUNCTIONARY_3_2 = Dialect(
    "functionary-3.2",
    Functionary32Calls(),
    lambda template: f"{_MARK}{_ALL}" in template,
    answer_begin=f"{_ALL}\n",
    message_begin=_MARK,
    begins_in=_MARK,
)
