"""Where the slots of a recurrent model stand: how many rows their state has taken up. Owned by a backend."""

from __future__ import annotations

import numpy as np

from phobos.kernels.backend import Batch


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
