"""Prompts that are only read, nothing being generated: to score given tokens, or to embed a text.

To the engine a `PromptReading` is a sequence that ends with its prompt: it is admitted, reuses prefixes and runs in
the same passes as all others. Owned by the engine thread.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from phobos.chat.events import Embedded, Event, Finished, Scores, Started, Timings, Usage
from phobos.chat.messages import EmbedRequest, ScoreRequest
from phobos.counters import RequestInfo
from phobos.errors import NO_EMBEDDINGS, NO_TEXT, ContextLengthError, RequestError
from phobos.kernels.backend import FloatArray, IntArray

if TYPE_CHECKING:
    from phobos.engine.sequence import Admission
    from phobos.kernels.sampling import RowKernels
    from phobos.program.steps import Pooling


class PromptReading:
    """See the module. `n_rows` counts the rows the slot holds; names as in `Sequence`. What is made of the rows from
    `first_told` on is for a subclass to say."""

    choice = 0
    constraint = None
    n_draft = n_draft_accepted = 0

    def __init__(
        self, request: ScoreRequest | EmbedRequest, first_told: int, submitted_s: float, queue_wait_s: float
    ) -> None:
        self.request = request
        self.tokens = list(request.tokens)
        self.prompt: IntArray = np.array(self.tokens, np.int32)
        self.n_prompt = len(self.tokens)
        self.n_rows = 0
        self.admission: Admission | None = None
        self.last_turn = -1
        self.finished: Finished | None = None
        self.first_told: int = first_told
        self._submitted_s = submitted_s
        self._queue_wait_s = queue_wait_s
        self._finished_s: float | None = None

    @property
    def is_prefill(self) -> bool:
        """Whether rows are still to run."""
        return self.n_rows < self.n_prompt

    @property
    def n_prefill(self) -> int:
        """How many rows that is in all."""
        return self.n_prompt

    @property
    def has_begun(self) -> bool:
        """Whether it has its slot."""
        return self.admission is not None

    @property
    def n_most(self) -> int:
        """Tokens its slot may come to hold."""
        return self.n_prompt

    @property
    def reusable(self) -> IntArray:
        """The tokens of which all but the last may be found in a slot: all rows that tell something must run."""
        return self.prompt[: self.first_told + 1]

    def admit(self, admission: Admission) -> list[Event]:
        """It has its slot."""
        self.admission = admission
        self.n_rows = admission.n_cached
        wait_s = self._queue_wait_s + admission.at_s - self._submitted_s
        return [Started(admission.slot, self.n_prompt, admission.n_cached, 0, wait_s)]

    def read(self, logits: FloatArray, kernels: RowKernels, now_s: float) -> list[Event]:
        """The rows before `n_rows` have run, the last of them with `logits` [n_outputs, n_vocab], or the states of an
        embedding model."""
        self._take(logits, self.n_rows - len(logits), kernels)
        if self.is_prefill:
            return []
        started_s = now_s if self.admission is None else self.admission.at_s
        n_cached = 0 if self.admission is None else self.admission.n_cached
        self._finished_s = now_s
        self.finished = Finished(
            "stop", Usage(self.n_prompt, n_cached, 0), Timings(now_s - started_s, 0.0, self.n_prompt - n_cached)
        )
        return [self._result(), self.finished]

    def _take(self, rows: FloatArray, first: int, kernels: RowKernels) -> None:
        """Take in what was computed for the rows from `first` on."""
        raise NotImplementedError

    def _result(self) -> Event:
        """What came of all rows."""
        raise NotImplementedError

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


class Scoring(PromptReading):
    """Reads how probable given tokens are."""

    request: ScoreRequest

    def __init__(self, request: ScoreRequest, *, submitted_s: float = 0.0, queue_wait_s: float = 0.0) -> None:
        super().__init__(request, request.targets[0][0], submitted_s, queue_wait_s)
        self._found: list[tuple[float, ...]] = []

    def _take(self, rows: FloatArray, first: int, kernels: RowKernels) -> None:
        for row, tokens in self.request.targets[len(self._found) :]:
            if row >= self.n_rows:
                break
            values = kernels.log_probabilities_of(rows[row - first], np.array(tokens, np.int32))
            self._found.append(tuple(values.tolist()))

    def _result(self) -> Event:
        return Scores(tuple(self._found))


class Embedding(PromptReading):
    """Pools states: the last one, the first one, or the mean of all. A mean is summed in the order of the rows, so it
    does not depend on how they were parted into passes."""

    request: EmbedRequest

    def __init__(
        self, request: EmbedRequest, pooling: Pooling, *, submitted_s: float = 0.0, queue_wait_s: float = 0.0
    ) -> None:
        last = len(request.tokens) - 1
        super().__init__(request, last if pooling == "last" else 0, submitted_s, queue_wait_s)
        self._pooling = pooling
        self._sum: npt.NDArray[np.float64] | None = None

    def _take(self, rows: FloatArray, first: int, kernels: RowKernels) -> None:
        for row in rows:
            if self._sum is None:
                self._sum = row.astype(np.float64)
            elif self._pooling == "mean":
                self._sum += row

    def _result(self) -> Event:
        assert self._sum is not None
        n_summed = self.n_prompt if self._pooling == "mean" else 1
        return Embedded(tuple((self._sum / n_summed).astype(np.float32).tolist()))


def open_reading(
    request: ScoreRequest | EmbedRequest, pooling: Pooling | None, n_ctx: int, *, queue_wait_s: float
) -> PromptReading:
    """What a request asks for, as it comes to the engine of a model with this pooling. Raises `ContextLengthError`,
    and `RequestError` where the model has the other trade."""
    n, now_s = len(request.tokens), time.monotonic()
    if isinstance(request, EmbedRequest):
        if pooling is None:
            raise RequestError(NO_EMBEDDINGS, code="unsupported_endpoint")
        if not 0 < n <= n_ctx:
            raise ContextLengthError(n, n_ctx)
        return Embedding(request, pooling, submitted_s=now_s, queue_wait_s=queue_wait_s)
    if pooling is not None:
        raise RequestError(NO_TEXT, code="unsupported_endpoint")
    if not 0 < n < n_ctx:
        raise ContextLengthError(n, n_ctx)
    return Scoring(request, submitted_s=now_s, queue_wait_s=queue_wait_s)
