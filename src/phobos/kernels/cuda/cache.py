"""The bytes of the cache slots on a card, and copies between slots.

A layer's keys are [slot][head][position][k_dim] halves or codes, tiled as `layout.py` says, its values the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from phobos.kernels.cuda.card import Card
from phobos.kernels.cuda.layout import CACHE_TILE_BYTES, KEY_TILE
from phobos.program.steps import CacheLayer

Formats = tuple[str, str]  # of cached keys and values


@dataclass(frozen=True)
class LayerCache:
    """Addresses of slot 0 of one layer, and the bytes from head to head and slot to slot."""

    keys: int
    values: int
    key_head: int
    value_head: int
    key_slot: int
    value_slot: int


def head_bytes(layer: CacheLayer, formats: Formats, n_rows: int) -> tuple[int, int]:
    """Bytes of a head's keys and of its values at so many positions: whole tiles."""
    n_tiles = -(-n_rows // KEY_TILE)
    key_tile, value_tile = (CACHE_TILE_BYTES[name] for name in formats)
    return n_tiles * key_tile * layer.k_dim, n_tiles * value_tile * layer.v_dim


def cache_bytes(layers: tuple[CacheLayer, ...], n_slots: int, n_ctx: int, formats: Formats) -> int:
    """Bytes of all slots of all layers."""
    return n_slots * sum(layer.n_kv_heads * sum(head_bytes(layer, formats, n_ctx)) for layer in layers)


class SlotCache:
    """All layers of all slots. Used by the backend's thread."""

    def __init__(
        self, card: Card, layers: tuple[CacheLayer, ...], n_slots: int, n_ctx: int, formats: Formats = ("f16", "f16")
    ) -> None:
        self._card = card
        self._layers = layers
        self.formats = formats
        self.n_bytes = cache_bytes(layers, n_slots, n_ctx, formats)
        self.layers = tuple(self._allocate(layer, n_slots, n_ctx) for layer in layers)

    def _allocate(self, layer: CacheLayer, n_slots: int, n_ctx: int) -> LayerCache:
        heads = head_bytes(layer, self.formats, n_ctx)
        slots = [layer.n_kv_heads * head for head in heads]
        keys, values = (self._card.allocate(n_slots * slot) for slot in slots)
        return LayerCache(keys, values, *heads, *slots)

    def _parts(self, slot: int, n_rows: int) -> Iterator[tuple[int, int]]:
        """(address, bytes) of a slot's first `n_rows` positions: each layer's keys by head, then its values."""
        for layer, cache in zip(self._layers, self.layers, strict=True):
            n_keys, n_values = head_bytes(layer, self.formats, n_rows)
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
            before, behind, moved = (head_bytes(layer, self.formats, n) for n in (source, target, n_rows))
            for i, (start, head_step, slot_step) in enumerate(
                ((cache.keys, cache.key_head, cache.key_slot), (cache.values, cache.value_head, cache.value_slot))
            ):
                for head in range(layer.n_kv_heads):
                    at = start + slot * slot_step + head * head_step
                    self._card.copy(at + behind[i], at + before[i], moved[i])

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
