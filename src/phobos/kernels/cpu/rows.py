"""Calls the compiled functions that read one row of logits; owns their working memory, so it belongs to one thread."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from phobos.kernels.backend import FloatArray, IntArray
from phobos.kernels.cpu import sampling as kernel

NO_IDS: IntArray = np.empty(0, np.int32)
NO_VALUES: FloatArray = np.empty(0, np.float32)


@dataclass(frozen=True)
class Chain:
    """The sampling chain's fixed settings, as `sampling.py` describes them; `bias_ids` are distinct."""

    temperature: float
    top_k: int = 0
    typical_p: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    bias_ids: IntArray = field(default_factory=lambda: NO_IDS)
    bias_values: FloatArray = field(default_factory=lambda: NO_VALUES)


class RowKernels:
    """Reads rows of `n_vocab` logits."""

    def __init__(self, n_vocab: int) -> None:
        self._work: FloatArray = np.empty(n_vocab, np.float32)
        self._order: npt.NDArray[np.int64] = np.empty(n_vocab, np.int64)
        self._weights: FloatArray = np.empty(n_vocab, np.float32)
        self._maxima: IntArray = np.empty(kernel.n_blocks(n_vocab), np.int32)

    def draw(
        self,
        logits: FloatArray,
        chain: Chain,
        key: int,
        position: int,
        *,
        mask: IntArray = NO_IDS,
        seen_ids: IntArray = NO_IDS,
        seen_counts: IntArray = NO_IDS,
    ) -> int | None:
        """The token drawn from `logits` [n_vocab]; None where none can be.

        `mask` has one bit a token, or is empty; `seen_ids` are the distinct tokens that penalties count, `seen_counts`
        how often each stands in the answer.
        """
        token = kernel.sample(
            logits,
            chain.bias_ids,
            chain.bias_values,
            mask,
            seen_ids,
            seen_counts,
            chain.repetition,
            chain.presence,
            chain.frequency,
            chain.temperature,
            chain.top_k,
            chain.typical_p,
            chain.top_p,
            chain.min_p,
            np.uint64(key),
            position,
            self._work,
            self._order,
            self._weights,
            self._maxima,
        )
        return None if token == kernel.NO_TOKEN else int(token)

    def log_probabilities(self, logits: FloatArray, token: int, n_top: int) -> tuple[float, IntArray, FloatArray]:
        """The natural log-probability of `token`, and the ids and log-probabilities of the `n_top` best, best first
        (fewer where fewer can be drawn); NaN and none where the row is no distribution."""
        ids = np.empty(n_top, np.int32)
        values = np.empty(n_top, np.float32)
        logprob = kernel.log_probabilities(logits, token, ids, values, self._order, self._weights, self._maxima)
        n_found = int((ids != kernel.NO_TOKEN).sum())
        return float(logprob), ids[:n_found], values[:n_found]
