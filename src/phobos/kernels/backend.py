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
from phobos.program.steps import Pooling

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]
STATE_COPIES = 4  # of a slot's states: its own, and the checkpoints the engine may keep
Progress = Callable[[LoadProgress], None]


@dataclass(frozen=True)
class Batch:
    """Rows of one pass, flat. Shapes: `tokens`, `positions`, `slots` [n_rows]; `outputs` [n_outputs].

    Rows of one slot are neighbours, with rising consecutive positions, and continue what the slot holds: the cache
    of a slot up to a row's position is valid once the pass has run. `outputs` lists, rising, the rows whose logits
    are wanted.

    Forks: `places` and `shared` [n_rows], if given, let runs of rows share a slot's beginning. A row reads the slot's
    positions below its `shared`, and from there on what lies `place - position` further on, where its own run's keys
    and values are put; for the others `place` is the position. `shared` and `place - position` are multiples of
    `BackendLimits.fork_block`, and runs of one slot differ in them.
    """

    tokens: IntArray
    positions: IntArray
    slots: IntArray
    outputs: IntArray
    places: IntArray | None = None
    shared: IntArray | None = None


@dataclass(frozen=True)
class BackendLimits:
    """What a loaded backend can take.

    `can_cut`: whether a slot's contents may be cut back to any length, so that rows may run anew from any position it
    holds; else only from where it stands, from 0, or from a state put back. `cache_bytes` is what all slots together
    may hold at once, at least one whole context, `None` for all of them whole; who runs batches keeps to it (see
    `Backend.slot_bytes`). `fork_block`: see `Batch`; 0 where there are no forks. `cache_k` and `cache_v` name the
    formats cached keys and values are held in. `chooses`: whether `Backend.choose` is cheaper than `run`, logits lying
    elsewhere than where they are read. `pooling`: the model embeds; where logits are spoken of it gives states.
    """

    n_ctx: int
    n_slots: int
    max_rows: int
    max_outputs: int
    n_vocab: int
    can_cut: bool = True
    fork_block: int = 0
    cache_bytes: int | None = None
    cache_k: str = "f16"
    cache_v: str = "f16"
    chooses: bool = False
    pooling: Pooling | None = None


def cache_bound(backend: Backend) -> int:
    """What all slots of a backend together may take, in bytes."""
    limits = backend.limits
    whole = limits.n_slots * backend.slot_bytes(limits.n_ctx)
    return whole if limits.cache_bytes is None else min(whole, limits.cache_bytes)


def find_best(logits: FloatArray) -> IntArray:
    """The id of the greatest logit of each row, the lowest of several; NaN counts as -inf, and -1 says that all are."""
    known = np.where(np.isnan(logits), -np.inf, logits)
    best: IntArray = known.argmax(axis=1).astype(np.int32)
    best[np.isneginf(known.max(axis=1))] = -1
    return best


class Backend(Protocol):
    """A loaded program. All methods are called by one thread.

    `bytes_read` counts the weights and cache all passes have read; None where the backend cannot tell."""

    limits: BackendLimits
    bytes_read: int | None

    def run(self, batch: Batch) -> FloatArray:
        """One pass: logits [n_outputs, n_vocab] float32, a view that the next `run` overwrites."""

    def choose(self, batch: Batch, n_vocab: int) -> IntArray:
        """One pass: for each wanted row the best of the first `n_vocab` tokens, as `find_best` says. The next pass
        overwrites them."""

    def copy_rows(self, source: int, target: int, n_rows: int) -> None:
        """Make slot `target` hold the first `n_rows` positions of slot `source`. Where they cannot be cut back and
        `source` stands elsewhere, `target` is of use only after `restore_state`."""

    def copy_within(self, slot: int, source: int, target: int, n_rows: int) -> None:
        """Put what lies at `n_rows` places of a slot from `source` on also at `target`; both are multiples of
        `BackendLimits.fork_block`. Only where there are forks."""

    def save_state(self, slot: int) -> bytes:
        """What cannot be cut back of a slot, as it stands; empty where all can."""

    def restore_state(self, slot: int, n_rows: int, data: bytes) -> None:
        """Put back what `save_state` gave after `n_rows` positions, all of which the slot holds; `ValueError` when the
        bytes do not fit."""

    def save(self, slot: int, n_rows: int) -> bytes:
        """The contents of a slot's first `n_rows` positions as bytes; where they cannot be cut back it must stand
        there."""

    def restore(self, slot: int, n_rows: int, data: bytes, n_saved: int) -> None:
        """Make a slot hold the first `n_rows` of the `n_saved` positions that `save` made `data` of; `ValueError` when
        the bytes do not fit."""

    def release(self, slot: int, keep: int = 0) -> None:
        """Forget a slot's contents from position `keep` on and give their memory back."""

    def slot_bytes(self, n_rows: int) -> int:
        """The most memory a slot takes that holds `n_rows` positions, with what is kept to go on from; it takes it as
        they are written."""

    def describe(self) -> CardInfo:
        """The device and the instruction path in use."""

    def memory(self) -> dict[str, int]:
        """Bytes held now, by "weights", "cache" and "scratch"."""

    def close(self) -> None:
        """Stop the workers and free the memory; twice is fine."""
