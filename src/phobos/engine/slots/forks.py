"""Forks of a slot: scorings that share what a slot holds and keep what follows apart, behind it in the same slot.

A fork reads whole blocks of the slot's tokens where they lie. Of the block that is only begun it has a copy at its own
place, together with what it takes over from another fork of the slot. What forks hold is of use to each other until
the slot runs nothing any more. Owned by the engine thread; `Forks` decides and keeps the books, and the backend's
bytes are the engine's business.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy.typing as npt

from phobos.engine.slots.cache import count_common, is_worth_waiting
from phobos.kernels.backend import IntArray

WAIT: Literal["wait"] = "wait"
HOLD_FORK_TOKENS = 4  # what another fork is about to read is worth waiting for from this many tokens on


@dataclass(frozen=True)
class Fork:
    """`size` places of `slot` from `place` on, for the positions from `shared` on; below that the slot is read."""

    slot: int
    shared: int
    place: int
    size: int

    @property
    def shift(self) -> int:
        """From a position to its place."""
        return self.place - self.shared


@dataclass(frozen=True)
class ForkPlan:
    """A fork that begins with `n_reused` tokens, of which those from `fork.shared` on are copied from the place
    `source`."""

    fork: Fork
    n_reused: int
    source: int

    @property
    def n_copied(self) -> int:
        """Rows to copy."""
        return self.n_reused - self.fork.shared


@dataclass(frozen=True)
class Trunk:
    """A slot that may be forked, the tokens it holds, and how many places it needs itself."""

    slot: int
    tokens: npt.ArrayLike
    n_places: int


class Reading(Protocol):
    """What reads in a fork: its tokens, and how many of their rows have run."""

    prompt: IntArray
    n_rows: int

    @property
    def is_prefill(self) -> bool: ...
    @property
    def reusable(self) -> IntArray: ...


class Forks:
    """The forks of all slots: `block` and `n_ctx` as the backend's limits say."""

    def __init__(self, block: int, n_ctx: int) -> None:
        self._block = block
        self._end = n_ctx // block * block
        self._by_slot: dict[int, list[tuple[Fork, Reading]]] = {}

    def plan(self, reading: Reading, n_least: int, trunks: Iterable[Trunk]) -> ForkPlan | Literal["wait"] | None:
        """A fork of a slot that holds `n_least` tokens of it or more; `WAIT` where another fork is about to read more
        of it, or forks have to make room; None where no slot is of use."""
        found: Literal["wait"] | None = None
        for trunk in trunks:
            n_held = min(count_common(reading.reusable, trunk.tokens), len(reading.reusable) - 1)
            if n_held < max(n_least, self._block):
                continue
            shared, source, n_reused = n_held // self._block * self._block, n_held // self._block * self._block, n_held
            for fork, other in self._by_slot.get(trunk.slot, []):
                if other.is_prefill and is_worth_waiting(
                    reading.reusable, n_held, other.prompt, other.n_rows, HOLD_FORK_TOKENS
                ):
                    return WAIT
                n = min(count_common(reading.reusable, other.prompt[: other.n_rows]), len(reading.reusable) - 1)
                if n > n_reused:
                    shared, source, n_reused = fork.shared, fork.place, n
            size = self._round_up(len(reading.prompt) - shared)
            place = self._find_place(trunk, size, source)
            if place is not None:
                return ForkPlan(Fork(trunk.slot, shared, place, size), n_reused, source)
            if any(other.is_prefill for _, other in self._by_slot.get(trunk.slot, ())):
                found = WAIT
        return found

    def _round_up(self, n: int) -> int:
        return (n + self._block - 1) // self._block * self._block

    def _find_place(self, trunk: Trunk, size: int, source: int) -> int | None:
        """The first gap of this size behind what the slot needs itself; forks that have read all make room."""
        forks = self._by_slot.get(trunk.slot, [])
        for kept in (forks, [x for x in forks if x[1].is_prefill or x[0].place == source]):
            place = self._round_up(trunk.n_places)
            for fork, _ in sorted(kept, key=lambda x: x[0].place):
                if place + size <= fork.place:
                    break
                place = max(place, fork.place + fork.size)
            if place + size <= self._end:
                if kept is not forks:
                    self._by_slot[trunk.slot] = kept
                return place
        return None

    def open(self, fork: Fork, reading: Reading) -> None:
        """The plan is carried out."""
        self._by_slot.setdefault(fork.slot, []).append((fork, reading))

    def close(self, fork: Fork, has_read_all: bool) -> None:
        """It runs no more; what it holds stays of use if it has read all."""
        if not has_read_all:
            self._by_slot[fork.slot] = [x for x in self._by_slot.get(fork.slot, []) if x[0] != fork]

    def forget(self, slot: int) -> None:
        """The slot runs nothing any more."""
        self._by_slot.pop(slot, None)
