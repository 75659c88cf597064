"""Splits an answer's text into content, reasoning and tool calls, live.

Text arrives in pieces of any size; the outcome does not depend on how it was cut. Every character is accounted for
once, in order, as `Content` or `Consumed`. Held back is only what may yet be a marker: the beginning of one, the white
space before it, and the head of a call until it is certain to be one. Text that turns out to be no call is content.

Where bare calls are read (`forms/bare_calls.py`) an answer that may be nothing but such calls is held back too.

Rules. A thinking block may be open from the prompt, or be opened by the model before its first text. All of a block
that never closes is reasoning. A closing marker that stands in quotes, or in an open pair of backticks on its line, is
one of the thoughts. White space beside a block and between calls belongs to the markers, as templates write it anew.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from phobos.chat.dialects.dialect import Dialect, Opening, Parse, Reasoning
from phobos.chat.dialects.forms.bare_calls import FENCE, STARTS, read_bare_calls
from phobos.chat.dialects.reader import MAX_HELD, Mismatch, Reader, n_suspect
from phobos.chat.events import Event, ReasoningDelta, ToolCallDelta, ToolCallStart
from phobos.chat.messages import ToolSpec


@dataclass(frozen=True)
class Content:
    """Characters that belong to the answer, as they were generated."""

    text: str


@dataclass(frozen=True)
class Consumed:
    """`n_chars` generated characters that became `events`, or a marker that became none."""

    n_chars: int
    events: tuple[Event, ...] = ()


Piece = Content | Consumed


class Scanner:
    """See the module. Owned by one sequence.

    `is_certain`: what opened is held to be a call, so one that is cut off is no text. `shown_ids` are the control
    tokens whose spelling stands in the text it is given; calls get none of `used_ids`. `begun`: the prompt ended as the
    dialect's `begins_in` says. `max_bare_calls` is how many bare calls an answer may be; 0: they are text.
    `in_reasoning`: the next character is reasoning. `opening`: the call at hand, from the moment it opened.
    `answer_from`: the position at which the answer begins, behind the thinking block if there was one.
    """

    def __init__(
        self,
        dialect: Dialect,
        tools: Sequence[ToolSpec] = (),
        *,
        in_reasoning: bool = False,
        begun: bool = True,
        used_ids: Collection[str] = (),
        shown_ids: frozenset[int] = frozenset(),
        max_bare_calls: int = 0,
    ) -> None:
        self.shown_ids = shown_ids
        self.in_reasoning = in_reasoning
        self.opening: Opening | None = None
        self.answer_from = 0
        self.is_certain = False
        self._calls: list[tuple[str, list[str]]] = []
        self._added = 0  # pieces of the last call's arguments that became events
        self._dialect = dialect
        self._tools = {tool.name: tool for tool in tools}
        self._used_ids = set(used_ids)
        self._reader = Reader()
        self._pieces: list[Piece] = []
        self._done = 0  # the position up to which all is accounted for
        self._events: list[Event] = []
        self._call: Parse[None] | None = None
        self._opener = ""
        self._held: int | None = None  # a call began here and is not certain
        self._max_bare = max_bare_calls if tools else 0  # 0 from where the answer can no longer be bare calls
        self._is_bare = False  # the call being read is one
        self._fresh = True  # no text of the answer yet
        self._skip_spaces = False  # white space here belongs to the marker before it
        self._after_call = False
        self._block_fresh = True  # no text of the thinking block yet
        self._n_ticks = 0  # backticks on the present line of the thoughts
        self._tail = ""  # the last two characters of that line
        calls = dialect.calls
        self._openers = calls.openers if tools or calls.without_tools else ()
        self._reasoning = dialect.reasoning
        markers = (*(() if calls.at_start else self._openers), *dialect.dropped)
        if self._reasoning.anywhere:
            markers += (self._reasoning.begin,)
        self._markers = markers
        longest_first = sorted(markers, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if markers else None
        self._in_head = bool(dialect.begins_in) and begun and not in_reasoning  # its opener is the prompt's end
        if self._in_head:
            self._held, self._opener = 0, dialect.begins_in
            self._call = calls.read(self._opener, self._reader, self)

    # Fed by the sequence

    def push(self, text: str) -> list[Piece]:
        """The next characters; what has become certain through them."""
        self._reader.feed(text, self._done)
        return self._run()

    def flush(self) -> list[Piece]:
        """The text has ended; what is left of it."""
        self._reader.ended = True
        return self._run()

    def text_from(self, position: int) -> str:
        """The text since a position that lies in the last push, or in what was held back before it."""
        return self._reader.text_from(position)

    def _run(self) -> list[Piece]:
        """Go on until more text is needed."""
        while True:
            if self._call is not None:
                going = self._read_call()
            elif self.in_reasoning:
                going = self._read_reasoning(self._reasoning)
            else:
                going = self._read_content()
            if not going:
                break
        pieces, self._pieces = self._pieces, []
        return pieces

    # Called by the form that reads a call

    def tool(self, name: str) -> ToolSpec:
        """See `Turn`."""
        found = self._tools.get(name)
        if found is None:
            raise Mismatch
        return found

    def named(self, name: str) -> None:
        """See `Turn`."""
        self.opening = Opening(self._reader.position, self._opener, self.tool(name).name)

    def start(self, name: str, call_id: str | None = None) -> None:
        """See `Turn`."""
        self.tool(name)
        while not call_id or call_id in self._used_ids:
            call_id = f"call_{secrets.token_hex(12)}"
        self._used_ids.add(call_id)
        self.commit()
        self._note_arguments()
        self._events.append(ToolCallStart(len(self._calls), call_id, name))
        self._calls.append((name, []))
        self._added = 0

    def add(self, arguments: str) -> None:
        """See `Turn`."""
        if arguments:
            self._calls[-1][1].append(arguments)

    @property
    def calls(self) -> list[tuple[str, str]]:
        """The name and the arguments of each call, as far as they were read."""
        return [(name, "".join(pieces)) for name, pieces in self._calls]

    def hold(self) -> bool:
        """See `Turn`."""
        if self._held is not None:
            return False
        self._account()
        self._held = self._reader.position
        return True

    def commit(self) -> None:
        """See `Turn`."""
        if self._holds_too_much():
            raise Mismatch
        self._held = None

    def _holds_too_much(self) -> bool:
        """Whether more is held back than a call's head takes. Bare calls are held whole."""
        return self._held is not None and not self._is_bare and self._reader.position - self._held > MAX_HELD

    def reason(self) -> None:
        """See `Turn`."""
        self.commit()
        self._enter_reasoning()

    # The three states

    def _read_call(self) -> bool:
        """Run the form's parser as far as the text goes."""
        if self._call is None:
            raise AssertionError("no call is being read")
        try:
            next(self._call)
        except StopIteration:
            self._end_call()
        except Mismatch:
            self._break_call()
        else:
            if not self._holds_too_much():
                if self._held is None:
                    self._account()
                return False
            self._break_call()
        return True

    def _end_call(self) -> None:
        """The form has read its section."""
        self._held, self._in_head, self._is_bare, self._max_bare = None, False, False, 0
        self._account()
        self._call = self.opening = None
        self._fresh = False
        self._after_call = True

    def _break_call(self) -> None:
        """What was held is no call; what was certain stays one, cut off where it went wrong."""
        self._call = self.opening = None
        if self._held is None:
            if self._reader.ended:
                self._reader.advance(len(self._reader.rest))
            self._account()
            self._fresh, self._after_call = False, True
            return
        if self.is_certain and self._reader.ended:
            self._held = None
            self._drop(len(self._reader.rest))
            return
        self._reader.seek(self._held)
        self._held = None
        self._account()
        if self._in_head or self._is_bare:
            self._in_head = self._is_bare = False
            self._max_bare = 0
            return
        # The same opener must not be found again: give away its first character with the white space before it.
        spaces = len(self._reader.rest) - len(self._reader.rest.lstrip())
        self._emit_content(spaces + 1)

    def _read_content(self) -> bool:
        """Pass text on, up to the next marker."""
        reader = self._reader
        rest = reader.rest
        text = rest.lstrip()
        if self._skip_spaces and len(text) < len(rest):
            return self._drop(len(rest) - len(text))
        if not text and (self._fresh or self._after_call):
            return self._drop(len(rest)) if reader.ended and self._after_call else reader.ended and self._pass_on(rest)
        if self._fresh:
            begun = self._read_start(text)
            if begun is not None:
                return begun
        n_suspected = 0 if reader.ended else n_suspect(rest, self._markers)
        found = self._pattern.search(rest) if self._pattern else None
        if found is not None and self._is_final(rest, found, n_suspected):
            self._emit_content(len(rest[: found.start()].rstrip()))
            self._enter(found.group())
            return True
        end = len(rest) - n_suspected
        if found is not None:
            end = min(end, found.start())
        if not reader.ended and self._openers:
            end = len(rest[:end].rstrip())
        self._emit_content(end)
        return False

    def _drop(self, n_chars: int) -> bool:
        """White space that is not the answer's."""
        self._reader.advance(n_chars)
        self._account()
        return n_chars > 0

    def _pass_on(self, rest: str) -> bool:
        """The text ended in white space before it began."""
        self._emit_content(len(rest))
        return False

    def _is_final(self, rest: str, found: re.Match[str], n_suspected: int) -> bool:
        """Whether no marker that begins earlier, or there and is longer, can still come of this text."""
        if self._reader.ended:
            return True
        tail = rest[found.start() :]
        longer = any(m != tail and m.startswith(tail) for m in self._markers)
        return not longer and found.start() <= len(rest) - n_suspected

    def _read_start(self, text: str) -> bool | None:
        """Before the answer's first text: a thinking block or a call that counts only here. None: neither."""
        starts = (*(self._openers if self._dialect.calls.at_start else ()), self._reasoning.begin)
        for marker in sorted(starts, key=len, reverse=True):
            if text.startswith(marker):
                self._enter(marker)
                return True
            if not self._reader.ended and marker.startswith(text):
                return False
        if self._max_bare and text.startswith(STARTS):
            self._held, self._is_bare = self._reader.position, True
            # Nothing holds a bare call to its schema, as a strict tool's must be.
            names = [tool.name for tool in self._tools.values() if not tool.strict]
            self._call = read_bare_calls(self._reader, self, names, self._max_bare)
            return True
        return False if self._max_bare and not self._reader.ended and text in (FENCE[:1], FENCE[:2]) else None

    def _enter(self, marker: str) -> None:
        """Act on a marker, which stands next but for white space."""
        self._skip_spaces = self._after_call = False
        spaces = len(self._reader.rest) - len(self._reader.rest.lstrip())
        if marker == self._reasoning.begin:
            self._reader.advance(spaces + len(marker))
            self._account()
            self._enter_reasoning()
        elif marker in self._dialect.dropped:
            self._emit_content(0 if self._fresh else spaces)
            self._reader.advance(len(marker) if not self._fresh else spaces + len(marker))
            self._account()
        else:
            self._account()
            self._held = self._reader.position
            self._reader.advance(spaces + len(marker))
            self._opener = marker
            calls = self._dialect.calls
            if not calls.opens_at_name:
                self.opening = Opening(self._reader.position, marker)
            self._call = calls.read(marker, self._reader, self)

    def _enter_reasoning(self) -> None:
        self.in_reasoning = True
        self._block_fresh = True
        self._n_ticks, self._tail = 0, ""

    def _read_reasoning(self, reasoning: Reasoning) -> bool:
        """Pass thoughts on, up to the marker that closes the block."""
        reader = self._reader
        if self._block_fresh:
            rest = reader.rest
            text = rest.lstrip()
            begins = text.startswith(reasoning.begin)
            if not reader.ended and not begins and reasoning.begin.startswith(text):
                return False
            reader.advance(len(rest) - len(text) + (len(reasoning.begin) if begins else 0))
            self._account()
            self._block_fresh = begins
            if begins:
                return True
        rest = reader.rest
        place = self._find_end(rest, reasoning)
        if place is not None:
            self._emit_reasoning(len(rest[:place].rstrip()))
            reader.advance(place - len(rest[:place].rstrip()) + len(reasoning.end))
            self._account()
            self.in_reasoning = False
            self._fresh = self._skip_spaces = True
            self.answer_from = reader.position
            return True
        if reader.ended:
            self._emit_reasoning(len(rest))
            return False
        n_held = n_suspect(rest, (reasoning.end,))
        self._emit_reasoning(len(rest[: len(rest) - n_held].rstrip()))
        return False

    def _find_end(self, rest: str, reasoning: Reasoning) -> int | None:
        """The first closing marker that is not quoted."""
        place = rest.find(reasoning.end)
        while place >= 0:
            if not reasoning.quotable or not _is_quoted(*self._follow_line(rest[:place])):
                return place
            place = rest.find(reasoning.end, place + len(reasoning.end))
        return None

    # Accounts

    def _account(self) -> None:
        """All read up to here is accounted for by the events it made."""
        n_chars = self._reader.position - self._done
        self._note_arguments()
        events, self._events = tuple(self._events), []
        if n_chars or events:
            self._pieces.append(Consumed(n_chars, events))
        self._done = self._reader.position

    def _note_arguments(self) -> None:
        """The pieces of arguments since the last event, as one."""
        pieces = self._calls[-1][1] if self._calls else []
        if len(pieces) > self._added:
            self._events.append(ToolCallDelta(len(self._calls) - 1, "".join(pieces[self._added :])))
            self._added = len(pieces)

    def _follow_line(self, text: str) -> tuple[int, str]:
        """`_n_ticks` and `_tail` behind this text."""
        _, new_line, line = text.rpartition("\n")
        n_ticks = line.count("`") + (0 if new_line else self._n_ticks)
        return n_ticks, line[-2:] if new_line else (self._tail + line[-2:])[-2:]

    def _emit_content(self, n_chars: int) -> None:
        text = self._reader.advance(n_chars)
        if text:
            self._pieces.append(Content(text))
            self._done = self._reader.position
            self._fresh &= not text.strip()
            if not self._fresh:
                self._max_bare = 0
            self._skip_spaces = self._after_call = False

    def _emit_reasoning(self, n_chars: int) -> None:
        if n_chars:
            text = self._reader.advance(n_chars)
            self._n_ticks, self._tail = self._follow_line(text)
            self._events.append(ReasoningDelta(text))
            self._account()


_OPENING_QUOTES = frozenset("\"'“‘«`")
_BEFORE_QUOTES = frozenset("([{<:=,;-")


def _is_quoted(n_ticks: int, tail: str) -> bool:
    """Whether what comes next is quoted, by the backticks before it on its line, and the last two characters of that:
    an opening quotation mark, or an odd number of backticks."""
    if n_ticks % 2:
        return True
    if not tail or tail[-1] not in _OPENING_QUOTES:
        return False
    earlier = tail[:-1]
    return not earlier or earlier.isspace() or earlier in _BEFORE_QUOTES
