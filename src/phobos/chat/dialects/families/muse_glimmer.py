"""Muse Glimmer: every message says whom it is for: itself (thoughts), the user, or a tool, whose call is in tags. The
prompt ends with the head of the first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from phobos.chat.dialects import lark
from phobos.chat.dialects.dialect import Dialect, Opening, Parse, Reasoning, Turn
from phobos.chat.dialects.forms.named_calls import MAX_NAME
from phobos.chat.dialects.forms.tagged_calls import TaggedCalls
from phobos.chat.dialects.reader import Reader
from phobos.chat.messages import ToolSpec

_START, _MESSAGE, _END = "<|start|>assistant", "<|message|>", "<|eom|>"
_TO = re.compile(r"\s*to=(\S+)\s*")
_SECTION = "<atem:function_calls>"
TAGS = TaggedCalls(
    openers=(_SECTION,),
    begin=f"{_SECTION}\n",
    end="</atem:function_calls>",
    call_begin='<atem:invoke name="',
    name_end='">\n',
    key_begin='<atem:parameter name="',
    key_end='">',
    value_end="</atem:parameter>\n",
    call_end="</atem:invoke>\n",
)


@dataclass(frozen=True)
class MuseGlimmerCalls:
    """Messages by whom they are for."""

    openers: tuple[str, ...] = (_START, "to=")
    opens_at_name: bool = True
    at_start: bool = False
    without_tools: bool = True
    writes_json: bool = False

    @property
    def markers(self) -> Iterable[str]:
        """See `CallForm`."""
        return (_MESSAGE, _END)

    def closers(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """See `CallForm`."""
        return TAGS.closers(tools)

    def read(self, opener: str, reader: Reader, turn: Turn) -> Parse[None]:
        """See `CallForm`."""
        if reader.position == 0:
            yield from reader.skip(_START)
        written = [opener.removeprefix(_START)]
        yield from reader.until((_MESSAGE,), written.append, limit=MAX_NAME)
        found = _TO.fullmatch("".join(written))
        recipient = found.group(1) if found else "user"
        if recipient == "self":
            turn.reason()
        elif recipient == "user":
            turn.commit()
        else:
            turn.named(turn.tool(recipient).name)
            yield from reader.spaces()
            yield from reader.literal(_SECTION)
            yield from TAGS.read(_SECTION, reader, turn)

    def grammar(self, tools: Sequence[ToolSpec], *, parallel: bool, opening: Opening | None) -> str:
        """See `CallForm`."""
        if opening is not None:
            tools = [tool for tool in tools if opening.name in (None, tool.name)]
        named: list[str] = []
        rules: list[str] = []
        begin, end = lark.literal(TAGS.begin + TAGS.call_begin), lark.literal(TAGS.end)
        for i, tool in enumerate(tools):
            body = f"{begin} {TAGS.write_head(tool)} {TAGS.write_arguments(i, tool, rules)} {end}"
            named.append(f"{lark.literal(f' to={tool.name}{_MESSAGE}') if opening is None else ''} {body}")
        calls = "named"
        if opening is None:
            calls = f"{lark.literal(_START)}? {lark.repeated('named', _END + _START, parallel=parallel)}"
        return "\n".join((f"calls: {calls}", f"named: {lark.choice(named)}", *rules))


MUSE_GLIMMER = Dialect(
    "muse-glimmer",
    MuseGlimmerCalls(),
    lambda template: _SECTION in template,
    Reasoning(f" to=self{_MESSAGE}", _END, after_begin="", before_end="", after_end="", quotable=False),
    dropped=(_END,),
    answer_begin=f" to=user{_MESSAGE}",
    message_begin=_START,
    begins_in=_START,
    thinks_unasked=True,
)
