"""Calls the kernels that read one row of logits; owns their working memory, so it belongs to one thread."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from phobos.kernels.backend import FloatArray, IntArray
from phobos.kernels.cpu.compiling.compiler import ENTRY_TYPE, LoadedKernel, encode_record, load_kernels
from phobos.kernels.cpu.names import Named, sampling

NO_IDS: IntArray = np.empty(0, np.int32)
NO_VALUES: FloatArray = np.empty(0, np.float32)
KERNELS = (sampling.adjust.name, sampling.draw.name, sampling.read_top.name)

_BLOCK = 64
_N_BINS = 1024
_MAX_SCALE = 1e30  # of the logits: a temperature under 1e-30 acts like it
_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = (1 << 64) - 1


@dataclass(frozen=True)
class Chain:
    """The sampling chain's fixed settings, all of them off but the temperature, by their names in `sampling_fields`;
    `code/sampling.py` tells their order. `bias_ids` are distinct."""

    temperature: float
    top_k: int = 0
    typical_p: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias_ids: IntArray = field(default_factory=lambda: NO_IDS)
    bias_values: FloatArray = field(default_factory=lambda: NO_VALUES)

    @cached_property
    def scale(self) -> float:
        """What logits are multiplied with before the draw; 0 takes the greatest."""
        return min(1 / self.temperature, _MAX_SCALE) if self.temperature > 0 else 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether the tokens so far change the logits."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @cached_property
    def gap(self) -> float:
        """How far below the greatest logit min_p cuts."""
        return -math.log(self.min_p) if self.min_p > 0 else math.inf


def random_bits(key: int, position: int) -> int:
    """53 bits that depend on the key and the position only: splitmix64 (Steele, Lea and Flood, 2014), entered there."""
    z = (key + (position + 1) * _GOLDEN) & _WORD
    z = (z ^ (z >> 30)) * _MIX_1 & _WORD
    z = (z ^ (z >> 27)) * _MIX_2 & _WORD
    return (z ^ (z >> 31)) >> 11


def load_row_kernels() -> None:
    """Compile or load the kernels ahead of the first `RowKernels`."""
    load_kernels(KERNELS)


class RowKernels:
    """Reads rows of `n_vocab` logits. Loading compiles what the kernel cache lacks; `report` hears of each kernel."""

    def __init__(self, n_vocab: int, report: Callable[[LoadedKernel], None] = lambda loaded: None) -> None:
        self.n_vocab = n_vocab
        self._addresses = load_kernels(KERNELS, report)
        self._work: FloatArray = np.empty(n_vocab, np.float32)
        self._order: npt.NDArray[np.int64] = np.empty(n_vocab, np.int64)
        self._weights: FloatArray = np.empty(n_vocab + 16, np.float32)
        self._maxima: FloatArray = np.empty(n_vocab // _BLOCK + 1, np.float32)
        self._bins: FloatArray = np.empty(_N_BINS, np.float32)
        self._top_ids: IntArray = np.empty(n_vocab, np.int32)
        self._result: npt.NDArray[np.int64] = np.empty(1, np.int64)
        self._result_at, self._work_at, self._bins_at, self._top_ids_at = (
            _address(a) for a in (self._result, self._work, self._bins, self._top_ids)
        )
        self._memory = tuple(_address(a) for a in (self._order, self._weights, self._maxima))
        self._functions = {name: ENTRY_TYPE(address) for name, address in self._addresses.items()}

    def _call(self, kernel: Named, *arguments: int | float) -> None:
        """Run one kernel; the GIL is released while it runs."""
        record = ctypes.create_string_buffer(encode_record(self._addresses[kernel.name], 0, arguments))
        self._functions[kernel.name](ctypes.addressof(record), 0, 1)

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
        row = self._adjust(self._row(logits), chain, mask, seen_ids, seen_counts)
        self._call(
            sampling.draw,
            self._result_at,
            row,
            self.n_vocab,
            *self._memory,
            self._bins_at,
            float(chain.scale),
            chain.top_k,
            float(chain.typical_p),
            float(chain.top_p),
            float(chain.gap),
            random_bits(key, position),
        )
        token = int(self._result[0])
        return None if token < 0 else token

    def _adjust(self, row: int, chain: Chain, mask: IntArray, seen_ids: IntArray, seen_counts: IntArray) -> int:
        """The address of the row with bias, mask and penalties applied: the row itself where there are none."""
        if not len(chain.bias_ids) and not len(mask) and not len(seen_ids):
            return row
        if len(mask) and len(mask) * 32 < self.n_vocab:
            raise ValueError(f"a mask of {len(mask)} words is too short for {self.n_vocab} tokens")
        self._call(
            sampling.adjust,
            row,
            self.n_vocab,
            self._work_at,
            _address(chain.bias_ids),
            _address(chain.bias_values),
            len(chain.bias_ids),
            _address(mask) if len(mask) else 0,
            _address(seen_ids),
            _address(seen_counts),
            len(seen_ids),
            float(chain.repetition_penalty),
            float(chain.presence_penalty),
            float(chain.frequency_penalty),
        )
        return self._work_at

    def log_probabilities(self, logits: FloatArray, token: int, n_top: int) -> tuple[float, IntArray, FloatArray]:
        """The natural log-probability of `token`, and the ids and log-probabilities of the `n_top` best, best first
        (fewer where fewer can be drawn); NaN and none where the row is no distribution."""
        n_top = min(n_top, self.n_vocab)
        self._call(
            sampling.read_top,
            self._result_at,
            self._row(logits),
            self.n_vocab,
            *self._memory,
            self._top_ids_at,
            n_top,
        )
        greatest, total = self._result.view(np.float32)
        if total <= 0:
            return math.nan, NO_IDS, NO_VALUES
        log_total = np.float32(float(greatest) + math.log(total))
        ids = self._top_ids[:n_top]
        ids = ids[ids >= 0].copy()
        return float(logits[token] - log_total), ids, logits[ids] - log_total

    def log_probabilities_of(self, logits: FloatArray, tokens: IntArray) -> FloatArray:
        """The natural log-probabilities of `tokens`; NaN where the row is no distribution."""
        self._call(
            sampling.read_top, self._result_at, self._row(logits), self.n_vocab, *self._memory, self._top_ids_at, 0
        )
        greatest, total = self._result.view(np.float32)
        if total <= 0:
            return np.full(len(tokens), np.nan, np.float32)
        return logits[tokens] - np.float32(float(greatest) + math.log(total))

    def _row(self, logits: FloatArray) -> int:
        """The address of a row that is as the kernels take it."""
        if logits.dtype != np.float32 or logits.shape != (self.n_vocab,) or not logits.flags.c_contiguous:
            raise ValueError(f"a row is {self.n_vocab} neighbouring float32 values, not {logits.dtype} {logits.shape}")
        return _address(logits)


def _address(array: npt.NDArray[np.int32] | npt.NDArray[np.int64] | FloatArray) -> int:
    return array.__array_interface__["data"][0]  # type: ignore[no-any-return]
