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
    """What a loaded backend can take. `can_cut`: whether a slot's contents may be cut back to any length, so that rows
    may run anew from any position it holds; else only from where it stands, from 0, or from a state put back."""

    n_ctx: int
    n_slots: int
    max_rows: int
    max_outputs: int
    n_vocab: int
    can_cut: bool = True


class Backend(Protocol):
    """A loaded program. All methods are called by one thread; `interrupt` by any.

    `bytes_read` counts the weights and cache all passes have read; None where the backend cannot tell."""

    limits: BackendLimits
    bytes_read: int | None

    def run(self, batch: Batch) -> FloatArray:
        """One pass: logits [n_outputs, n_vocab] float32, a view that the next `run` overwrites."""

    def copy_rows(self, source: int, target: int, n_rows: int) -> None:
        """Make slot `target` hold the first `n_rows` positions of slot `source`. Where they cannot be cut back and
        `source` stands elsewhere, `target` is of use only after `restore_state`."""

    def save_state(self, slot: int) -> bytes:
        """What cannot be cut back of a slot, as it stands; empty where all can."""

    def restore_state(self, slot: int, n_rows: int, data: bytes) -> None:
        """Put back what `save_state` gave after `n_rows` positions, all of which the slot holds; `ValueError` when the
        bytes do not fit."""

    def save(self, slot: int, n_rows: int) -> bytes:
        """The contents of a slot's first `n_rows` positions as bytes; where they cannot be cut back it must stand
        there."""

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
