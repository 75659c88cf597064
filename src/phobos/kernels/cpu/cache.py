"""The bytes of the cache slots: where each layer's keys and values lie, and copies between slots.

A slot of a layer is [n_kv_heads][n_ctx] of keys, then the same of values (see `rope.py` for what lies inside a head).
Memory is reserved for all slots and used as positions are written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phobos.kernels.cpu.layout import KEY_BLOCK, KEY_TILE, round_up
from phobos.kernels.cpu.memory import PAGE, Arena
from phobos.program.steps import CacheLayer

HALF = 2  # bytes of a cached value


@dataclass(frozen=True)
class LayerCache:
    """Addresses of slot 0 of one layer, and the bytes from one slot to the next."""

    layer: CacheLayer
    keys: int
    values: int
    key_slot_bytes: int
    value_slot_bytes: int


class SlotCache:
    """All layers of all slots. Used by the backend's thread."""

    def __init__(self, layers: tuple[CacheLayer, ...], n_slots: int, n_ctx: int) -> None:
        self.n_slots = n_slots
        self._n_ctx = round_up(n_ctx, KEY_BLOCK)
        sizes = [(self._slot_bytes(x.n_kv_heads, x.k_dim), self._slot_bytes(x.n_kv_heads, x.v_dim)) for x in layers]
        self._arena = Arena(n_slots * sum(k + v for k, v in sizes) + PAGE, huge=False)
        self.layers = tuple(
            LayerCache(layer, self._arena.take(n_slots * k, PAGE), self._arena.take(n_slots * v, PAGE), k, v)
            for layer, (k, v) in zip(layers, sizes, strict=True)
        )
        self.n_bytes = self._arena.n_bytes

    def _slot_bytes(self, n_heads: int, dim: int) -> int:
        """A multiple of the page, and of the heads, so that heads are evenly spaced and slots can be given back."""
        head = HALF * self._n_ctx * dim
        total = n_heads * head
        while total % PAGE:
            total += n_heads * HALF * KEY_BLOCK * dim
        return total

    def _parts(self, slot: int, n_rows: int) -> Iterator[npt.NDArray[np.uint8]]:
        """The bytes of a slot's first `n_rows` positions: [n_kv_heads, bytes] of keys, then of values, a layer."""
        for cache in self.layers:
            n_heads = cache.layer.n_kv_heads
            for base, slot_bytes, n_bytes in (
                (cache.keys, cache.key_slot_bytes, round_up(n_rows, KEY_TILE) * cache.layer.k_dim * HALF),
                (cache.values, cache.value_slot_bytes, n_rows * cache.layer.v_dim * HALF),
            ):
                whole = self._arena.view(base + slot * slot_bytes, slot_bytes)
                yield whole.reshape(n_heads, slot_bytes // n_heads)[:, :n_bytes]

    def copy(self, source: int, target: int, n_rows: int) -> None:
        """Copy a slot's first `n_rows` positions."""
        for from_bytes, to_bytes in zip(self._parts(source, n_rows), self._parts(target, n_rows), strict=True):
            to_bytes[:] = from_bytes

    def copy_within(self, slot: int, source: int, target: int, n_rows: int) -> None:
        """Copy the `n_rows` positions of a slot from `source` on to `target`; both are multiples of `KEY_BLOCK`."""
        for cache in self.layers:
            for base, slot_bytes, dim in (
                (cache.keys, cache.key_slot_bytes, cache.layer.k_dim),
                (cache.values, cache.value_slot_bytes, cache.layer.v_dim),
            ):
                heads = self._arena.view(base + slot * slot_bytes, slot_bytes).reshape(cache.layer.n_kv_heads, -1)
                n_bytes, row = round_up(n_rows, KEY_TILE) * dim * HALF, dim * HALF
                heads[:, target * row : target * row + n_bytes] = heads[:, source * row : source * row + n_bytes]

    def save(self, slot: int, n_rows: int) -> bytes:
        """A slot's first `n_rows` positions, layer after layer."""
        return b"".join(part.tobytes() for part in self._parts(slot, n_rows))

    def restore(self, slot: int, n_rows: int, data: bytes) -> None:
        """The inverse of `save`."""
        parts = list(self._parts(slot, n_rows))
        if len(data) != sum(part.size for part in parts):
            raise ValueError(f"{len(data)} bytes are not the state of {n_rows} positions")
        start = 0
        for part in parts:
            part[:] = np.frombuffer(data, np.uint8, part.size, start).reshape(part.shape)
            start += part.size

    def release(self, slot: int) -> None:
        """Give a slot's memory back."""
        for cache in self.layers:
            self._arena.forget(cache.keys + slot * cache.key_slot_bytes, cache.key_slot_bytes)
            self._arena.forget(cache.values + slot * cache.value_slot_bytes, cache.value_slot_bytes)
