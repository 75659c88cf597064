"""The one interface every executor of a program offers.

A backend owns the packed weights, the scratch and the bytes of the cache slots. It is used by one thread (the
engine's). Rows are bit-exact: the logits of a row depend only on the tokens of its own slot up to its position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from phobos.counters import CardInfo, LoadProgress

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]
Progress = Callable[[LoadProgress], None]


@dataclass(frozen=True)
class Batch:
    """Rows of one pass, flat. Shapes: `tokens`, `positions`, `slots` [n_rows]; `outputs` [n_outputs].

    Rows of one slot are neighbours, with rising consecutive positions, and continue what the slot holds: the cache
    of a slot up to a row's position is valid once the pass has run. `outputs` lists, rising, the rows whose logits
    are wanted.
    """

    tokens: IntArray
    positions: IntArray
    slots: IntArray
    outputs: IntArray


@dataclass(frozen=True)
class BackendLimits:
    """What a loaded backend can take."""

    n_ctx: int
    n_slots: int
    max_rows: int
    max_outputs: int
    n_vocab: int


class Backend(Protocol):
    """A loaded program. All methods are called by one thread; `interrupt` by any."""

    limits: BackendLimits

    def run(self, batch: Batch) -> FloatArray:
        """One pass: logits [n_outputs, n_vocab] float32, a view that the next `run` overwrites."""

    def copy_rows(self, source: int, target: int, n_rows: int) -> None:
        """Make slot `target` hold the first `n_rows` positions of slot `source`."""

    def save(self, slot: int, n_rows: int) -> bytes:
        """The state of a slot's first `n_rows` positions as bytes."""

    def restore(self, slot: int, n_rows: int, data: bytes) -> None:
        """The inverse of `save`; `ValueError` when the bytes do not fit."""

    def release(self, slot: int) -> None:
        """Forget a slot's contents and give its memory back."""

    def describe(self) -> CardInfo:
        """The device and the instruction path in use."""

    def memory(self) -> dict[str, int]:
        """Bytes held, by "weights", "cache" and "scratch"."""

    def close(self) -> None:
        """Stop the workers and free the memory; twice is fine."""
