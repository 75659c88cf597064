"""Rows of slots that a pass runs, and the flat batch made of them."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Listing
from dataclasses import dataclass

import numpy as np

from phobos.engine.slots.forks import Fork
from phobos.kernels.backend import Batch


@dataclass(frozen=True)
class Rows:
    """Neighbouring rows of one slot, or of a fork of it; `n_outputs` of them, the last ones, give logits. The last
    `n_drafted` are of tokens that were guessed."""

    slot: int
    first_position: int
    tokens: Listing[int]
    n_outputs: int
    n_drafted: int = 0
    fork: Fork | None = None

    @property
    def n_certain(self) -> int:
        """How many rows are of tokens that stand already."""
        return len(self.tokens) - self.n_drafted


def build_batch(runs: Iterable[Rows]) -> Batch:
    """The flat batch of these rows, in their order."""
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    outputs: list[int] = []
    places: list[int] = []
    shared: list[int] = []
    for rows in runs:
        n = len(rows.tokens)
        tokens += rows.tokens
        positions += range(rows.first_position, rows.first_position + n)
        slots += [rows.slot] * n
        shift = rows.fork.shift if rows.fork is not None else 0
        places += range(rows.first_position + shift, rows.first_position + shift + n)
        shared += [rows.fork.shared if rows.fork is not None else 0] * n
        outputs += range(len(tokens) - rows.n_outputs, len(tokens))
    flat = (
        (tokens, positions, slots, outputs)
        if places == positions
        else (tokens, positions, slots, outputs, places, shared)
    )
    return Batch(*(np.array(values, np.int32) for values in flat))
