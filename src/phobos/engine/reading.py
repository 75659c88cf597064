"""What a turn asks of the backend for each sequence, and what the logits that come back mean for it.

A `Reader` chooses a sequence's next tokens, reads log-probabilities and scores, and makes the events. It owns the
kernels that read rows, so it belongs to the engine thread. Where all that a turn's rows are for is the token of the
greatest logit, a backend that can chooses it itself, and no logits come back.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from collections.abc import Sequence as Listing
from dataclasses import dataclass

import numpy as np

from phobos.chat.events import Event
from phobos.counters import Counters
from phobos.engine.sampler import read_logprobs
from phobos.engine.scoring import PromptReading
from phobos.engine.sequence import Sequence
from phobos.engine.slots.rows import Rows, build_batch
from phobos.errors import UnavailableError
from phobos.kernels.backend import Backend, FloatArray, IntArray
from phobos.kernels.sampling import RowKernels

NO_TOKEN = "the model gave no token that may follow; try again without a constraint, or check the model file"


def next_rows(sequence: Sequence | PromptReading, n_rows: int, guess: Listing[int] = ()) -> Rows:
    """The next rows of a sequence, and those of a guess at what follows them; logits are wanted where a token is to be
    chosen or told about."""
    if sequence.admission is None:
        raise AssertionError("a running sequence has a slot")
    first, last = sequence.n_rows, sequence.n_rows + n_rows
    told = sequence.first_told
    n_outputs = int(last >= sequence.n_prefill) if told is None else max(0, last - max(first, told))
    tokens, fork = [*sequence.tokens[first:last], *guess], sequence.admission.fork
    return Rows(sequence.admission.slot, first, tokens, n_outputs + len(guess), len(guess), fork)


@dataclass(frozen=True)
class Results:
    """What a pass gave for its wanted rows: logits [n, n_vocab], or their `best` tokens [n] (-1: none can follow) and
    logits without columns."""

    logits: FloatArray
    best: IntArray | None = None

    def part(self, first: int, n: int) -> Results:
        """Those of `n` neighbouring rows."""
        rows = slice(first, first + n)
        return Results(self.logits[rows], None if self.best is None else self.best[rows])


class Reader:
    """See the module."""

    def __init__(self, kernels: RowKernels, counters: Counters) -> None:
        self._kernels = kernels
        self._counters = counters

    def run(self, backend: Backend, runs: Listing[Rows], sequences: Iterable[Sequence | PromptReading]) -> Results:
        """One pass over the rows of these sequences."""
        batch, n_vocab, n_outputs = build_batch(runs), self._kernels.n_vocab, sum(rows.n_outputs for rows in runs)
        if n_outputs and backend.limits.chooses:
            wanting = (s for s, rows in zip(sequences, runs, strict=True) if rows.n_outputs)
            if all(isinstance(s, Sequence) and s.takes_best for s in wanting):
                return Results(np.empty((n_outputs, 0), np.float32), backend.choose(batch, n_vocab))
        rows = backend.run(batch)
        return Results(rows if backend.limits.pooling is not None else rows[:, :n_vocab])

    def read(self, sequence: Sequence | PromptReading, rows: Rows, results: Results, was_prefill: bool) -> list[Event]:
        """What the client is to receive because `rows` of the sequence have run, with these results.

        Rows of guessed tokens that turn out right count among the sequence's own.
        """
        if isinstance(sequence, PromptReading):
            return sequence.read(results.logits, self._kernels, time.monotonic())
        if was_prefill and sequence.wants_prompt_logprobs:
            self._read_prompt_logprobs(sequence, results.logits)
        if sequence.is_prefill:
            return []
        now_s = time.monotonic()
        events = sequence.end_prompt(now_s) if was_prefill else []
        if sequence.finished is not None:
            return events
        if not rows.n_drafted:
            self._counters.decode_tokens += not was_prefill
            return events + self._choose(sequence, results, -1, now_s)
        return self._follow(sequence, rows, results, now_s)

    def _follow(self, sequence: Sequence, rows: Rows, results: Results, now_s: float) -> list[Event]:
        """Choose in order, as ever, for as long as what was chosen is what was guessed: the row after it is then that
        of the sequence."""
        events: list[Event] = []
        n_before = sequence.n_draft_accepted
        sequence.expect(rows.tokens[rows.n_certain :])
        for i in range(len(results.logits)):
            self._counters.decode_tokens += 1
            events += self._choose(sequence, results, i, now_s)
            if sequence.finished is not None or sequence.n_draft_accepted - n_before <= i:
                break
            sequence.n_rows += 1
        self._counters.draft_tokens += rows.n_drafted
        self._counters.draft_tokens_accepted += sequence.n_draft_accepted - n_before
        return events

    def _choose(self, sequence: Sequence, results: Results, i: int, now_s: float) -> list[Event]:
        """The sequence's next token, by row `i` of the results."""
        token: int | None
        row = results.logits[i]
        if results.best is not None:
            token = int(results.best[i]) if results.best[i] >= 0 else None
        else:
            mask = sequence.constraint.mask() if sequence.constraint is not None else None
            token = sequence.sampler.choose(row, len(sequence.tokens), mask)
        if token is None:
            raise UnavailableError(NO_TOKEN)
        if sequence.constraint is not None:
            token = sequence.constraint.extend(token)
        n_top = sequence.request.top_logprobs
        logprobs = None if n_top is None else read_logprobs(row, token, n_top, self._kernels)
        self._counters.generated_tokens += 1
        return sequence.push(token, logprobs, now_s)

    def _read_prompt_logprobs(self, sequence: Sequence, logits: FloatArray) -> None:
        """Each row tells of the prompt's token after it; the last row tells of the answer."""
        n_top = sequence.request.top_logprobs or 0
        first = sequence.n_rows - len(logits) + 1
        following = sequence.tokens[first : sequence.n_rows + 1]
        sequence.push_prompt_logprobs(
            read_logprobs(row, token, n_top, self._kernels) for row, token in zip(logits, following, strict=False)
        )
