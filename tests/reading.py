"""Feeds a dialect's scanner and folds what comes out, for tests of dialects and grammars."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from phobos.chat.dialects.dialect import Dialect
from phobos.chat.dialects.scanner import Consumed, Content, Scanner
from phobos.chat.events import ReasoningDelta, ToolCallDelta, ToolCallStart
from phobos.chat.messages import ToolSpec


@dataclass(frozen=True)
class Answer:
    """What a client has in the end: `calls` are names and argument texts; `order` says what came after what."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    order: tuple[str, ...] = ()


def fold(pieces: Iterable[Content | Consumed]) -> Answer:
    """The answer that a client makes of the pieces; an error of the protocol is an `AssertionError`."""
    content, reasoning = "", ""
    calls: list[list[str]] = []
    order: list[str] = []

    def note(kind: str) -> None:
        if not order or order[-1] != kind:
            order.append(kind)

    for piece in pieces:
        if isinstance(piece, Content):
            assert piece.text
            content += piece.text
            if piece.text.strip():
                note("content")
            continue
        for event in piece.events:
            if isinstance(event, ReasoningDelta):
                reasoning += event.text
                note("reasoning")
            elif isinstance(event, ToolCallStart):
                assert event.index == len(calls) and event.id
                calls.append([event.name, ""])
                note(f"call {event.index}")
            else:
                assert isinstance(event, ToolCallDelta) and event.index == len(calls) - 1
                calls[-1][1] += event.arguments
    return Answer(content, reasoning, tuple((name, text) for name, text in calls), tuple(order))


def count(pieces: Iterable[Content | Consumed]) -> int:
    """The characters accounted for."""
    return sum(len(piece.text) if isinstance(piece, Content) else piece.n_chars for piece in pieces)


def read(
    dialect: Dialect,
    tools: Sequence[ToolSpec],
    cuts: Iterable[str],
    *,
    in_reasoning: bool = False,
    max_bare_calls: int = 0,
) -> Answer:
    """The answer that comes of text in these cuts; every character must be accounted for."""
    scanner = Scanner(dialect, tools, in_reasoning=in_reasoning, max_bare_calls=max_bare_calls)
    pieces: list[Content | Consumed] = []
    n_chars = 0
    for cut in cuts:
        n_chars += len(cut)
        pieces += scanner.push(cut)
        assert count(pieces) <= n_chars
    pieces += scanner.flush()
    assert count(pieces) == n_chars
    return fold(pieces)


def cut_every(text: str, n_chars: int) -> list[str]:
    """The text in cuts of so many characters."""
    return [text[i : i + n_chars] for i in range(0, len(text), n_chars)]
