"""One request's state, from its prompt to its last event.

Owns the tokens, the rules that end an answer, and the way from tokens to text: bytes to characters (never half a
one), then the dialect's scanner, which takes reasoning and tool calls out, then stop strings. Nothing here knows of
threads or of the backend: the engine tells which rows have run and which token was chosen, and delivers the events.

Log-probability entries take the same way as the text. Each holds the part of its token that the client receives, so
their texts join to the delivered text; what became reasoning, a call or a marker has no entry.
"""

from __future__ import annotations

import codecs
import math
from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Listing
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from phobos.chat.dialects.scanner import Consumed, Content
from phobos.chat.events import (
    Event,
    Finished,
    FinishReason,
    PromptLogprobs,
    Started,
    TextDelta,
    Timings,
    TokenLogprob,
    ToolCallStart,
    Usage,
)
from phobos.chat.messages import GenerationRequest
from phobos.counters import RequestInfo
from phobos.engine.sampler import Constraint, Logprobs, Sampler
from phobos.engine.slots.forks import Fork
from phobos.engine.stops import Cell, StopMatcher, truncate_entry
from phobos.kernels.backend import IntArray


class Decoder(Protocol):
    """Tokens to characters, held until they are whole."""

    def push(self, token_id: int) -> str: ...
    def flush(self) -> str: ...


class Vocabulary(Protocol):
    """What a sequence needs of a tokenizer."""

    n_vocab: int
    end_ids: frozenset[int]
    control_ids: frozenset[int]

    def piece(self, token_id: int) -> bytes: ...
    def stream_decoder(self, *, continues: bool = False, shown: frozenset[int] = frozenset()) -> Decoder: ...


class TextScanner(Protocol):
    """A dialect's state machine: splits an answer's text into content, reasoning and tool calls.

    Every character pushed is accounted for once, in order, by a `Content` or a `Consumed`; it may be held back until
    it is clear what it is. `flush` accounts for the rest.
    """

    @property
    def shown_ids(self) -> frozenset[int]:
        """The control tokens that are spelled out in the text it is given."""

    in_reasoning: bool  # the next token counts as reasoning

    def push(self, text: str) -> Iterable[Content | Consumed]: ...
    def flush(self) -> Iterable[Content | Consumed]: ...


@dataclass(frozen=True)
class Admission:
    """Where a sequence runs: its slot, how many tokens of its prompt that holds already, and its fork of the slot if it
    has one."""

    slot: int
    n_cached: int
    at_s: float
    fork: Fork | None = None


class Sequence:
    """See the module. Owned by the engine thread.

    `tokens` is prompt and answer; `n_rows` how many of them the slot holds. While `is_prefill`, rows up to the end of
    `prompt` are to run; afterwards the last token of `tokens` is the one row to run.
    """

    def __init__(
        self,
        request: GenerationRequest,
        tokens: Listing[int],
        vocabulary: Vocabulary,
        sampler: Sampler,
        *,
        n_ctx: int,
        max_tokens: int | None = None,
        choice: int = 0,
        scanner: TextScanner | None = None,
        constraint: Constraint | None = None,
        submitted_s: float = 0.0,
        queue_wait_s: float = 0.0,
    ) -> None:
        self.request = request
        self.tokens = list(tokens)
        self.prompt: IntArray = np.array(self.tokens, np.int32)
        self.choice = choice
        self.sampler = sampler
        self.constraint = constraint
        self.n_prompt = len(self.tokens)
        self.n_rows = 0
        self.admission: Admission | None = None
        self._began: Admission | None = None  # its first one
        room = n_ctx - self.n_prompt
        wanted = request.max_tokens if request.max_tokens is not None else max_tokens
        self.limit = room if wanted is None else min(wanted, room)
        if constraint is not None:
            constraint.allow(self.limit)
        self.last_turn = -1
        self.finished: Finished | None = None
        self.n_draft = self.n_draft_accepted = 0
        self._expected: deque[int] = deque()  # tokens that were guessed to come next
        self._vocabulary = vocabulary
        self._scanner = scanner
        fresh = bool(self.tokens) and self.tokens[-1] in vocabulary.control_ids
        shown = scanner.shown_ids if scanner is not None else frozenset()
        self._decoder = vocabulary.stream_decoder(continues=not fresh, shown=shown)
        self._matcher = StopMatcher(request.stop, ignore_leading=request.ignore_leading_stop)
        self._unfinished: list[TokenLogprob] = []  # entries of tokens whose characters are not all there
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")  # tells whether bytes wait for more
        self._unscanned: deque[Cell] = deque()
        self._prompt_logprobs: list[TokenLogprob] = []
        self._submitted_s = submitted_s
        self._queue_wait_s = queue_wait_s
        self._first_token_s: float | None = None
        self._finished_s: float | None = None
        self._n_reasoning = 0
        self._called = False

    @property
    def n_generated(self) -> int:
        """Tokens chosen so far, the one that ended the turn among them."""
        return len(self.tokens) - self.n_prompt

    @property
    def is_prefill(self) -> bool:
        """Whether rows are still to run of what was there when it got its slot."""
        return self.n_rows < self.n_prefill

    @property
    def n_prefill(self) -> int:
        """How many tokens that is: the prompt and, if it was set aside, what it had written by then."""
        return len(self.prompt)

    @property
    def wants_logprobs(self) -> bool:
        """Whether each token's log-probability is to be read."""
        return self.request.top_logprobs is not None

    @property
    def takes_best(self) -> bool:
        """Whether nothing of its logits counts but which is the greatest."""
        return self.constraint is None and not self.wants_logprobs and self.sampler.takes_best

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether the logits of the prompt's rows are wanted too; then nothing of it can be reused."""
        return self.request.echo and self.wants_logprobs and self.n_generated == 0

    @property
    def first_told(self) -> int | None:
        """The first row of the prompt whose logits are wanted; None: only the last one's are."""
        return 0 if self.is_prefill and self.wants_prompt_logprobs else None

    @property
    def n_most(self) -> int:
        """Tokens its slot may come to hold."""
        return self.n_prompt + max(0, self.limit)

    @property
    def reusable(self) -> IntArray:
        """The tokens of which all but the last may be found in a slot."""
        return self.prompt

    def admit(self, admission: Admission) -> list[Event]:
        """The sequence has its slot."""
        self.admission = admission
        self.n_rows = admission.n_cached
        if self._began is not None:
            return []
        self._began = admission
        wait_s = self._queue_wait_s + admission.at_s - self._submitted_s
        seed = self.sampler.sampling.seed
        return [Started(admission.slot, self.n_prompt, admission.n_cached, seed, wait_s)]

    def set_aside(self) -> None:
        """It has no slot any more, and goes on later as if all its tokens were its prompt."""
        self.admission = None
        self.n_rows = 0
        self.prompt = np.array(self.tokens, np.int32)
        self._prompt_logprobs.clear()
        self._expected.clear()

    @property
    def has_begun(self) -> bool:
        """Whether it has a slot, or had one and was set aside."""
        return self._began is not None

    @property
    def began_s(self) -> float:
        """When it first got a slot."""
        return self._began.at_s if self._began is not None else math.inf

    def push_prompt_logprobs(self, logprobs: Iterable[Logprobs]) -> None:
        """Log-probabilities of the prompt's next tokens, each read from the row before it."""
        if not self._prompt_logprobs:
            self._prompt_logprobs.append(self._entry(self.tokens[0], Logprobs(float("nan"))))
        for found in logprobs:
            self._prompt_logprobs.append(self._entry(self.tokens[len(self._prompt_logprobs)], found))

    def end_prompt(self, now_s: float) -> list[Event]:
        """All rows of the prompt have run; nothing to tell if they had before."""
        if self.n_generated:
            return []
        events: list[Event] = []
        if self.wants_prompt_logprobs:
            events.append(PromptLogprobs(self._with_prompt_texts()))
        if self.limit <= 0:
            events += self._finish("length", now_s)
        return events

    def expect(self, guess: Iterable[int]) -> None:
        """These tokens are guessed to come next; `n_draft_accepted` counts them for as long as they do."""
        self._expected = deque(guess)
        self.n_draft += len(self._expected)

    def push(self, token: int, logprobs: Logprobs | None = None, now_s: float = 0.0) -> list[Event]:
        """The next token was chosen; what the client is to receive because of it."""
        if self._first_token_s is None:
            self._first_token_s = now_s
        if self._expected and token == self._expected.popleft():
            self.n_draft_accepted += 1
        else:
            self._expected.clear()
        self.tokens.append(token)
        self.sampler.accept(token)
        if self.constraint is not None:
            self.constraint.accept(token)
        if self._scanner is not None and self._scanner.in_reasoning:
            self._n_reasoning += 1
        if token in self._vocabulary.end_ids:
            is_cut = self.constraint is not None and self.constraint.is_cut
            return self._finish("length" if is_cut else "stop", now_s)
        events = self._feed(self._decoder.push(token), self._entry(token, logprobs) if logprobs else None)
        if self._matcher.matched is not None:
            return events + self._finish("stop", now_s)
        if self.n_generated >= self.limit:
            return events + self._finish("length", now_s)
        return events

    def _feed(self, text: str, entry: TokenLogprob | None) -> list[Event]:
        """Take in new characters, and the entry of the token that brought them."""
        if entry is None:
            return self._scan([Cell(text)]) if text else []
        if entry.token_id not in self._vocabulary.control_ids:
            self._bytes.decode(entry.data)
        self._unfinished.append(replace(entry, text=text))
        if self._bytes.getstate()[0] or not any(e.text for e in self._unfinished):
            return []  # its last bytes may yet become a character
        return self._scan(self._take_unfinished())

    def _take_unfinished(self, text: str = "") -> list[Cell]:
        """The cells of the entries that wait; `text` is what their last bytes came to."""
        entries, self._unfinished = self._unfinished, []
        if entries and text:
            entries[-1] = replace(entries[-1], text=entries[-1].text + text)
        elif text:
            return [Cell(text)]
        return [Cell(e.text, e) for e in entries]

    def _scan(self, cells: list[Cell]) -> list[Event]:
        """Pass new characters through the dialect's scanner."""
        if self._scanner is None:
            return self._match(cells)
        self._unscanned.extend(cells)
        return self._resolve(self._scanner.push("".join(cell.text for cell in cells)))

    def _resolve(self, pieces: Iterable[Content | Consumed]) -> list[Event]:
        """Act on what the scanner made of the characters."""
        events: list[Event] = []
        for piece in pieces:
            if self._matcher.matched is not None:
                break
            if isinstance(piece, Content):
                events += self._match(self._take_unscanned(len(piece.text)))
                continue
            self._take_unscanned(piece.n_chars)
            if piece.events:
                events += _deltas(self._matcher.flush())
                events += piece.events
                self._called |= any(isinstance(event, ToolCallStart) for event in piece.events)
        return events

    def _take_unscanned(self, n_chars: int) -> list[Cell]:
        """The cells of the next `n_chars` characters, the last one cut."""
        taken: list[Cell] = []
        while n_chars > 0:
            cell = self._unscanned.popleft()
            if len(cell.text) > n_chars:
                rest = cell.text[n_chars:]
                self._unscanned.appendleft(Cell(rest, cell.entry and truncate_entry(cell.entry, rest)))
                cell = cell.cut(n_chars)
            taken.append(cell)
            n_chars -= len(cell.text)
        return taken

    def _match(self, cells: Iterable[Cell]) -> list[Event]:
        """Pass content through the stop strings."""
        released: list[Cell] = []
        for cell in cells:
            released += self._matcher.push(cell)
        return _deltas(released)

    def _finish(self, reason: FinishReason, now_s: float) -> list[Event]:
        """Deliver what is held back, unless a stop string ended the answer, and close the account."""
        events: list[Event] = []
        if self._matcher.matched is None:
            events += self._scan(self._take_unfinished(self._decoder.flush()))
            if self._scanner is not None:
                events += self._resolve(self._scanner.flush())
            events += _deltas(self._matcher.flush())
        stop_text = self._matcher.matched
        if stop_text is not None:
            reason = "stop"
        if reason == "stop" and self._called:
            reason = "tool_calls"
        self._finished_s = now_s
        self.finished = Finished(reason, self._usage(), self._timings(now_s), stop_text)
        return [*events, self.finished]

    def _usage(self) -> Usage:
        n_cached = self._began.n_cached if self._began else 0
        return Usage(self.n_prompt, n_cached, self.n_generated, self._n_reasoning)

    def _timings(self, now_s: float) -> Timings:
        started = self._began.at_s if self._began else now_s
        first = self._first_token_s if self._first_token_s is not None else now_s
        n_computed = self.n_prompt - self._usage().n_cached
        return Timings(first - started, now_s - first, n_computed, self.n_draft, self.n_draft_accepted)

    def _entry(self, token: int, logprobs: Logprobs) -> TokenLogprob:
        """An entry whose text is not known yet; those of other tokens show their whole piece."""
        top = []
        for other, value in zip(logprobs.top_ids, logprobs.top_logprobs, strict=True):
            data = self._vocabulary.piece(other)
            top.append(TokenLogprob(other, data.decode("utf-8", "replace"), data, value))
        return TokenLogprob(token, "", self._vocabulary.piece(token), logprobs.logprob, tuple(top))

    def _with_prompt_texts(self) -> tuple[TokenLogprob, ...]:
        """The prompt's entries with texts that join to the prompt's text."""
        decoder = self._vocabulary.stream_decoder()
        entries = [replace(entry, text=decoder.push(entry.token_id)) for entry in self._prompt_logprobs]
        entries[-1] = replace(entries[-1], text=entries[-1].text + decoder.flush())
        return tuple(entries)

    def describe(self) -> RequestInfo:
        """The sequence as the dashboard and `/slots` show it."""
        admission, began, finished = self.admission, self._began, self.finished
        phase = "prefill" if self.is_prefill else "decode"
        return RequestInfo(
            request_id=self.request.request_id,
            phase="done" if finished else phase if admission else "queued",
            slot=admission.slot if admission else None,
            n_prompt=self.n_prompt,
            n_cached=began.n_cached if began else 0,
            n_prompt_done=min(self.n_rows, self.n_prompt),
            n_generated=self.n_generated,
            submitted_s=self._submitted_s,
            started_s=began.at_s if began else None,
            first_token_s=self._first_token_s,
            finished_s=self._finished_s,
            finish_reason=finished.reason if finished else None,
            n_draft=self.n_draft,
            n_draft_accepted=self.n_draft_accepted,
        )


def _deltas(cells: Iterable[Cell]) -> list[Event]:
    """One delta for the cells; none for nothing."""
    cells = list(cells)
    text = "".join(cell.text for cell in cells)
    entries = tuple(cell.entry for cell in cells if cell.entry is not None)
    return [TextDelta(text, entries)] if text or entries else []
