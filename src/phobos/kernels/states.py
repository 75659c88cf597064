"""What all backends do alike with slots and batches: check a batch, copy slots, save them and put them back.

The rows of a slot can be cut anywhere; its recurrent states, where a model has any, are of use only where they stand.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from phobos.kernels.backend import STATE_COPIES, BackendLimits, Batch


def check_batch(batch: Batch, limits: BackendLimits, n_vocab: int) -> None:
    """`ValueError` for a batch that a backend cannot run."""
    n_rows, n_outputs = len(batch.tokens), len(batch.outputs)
    if not 0 < n_rows <= limits.max_rows or n_outputs > limits.max_outputs:
        raise ValueError(f"a batch of {n_rows} rows with {n_outputs} outputs does not fit {limits}")
    places = batch.positions if batch.places is None else batch.places
    # Most batches are of a few rows, which plain numbers are quicker for than calls of NumPy.
    tokens, positions, slots, at = (x.tolist() for x in (batch.tokens, batch.positions, batch.slots, places))
    if min(tokens) < 0 or max(tokens) >= n_vocab:
        raise ValueError("a token of the batch is not in the vocabulary")
    if max(*positions, *at) >= limits.n_ctx or max(slots) >= limits.n_slots:
        raise ValueError("a row of the batch lies outside the cache")


class Standing:
    """Holds for each slot the number of its rows, None where its state is of no use."""

    def __init__(self, n_slots: int) -> None:
        self._n_rows: list[int | None] = [0] * n_slots

    def advance(self, batch: Batch) -> None:
        """The batch is about to run; `ValueError` where rows do not go on from where their slot stands or from 0."""
        firsts = np.flatnonzero(np.diff(batch.slots, prepend=-1))
        lasts = np.append(firsts[1:], len(batch.slots)) - 1
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            slot, position = int(batch.slots[first]), int(batch.positions[first])
            if position not in (0, self._n_rows[slot]):
                raise ValueError(
                    f"slot {slot} stands at {self._n_rows[slot]} and cannot go on from position {position}"
                )
            self._n_rows[slot] = int(batch.positions[last]) + 1

    def at(self, slot: int) -> int | None:
        """How many rows a slot's state has taken up."""
        return self._n_rows[slot]

    def set(self, slot: int, n_rows: int | None) -> None:
        """Its state was put back, is of no use (None) or was forgotten (0)."""
        self._n_rows[slot] = n_rows

    def require(self, slot: int, n_rows: int) -> None:
        """`ValueError` unless a slot stands there."""
        if self._n_rows[slot] != n_rows:
            raise ValueError(f"slot {slot} stands at {self._n_rows[slot]}, not at {n_rows}")


class RowStore(Protocol):
    """The cached rows of all slots."""

    def slot_bytes(self, n_rows: int) -> int:
        """The most a slot of `n_rows` positions takes."""

    def copy(self, source: int, target: int, n_rows: int) -> None:
        """Copy a slot's first `n_rows` positions."""

    def copy_within(self, slot: int, source: int, target: int, n_rows: int) -> None:
        """Copy the `n_rows` positions of a slot from `source` on to `target`."""

    def save(self, slot: int, n_rows: int) -> bytes:
        """A slot's first `n_rows` positions."""

    def restore(self, slot: int, n_rows: int, data: bytes, n_saved: int) -> None:
        """Put back the first `n_rows` of the `n_saved` positions that `save` made `data` of."""


class StateStore(Protocol):
    """The recurrent states of all slots."""

    slot_bytes: int
    n_saved_bytes: int

    def copy(self, source: int, target: int) -> None:
        """Make `target` as `source`."""

    def save(self, slot: int) -> bytes:
        """A slot's states."""

    def restore(self, slot: int, data: bytes) -> None:
        """The inverse of `save`."""


class SlotBackend:
    """The part of a backend that keeps slots: rows in a cache, states beside it, and where the states stand."""

    def __init__(self, limits: BackendLimits, rows: RowStore, states: StateStore) -> None:
        self.limits = limits
        self._rows, self._slot_states = rows, states
        self._standing = Standing(limits.n_slots)

    def copy_within(self, slot: int, source: int, target: int, n_rows: int) -> None:
        """See `Backend.copy_within`."""
        self._rows.copy_within(slot, source, target, n_rows)

    def copy_rows(self, source: int, target: int, n_rows: int) -> None:
        """See `Backend.copy_rows`."""
        self._rows.copy(source, target, n_rows)
        if not self.limits.can_cut:
            stands = self._standing.at(source) == n_rows
            if stands:
                self._slot_states.copy(source, target)
            self._standing.set(target, n_rows if stands else None)

    def save_state(self, slot: int) -> bytes:
        """See `Backend.save_state`."""
        return self._slot_states.save(slot)

    def restore_state(self, slot: int, n_rows: int, data: bytes) -> None:
        """See `Backend.restore_state`."""
        self._slot_states.restore(slot, data)
        self._standing.set(slot, n_rows)

    def save(self, slot: int, n_rows: int) -> bytes:
        """See `Backend.save`."""
        if not self.limits.can_cut:
            self._standing.require(slot, n_rows)
        return self._slot_states.save(slot) + self._rows.save(slot, n_rows)

    def restore(self, slot: int, n_rows: int, data: bytes, n_saved: int) -> None:
        """See `Backend.restore`."""
        n_bytes = self._slot_states.n_saved_bytes
        self._rows.restore(slot, n_rows, data[n_bytes:], n_saved)
        self.restore_state(slot, n_rows, data[:n_bytes])

    def release(self, slot: int, keep: int = 0) -> None:
        """See `Backend.release`; the memory stays reserved unless a backend gives it back."""
        if keep == 0:
            self._standing.set(slot, 0)

    def slot_bytes(self, n_rows: int) -> int:
        """See `Backend.slot_bytes`."""
        states = STATE_COPIES * self._slot_states.slot_bytes if n_rows else 0
        return self._rows.slot_bytes(n_rows) + states
