"""What a dialect is: how one family of models writes its reasoning and its tool calls.

A dialect is data and one `CallForm`, which reads calls from text that arrives in pieces and writes the grammar that
holds a model to them. Both speak of the same text: the answer with those control tokens spelled out that the dialect
uses as markers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from phobos.chat.dialects.reader import Reader
from phobos.chat.messages import ToolSpec

T = TypeVar("T")
Parse = Generator[None, None, T]


@dataclass(frozen=True)
class Reasoning:
    """The markers round a thinking block, and the white space a template writes beside them.

    `anywhere`: the opening marker counts wherever it stands; else only before the answer's first text.
    `quotable`: a closing marker in quotes is one of the thoughts.
    """

    begin: str
    end: str
    after_begin: str = "\n"
    before_end: str = "\n"
    after_end: str = "\n\n"
    anywhere: bool = False
    quotable: bool = True

    @property
    def opening(self) -> str:
        """What opens the block, as the template would write it."""
        return self.begin + self.after_begin

    @property
    def closing(self) -> str:
        """What closes the block, as the template would write it."""
        return f"{self.before_end}{self.end}{self.after_end}"


THINK = Reasoning("<think>", "</think>")  # what most models share


@dataclass(frozen=True)
class Opening:
    """A call that began: what opened it, and its name where the name alone makes it one.

    `position` is the number of characters of the answer before the call's remaining text.
    """

    position: int
    opener: str
    name: str | None = None


class Turn(Protocol):
    """Where a `CallForm` reports what it reads; the scanner's other side."""

    def tool(self, name: str) -> ToolSpec:
        """The tool of that name. Raises `Mismatch` where none was offered: the text is no call."""

    def named(self, name: str) -> None:
        """What was read can only be a call of this tool, for forms that have no marker of their own."""

    def start(self, name: str, call_id: str | None = None) -> None:
        """A call begins; what was read until now is certain."""

    def add(self, arguments: str) -> None:
        """The next piece of the JSON text of the call's arguments."""

    def hold(self) -> bool:
        """What is read from here on may turn out to be no call, or be given back. False where that was so already."""

    def commit(self) -> None:
        """What was read until now is certain: markup without text of its own."""

    def reason(self) -> None:
        """What follows is reasoning."""


class CallForm(Protocol):
    """How calls are written.

    `openers` are the texts that begin one. `opens_at_name`: these are so common in plain text that only an offered
    name makes a call of them; `at_start`: only before the answer's first text; `without_tools`: they mean something
    even where no tools are offered. `writes_json`: arguments are JSON.
    """

    @property
    def openers(self) -> tuple[str, ...]: ...
    @property
    def opens_at_name(self) -> bool: ...
    @property
    def at_start(self) -> bool: ...
    @property
    def without_tools(self) -> bool: ...
    @property
    def writes_json(self) -> bool: ...
    @property
    def markers(self) -> Iterable[str]:
        """All texts in which the markers stand that a vocabulary may have as control tokens."""

    def read(self, opener: str, reader: Reader, turn: Turn) -> Parse[None]:
        """Read one section of calls, whose opener has been read. Raises `Mismatch` at the first wrong character."""

    def closers(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """The texts that end a part of a call of these tools, a call or a section, innermost first."""

    def grammar(self, tools: Sequence[ToolSpec], *, parallel: bool, opening: Opening | None) -> str:
        """Lark rules, `calls` first: all calls of an answer, or what may follow an opening."""


@dataclass(frozen=True)
class Dialect:
    """A family of output syntax. `dropped` are markers that stand for nothing; `answer_begin` and `answer_end` stand
    round an answer's text, and `message_begin` before that where it is not the first message. `begins_in` is what the
    prompt ends with where that opens the answer's first part. `thinks_unasked`: an answer may begin with a block that
    nobody asked for. `introduction` tells of tools, `{tools}` in it, where a template knows calls and results and no
    definitions. `named_ids`: a call's id is `functions.NAME:INDEX`. `fits` tells from a template's text whether it is
    the template's."""

    name: str
    calls: CallForm
    fits: Callable[[str], bool]
    reasoning: Reasoning = THINK
    dropped: tuple[str, ...] = ()
    answer_begin: str = ""
    answer_end: str = ""
    message_begin: str = ""
    begins_in: str = ""
    thinks_unasked: bool = False
    introduction: str = ""
    named_ids: bool = False

    @property
    def marker_text(self) -> str:
        """All markers in one text; a control token spelled in it is shown to the scanner."""
        parts = (
            self.reasoning.begin,
            self.reasoning.end,
            *self.dropped,
            self.answer_begin,
            self.answer_end,
            *self.calls.openers,
        )
        return "\n".join((*parts, *self.calls.markers))
