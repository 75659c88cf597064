"""A model whose stages (`program/stages.py`) lie on several backends, behind the `Backend` protocol.

A pass runs the stages in order and hands rows on through this machine's memory. Slots are the same in all of them:
copies, saved states and what is given back concern each stage's own layers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from phobos.counters import CardInfo
from phobos.kernels.backend import Backend, BackendLimits, Batch, FloatArray, IntArray

NO_ROWS: IntArray = np.empty(0, np.int32)


class StageBackend(Backend, Protocol):
    """A backend that can run a stage."""

    def put(self, values: Sequence[FloatArray]) -> None:
        """Fill the inputs of the program for the next pass, each [n_rows, width]."""

    def take(self, n_rows: int) -> tuple[FloatArray, ...]:
        """The outputs of the program after a pass, each [n_rows, width]; the next pass overwrites them."""


@dataclass(frozen=True)
class Stage:
    """Layers `first_layer` to before `end_layer`, on a device of this name."""

    backend: StageBackend
    device: str
    first_layer: int
    end_layer: int


def join_limits(all_limits: Sequence[BackendLimits]) -> BackendLimits:
    """What a model can take whose stages can take this. Cards reserve their slots whole, so nothing is bounded by bytes
    beside."""
    blocks = [limits.fork_block for limits in all_limits]
    return replace(
        all_limits[-1],
        can_cut=all(limits.can_cut for limits in all_limits),
        fork_block=math.lcm(*blocks) if all(blocks) else 0,
        cache_bytes=None,
    )


class SplitBackend:
    """Owns the stages' backends. Used by the engine thread."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = tuple(stages)
        self._backends = tuple(stage.backend for stage in stages)
        self.limits = join_limits([backend.limits for backend in self._backends])
        self.bytes_read: int | None = None
        self._count_bytes()

    def _count_bytes(self) -> None:
        counts = [backend.bytes_read for backend in self._backends]
        self.bytes_read = None if None in counts else sum(count for count in counts if count is not None)

    # Running

    def _reach_last(self, batch: Batch) -> StageBackend:
        """Run all stages but the last, which is given its rows."""
        *others, last = self._backends
        inner = replace(batch, outputs=NO_ROWS)
        for backend, following in zip(others, self._backends[1:], strict=True):
            backend.run(inner)
            following.put(backend.take(len(batch.tokens)))
        return last

    def run(self, batch: Batch) -> FloatArray:
        """See `Backend.run`."""
        logits = self._reach_last(batch).run(batch)
        self._count_bytes()
        return logits

    def choose(self, batch: Batch, n_vocab: int) -> IntArray:
        """See `Backend.choose`."""
        chosen = self._reach_last(batch).choose(batch, n_vocab)
        self._count_bytes()
        return chosen

    def copy_rows(self, source: int, target: int, n_rows: int) -> None:
        """See `Backend.copy_rows`."""
        for backend in self._backends:
            backend.copy_rows(source, target, n_rows)

    def copy_within(self, slot: int, source: int, target: int, n_rows: int) -> None:
        """See `Backend.copy_within`."""
        for backend in self._backends:
            backend.copy_within(slot, source, target, n_rows)

    def save_state(self, slot: int) -> bytes:
        """See `Backend.save_state`."""
        return b"" if self.limits.can_cut else _join([backend.save_state(slot) for backend in self._backends])

    def restore_state(self, slot: int, n_rows: int, data: bytes) -> None:
        """See `Backend.restore_state`."""
        parts = self._parts(data) if data or not self.limits.can_cut else [b""] * len(self._backends)
        for backend, part in zip(self._backends, parts, strict=True):
            backend.restore_state(slot, n_rows, part)

    def save(self, slot: int, n_rows: int) -> bytes:
        """See `Backend.save`."""
        return _join([backend.save(slot, n_rows) for backend in self._backends])

    def restore(self, slot: int, n_rows: int, data: bytes, n_saved: int) -> None:
        """See `Backend.restore`."""
        for backend, part in zip(self._backends, self._parts(data), strict=True):
            backend.restore(slot, n_rows, part, n_saved)

    def _parts(self, data: bytes) -> list[bytes]:
        """The inverse of `_join`; `ValueError` where the bytes are not so many parts."""
        n_head = 8 * len(self._backends)
        sizes = np.frombuffer(data[:n_head], np.int64).tolist() if len(data) >= n_head else []
        if not sizes or min(sizes) < 0 or n_head + sum(sizes) != len(data):
            raise ValueError(f"{len(data)} bytes are not the state of a model of {len(self._backends)} stages")
        ends = np.cumsum([n_head, *sizes]).tolist()
        return [data[start:end] for start, end in itertools.pairwise(ends)]

    def release(self, slot: int, keep: int = 0) -> None:
        """See `Backend.release`."""
        for backend in self._backends:
            backend.release(slot, keep)

    # What it is

    def slot_bytes(self, n_rows: int) -> int:
        """See `Backend.slot_bytes`."""
        return sum(backend.slot_bytes(n_rows) for backend in self._backends)

    def describe(self) -> CardInfo:
        """See `Backend.describe`: the last stage's device, and which layers lie where."""
        cards = [backend.describe() for backend in self._backends]
        places = [
            f"{stage.device}: layers {stage.first_layer} to {stage.end_layer - 1} ({card.features})"
            for stage, card in zip(self._stages, cards, strict=True)
        ]
        names = " + ".join(dict.fromkeys(card.name for card in reversed(cards)))
        n_threads = max(card.n_threads for card in cards)
        bus_ids = tuple(bus_id for card in cards for bus_id in card.bus_ids)
        return CardInfo(names, cards[-1].kind, ", ".join(places), n_threads, bus_ids=bus_ids)

    def memory(self) -> dict[str, int]:
        """See `Backend.memory`."""
        held = [backend.memory() for backend in self._backends]
        return {name: sum(part[name] for part in held) for name in held[0]}

    def close(self) -> None:
        """See `Backend.close`."""
        for backend in self._backends:
            backend.close()


def _join(parts: Sequence[bytes]) -> bytes:
    """Parts in one, their lengths before them."""
    return np.array([len(part) for part in parts], np.int64).tobytes() + b"".join(parts)
