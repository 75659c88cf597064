"""gpt-oss harmony: every message has a channel; thoughts, calls and answers are told apart by their headers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from phobos.chat.dialects import lark
from phobos.chat.dialects.dialect import Dialect, Opening, Parse, Reasoning, Turn
from phobos.chat.dialects.forms.json_calls import read_arguments
from phobos.chat.dialects.reader import Mismatch, Reader
from phobos.chat.messages import ToolSpec

MAX_HEADER = 256
_START, _CHANNEL, _MESSAGE, _END = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
_TO = re.compile(r"to=functions\.([^\s<]+)")


@dataclass(frozen=True)
class HarmonyCalls:
    """Headers and the calls among them."""

    openers: tuple[str, ...] = (_START, _CHANNEL, "to=functions.")
    opens_at_name: bool = True
    at_start: bool = False
    without_tools: bool = True
    writes_json: bool = True

    @property
    def markers(self) -> Iterable[str]:
        """See `CallForm`."""
        return (_MESSAGE, "<|constrain|>", "<|call|>", "<|return|>", _END)

    def closers(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """See `CallForm`."""
        return ()

    def read(self, opener: str, reader: Reader, turn: Turn) -> Parse[None]:
        """See `CallForm`."""
        written = [opener]
        yield from reader.until((_MESSAGE,), written.append, limit=MAX_HEADER)
        header = "".join(written)
        called = _TO.search(header)
        if called is not None:
            name = turn.tool(called.group(1)).name
            turn.named(name)
            yield from reader.spaces()
            yield from read_arguments(reader, turn, name)
        elif _CHANNEL not in header:
            raise Mismatch
        elif "analysis" in header:
            turn.reason()
        else:
            turn.commit()

    def grammar(self, tools: Sequence[ToolSpec], *, parallel: bool, opening: Opening | None) -> str:
        """See `CallForm`. An answer has one call at most."""
        named, rules = [], []
        for i, tool in enumerate(tools):
            if opening is not None and opening.name not in (None, tool.name):
                continue
            head = f" to=functions.{tool.name}{_CHANNEL}commentary json{_MESSAGE}"
            named.append(f"{lark.literal(head) if opening is None else ''} arguments_{i}")
            rules += lark.arguments_rules(f"arguments_{i}", tool)
        start = f"{lark.literal(_START + 'assistant')}? " if opening is None else ""
        return "\n".join((f"calls: {start} named", f"named: {lark.choice(named)}", *rules))


HARMONY = Dialect(
    "harmony",
    HarmonyCalls(),
    lambda template: _CHANNEL in template and "commentary" in template,
    Reasoning(f"{_CHANNEL}analysis{_MESSAGE}", _END, after_begin="", before_end="", after_end="", quotable=False),
    dropped=(_END, "<|return|>", "<|call|>"),
    answer_begin=f"{_CHANNEL}final{_MESSAGE}",
    message_begin=f"{_START}assistant",
    thinks_unasked=True,
)
