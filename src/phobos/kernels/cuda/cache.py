"""The bytes of the cache slots on a card, and copies between slots.

A layer's keys are [slot][head][position][k_dim] halves, tiled as `layout.py` says; its values the same, untiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from phobos.kernels.cuda.card import Card
from phobos.kernels.cuda.layout import KEY_TILE, round_up
from phobos.program.steps import CacheLayer

HALF = 2  # bytes of a cached value


@dataclass(frozen=True)
class LayerCache:
    """Addresses of slot 0 of one layer, and the bytes from head to head and slot to slot."""

    keys: int
    values: int
    key_head: int
    value_head: int
    key_slot: int
    value_slot: int


def cache_bytes(layers: tuple[CacheLayer, ...], n_slots: int, n_ctx: int) -> int:
    """Bytes of all slots of all layers."""
    rows = n_slots * round_up(n_ctx, KEY_TILE)
    return HALF * rows * sum(layer.n_kv_heads * (layer.k_dim + layer.v_dim) for layer in layers)


class SlotCache:
    """All layers of all slots. Used by the backend's thread."""

    def __init__(self, card: Card, layers: tuple[CacheLayer, ...], n_slots: int, n_ctx: int) -> None:
        self._card = card
        self._layers = layers
        self.n_bytes = cache_bytes(layers, n_slots, n_ctx)
        rows = round_up(n_ctx, KEY_TILE)
        self.layers = tuple(self._allocate(layer, n_slots, rows) for layer in layers)

    def _allocate(self, layer: CacheLayer, n_slots: int, rows: int) -> LayerCache:
        heads = (HALF * rows * layer.k_dim, HALF * rows * layer.v_dim)
        slots = [layer.n_kv_heads * head for head in heads]
        keys, values = (self._card.allocate(n_slots * slot) for slot in slots)
        return LayerCache(keys, values, *heads, *slots)

    def _parts(self, slot: int, n_rows: int) -> Iterator[tuple[int, int]]:
        """(address, bytes) of a slot's first `n_rows` positions: each layer's keys by head, then its values."""
        for layer, cache in zip(self._layers, self.layers, strict=True):
            n_keys = HALF * round_up(n_rows, KEY_TILE) * layer.k_dim
            n_values = HALF * n_rows * layer.v_dim
            for head in range(layer.n_kv_heads):
                yield cache.keys + slot * cache.key_slot + head * cache.key_head, n_keys
            for head in range(layer.n_kv_heads):
                yield cache.values + slot * cache.value_slot + head * cache.value_head, n_values

    def copy(self, source: int, target: int, n_rows: int) -> None:
        """Copy a slot's first `n_rows` positions."""
        for (start, n_bytes), (end, _) in zip(self._parts(source, n_rows), self._parts(target, n_rows), strict=True):
            self._card.copy(end, start, n_bytes)

    def copy_within(self, slot: int, source: int, target: int, n_rows: int) -> None:
        """Copy the `n_rows` positions of a slot from `source` on to `target`, multiples of `KEY_TILE`."""
        for layer, cache in zip(self._layers, self.layers, strict=True):
            for start, head_bytes, slot_bytes, row, n in (
                (cache.keys, cache.key_head, cache.key_slot, HALF * layer.k_dim, round_up(n_rows, KEY_TILE)),
                (cache.values, cache.value_head, cache.value_slot, HALF * layer.v_dim, n_rows),
            ):
                for head in range(layer.n_kv_heads):
                    at = start + slot * slot_bytes + head * head_bytes
                    self._card.copy(at + target * row, at + source * row, n * row)

    def save(self, slot: int, n_rows: int) -> bytes:
        """A slot's first `n_rows` positions, layer after layer."""
        pieces = []
        for address, n_bytes in self._parts(slot, n_rows):
            piece = np.empty(n_bytes, np.uint8)
            self._card.download(address, piece)
            pieces.append(piece.tobytes())
        return b"".join(pieces)

    def restore(self, slot: int, n_rows: int, data: bytes, n_saved: int) -> None:
        """Put back the first `n_rows` of the `n_saved` positions that `save` made `data` of."""
        if not 0 <= n_rows <= n_saved:
            raise ValueError(f"{n_rows} positions are not among {n_saved}")
        saved = list(self._parts(slot, n_saved))
        if len(data) != sum(n_bytes for _, n_bytes in saved):
            raise ValueError(f"{len(data)} bytes are not the state of {n_saved} positions")
        whole, start = np.frombuffer(data, np.uint8), 0
        for (address, n_bytes), (_, n_held) in zip(self._parts(slot, n_rows), saved, strict=True):
            if n_bytes:
                self._card.upload(address, whole[start : start + n_bytes])
            start += n_held
        self._card.synchronize()

    def slot_bytes(self, n_rows: int) -> int:
        """Bytes of a slot's first `n_rows` positions."""
        return sum(n_bytes for _, n_bytes in self._parts(0, n_rows))
