"""A `ScoreRequest` at work: a prompt whose rows are read, and nothing generated.

To the engine a `Scoring` is a sequence that ends with its prompt: it is admitted, reuses prefixes and runs in the
same passes as all others. Owned by the engine thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from phobos.chat.events import Event, Finished, Scores, Started, Timings, Usage
from phobos.counters import RequestInfo
from phobos.kernels.backend import FloatArray, IntArray

if TYPE_CHECKING:
    from phobos.chat.messages import ScoreRequest
    from phobos.engine.sequence import Admission
    from phobos.kernels.cpu.rows import RowKernels


class Scoring:
    """See the module. `n_rows` counts the rows the slot holds; names as in `Sequence`."""

    choice = 0
    constraint = None
    n_draft = n_draft_accepted = 0

    def __init__(self, request: ScoreRequest, *, submitted_s: float = 0.0, queue_wait_s: float = 0.0) -> None:
        self.request = request
        self.tokens = list(request.tokens)
        self.prompt: IntArray = np.array(self.tokens, np.int32)
        self.n_prompt = len(self.tokens)
        self.n_rows = 0
        self.admission: Admission | None = None
        self.last_turn = -1
        self.finished: Finished | None = None
        self.first_told: int | None = request.targets[0][0]
        self._found: list[tuple[float, ...]] = []
        self._submitted_s = submitted_s
        self._queue_wait_s = queue_wait_s
        self._finished_s: float | None = None

    @property
    def is_prefill(self) -> bool:
        """Whether rows are still to run."""
        return self.n_rows < self.n_prompt

    @property
    def n_most(self) -> int:
        """Tokens its slot may come to hold."""
        return self.n_prompt

    @property
    def reusable(self) -> IntArray:
        """The tokens of which all but the last may be found in a slot: from the first target on all rows must run."""
        return self.prompt[: self.request.targets[0][0] + 1]

    def admit(self, admission: Admission) -> list[Event]:
        """It has its slot."""
        self.admission = admission
        self.n_rows = admission.n_cached
        wait_s = self._queue_wait_s + admission.at_s - self._submitted_s
        return [Started(admission.slot, self.n_prompt, admission.n_cached, 0, wait_s)]

    def read(self, logits: FloatArray, kernels: RowKernels, now_s: float) -> list[Event]:
        """The rows before `n_rows` have run, the last of them with `logits` [n_outputs, n_vocab]."""
        first = self.n_rows - len(logits)
        for row, tokens in self.request.targets[len(self._found) :]:
            if row >= self.n_rows:
                break
            values = kernels.log_probabilities_of(logits[row - first], np.array(tokens, np.int32))
            self._found.append(tuple(values.tolist()))
        if self.is_prefill:
            return []
        started_s = now_s if self.admission is None else self.admission.at_s
        n_cached = 0 if self.admission is None else self.admission.n_cached
        self._finished_s = now_s
        self.finished = Finished(
            "stop", Usage(self.n_prompt, n_cached, 0), Timings(now_s - started_s, 0.0, self.n_prompt - n_cached)
        )
        return [Scores(tuple(self._found)), self.finished]

    def describe(self) -> RequestInfo:
        """It as the dashboard and `/slots` show it."""
        admission = self.admission
        return RequestInfo(
            request_id=self.request.request_id,
            phase="done" if self.finished else "prefill" if admission else "queued",
            slot=admission.slot if admission else None,
            n_prompt=self.n_prompt,
            n_cached=admission.n_cached if admission else 0,
            n_prompt_done=self.n_rows,
            n_generated=0,
            submitted_s=self._submitted_s,
            started_s=admission.at_s if admission else None,
            finished_s=self._finished_s,
            finish_reason=self.finished.reason if self.finished else None,
        )
