"""The bytes of the cache slots: where each layer's keys and values lie, and copies between slots.

A slot of a layer is [n_kv_heads][n_ctx] of keys, then the same of values, in tiles of `KEY_TILE` positions (see
`attention_tile.py` for what lies inside).
Addresses are reserved for all slots; memory is taken page by page as positions are written, and given back from the end
of what a slot holds. Zeros or older positions stand behind that end: nothing reads them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phobos.kernels.cpu.layout import CACHE_TILE_BYTES, KEY_BLOCK, KEY_TILE, round_up
from phobos.kernels.cpu.memory import PAGE, Arena
from phobos.program.steps import CacheLayer


@dataclass(frozen=True)
class LayerCache:
    """Addresses of slot 0 of one layer, and the bytes from one slot to the next."""

    layer: CacheLayer
    keys: int
    values: int
    key_slot_bytes: int
    value_slot_bytes: int


@dataclass(frozen=True)
class Region:
    """Where slot 0 keeps one layer's keys or values: heads `head_bytes` apart, slots `n_heads` times that; `unit`
    positions of a head, `unit_bytes`, are written together."""

    start: int
    n_heads: int
    head_bytes: int
    unit: int
    unit_bytes: int

    @property
    def slot_bytes(self) -> int:
        """From one slot to the next."""
        return self.n_heads * self.head_bytes

    def used_bytes(self, n_rows: int) -> int:
        """Bytes of a head that `n_rows` positions fill."""
        return round_up(n_rows, self.unit) // self.unit * self.unit_bytes


class SlotCache:
    """All layers of all slots. Used by the backend's thread."""

    def __init__(
        self, layers: tuple[CacheLayer, ...], n_slots: int, n_ctx: int, k_format: str = "f16", v_format: str = "f16"
    ) -> None:
        self.n_slots = n_slots
        self.formats = f"{k_format}_{v_format}"  # as kernels that read or write the cache are called
        self._n_ctx = round_up(n_ctx, KEY_BLOCK)
        k_tile, v_tile = CACHE_TILE_BYTES[k_format], CACHE_TILE_BYTES[v_format]
        sizes = [
            (self._slot_bytes(x.n_kv_heads, x.k_dim * k_tile), self._slot_bytes(x.n_kv_heads, x.v_dim * v_tile))
            for x in layers
        ]
        self._arena = Arena(n_slots * sum(k + v for k, v in sizes) + PAGE, huge=False)
        self.layers = tuple(
            LayerCache(layer, self._arena.take(n_slots * k, PAGE), self._arena.take(n_slots * v, PAGE), k, v)
            for layer, (k, v) in zip(layers, sizes, strict=True)
        )
        self._regions = tuple(region for cache in self.layers for region in _regions(cache, k_tile, v_tile))
        self._alike = Counter((r.n_heads, r.head_bytes, r.unit, r.unit_bytes) for r in self._regions)
        self._n_rows = [0] * n_slots  # positions ever written since the slot was last cut back

    def _slot_bytes(self, n_heads: int, tile_bytes: int) -> int:
        """A multiple of the page, and of the heads, so that heads are evenly spaced and slots can be given back."""
        total = n_heads * self._n_ctx // KEY_TILE * tile_bytes
        while total % PAGE:
            total += n_heads * KEY_BLOCK // KEY_TILE * tile_bytes
        return total

    def note_rows(self, slots: Iterable[int], places: Iterable[int]) -> None:
        """Rows are about to be written at these places."""
        for slot, place in zip(slots, places, strict=True):
            self._n_rows[slot] = max(self._n_rows[slot], place + 1)

    def slot_bytes(self, n_rows: int) -> int:
        """The most a slot of `n_rows` positions takes, in whole pages."""
        total = 0
        for (n_heads, head_bytes, unit, unit_bytes), n_regions in self._alike.items():
            used = round_up(n_rows, unit) // unit * unit_bytes
            spare = 0 if head_bytes % PAGE == 0 or used == 0 else PAGE  # a head that begins inside a page
            total += n_regions * min(n_heads * head_bytes, n_heads * (round_up(used, PAGE) + spare))
        return total

    @property
    def n_bytes(self) -> int:
        """What all slots take now."""
        return sum(map(self.slot_bytes, self._n_rows))

    def _parts(self, slot: int, n_rows: int) -> Iterator[npt.NDArray[np.uint8]]:
        """The bytes of a slot's first `n_rows` positions: [n_kv_heads, bytes] of keys, then of values, a layer."""
        for region in self._regions:
            whole = self._arena.view(region.start + slot * region.slot_bytes, region.slot_bytes)
            yield whole.reshape(region.n_heads, region.head_bytes)[:, : region.used_bytes(n_rows)]

    def copy(self, source: int, target: int, n_rows: int) -> None:
        """Copy a slot's first `n_rows` positions."""
        for from_bytes, to_bytes in zip(self._parts(source, n_rows), self._parts(target, n_rows), strict=True):
            to_bytes[:] = from_bytes
        self._n_rows[target] = max(self._n_rows[target], n_rows)

    def copy_within(self, slot: int, source: int, target: int, n_rows: int) -> None:
        """Copy the `n_rows` positions of a slot from `source` on to `target`; both are multiples of `KEY_BLOCK`."""
        for region in self._regions:
            whole = self._arena.view(region.start + slot * region.slot_bytes, region.slot_bytes)
            heads = whole.reshape(region.n_heads, region.head_bytes)
            n_bytes, to, start = (region.used_bytes(n) for n in (n_rows, target, source))
            heads[:, to : to + n_bytes] = heads[:, start : start + n_bytes]
        self._n_rows[slot] = max(self._n_rows[slot], target + n_rows)

    def save(self, slot: int, n_rows: int) -> bytes:
        """A slot's first `n_rows` positions, layer after layer."""
        return b"".join(head.data for part in self._parts(slot, n_rows) for head in part)

    def restore(self, slot: int, n_rows: int, data: bytes, n_saved: int) -> None:
        """Of `n_saved` saved positions the first `n_rows`."""
        shapes = [(region.n_heads, region.used_bytes(n_saved)) for region in self._regions]
        if not 0 <= n_rows <= min(n_saved, self._n_ctx) or len(data) != sum(heads * used for heads, used in shapes):
            raise ValueError(f"{len(data)} bytes are not the state of {n_saved} positions")
        start = 0
        for part, shape in zip(self._parts(slot, n_rows), shapes, strict=True):
            saved = np.frombuffer(data, np.uint8, shape[0] * shape[1], start).reshape(shape)
            part[:] = saved[:, : part.shape[1]]
            start += saved.size
        self._n_rows[slot] = max(self._n_rows[slot], n_rows)

    def release(self, slot: int, keep: int) -> None:
        """Give the memory of a slot's positions from `keep` on back."""
        if self._n_rows[slot] <= keep:
            return
        for region in self._regions:
            start = region.start + slot * region.slot_bytes
            if keep == 0:
                self._arena.forget(start, region.slot_bytes)
                continue
            for head in range(region.n_heads):
                at = start + head * region.head_bytes
                first, last = round_up(at + region.used_bytes(keep), PAGE), at + region.head_bytes
                written = round_up(at + region.used_bytes(self._n_rows[slot]), PAGE)
                last = min(last // PAGE * PAGE, written)
                if first < last:
                    self._arena.forget(first, last - first)
        self._n_rows[slot] = keep


def _regions(cache: LayerCache, k_tile: int, v_tile: int) -> tuple[Region, Region]:
    """Keys and values; tiles take `k_tile` and `v_tile` bytes a dimension. Halves of values are written one by one."""
    layer = cache.layer
    n_heads = layer.n_kv_heads
    is_plain = v_tile == CACHE_TILE_BYTES["f16"]
    unit, unit_bytes = (1, v_tile // KEY_TILE * layer.v_dim) if is_plain else (KEY_TILE, v_tile * layer.v_dim)
    return (
        Region(cache.keys, n_heads, cache.key_slot_bytes // n_heads, KEY_TILE, k_tile * layer.k_dim),
        Region(cache.values, n_heads, cache.value_slot_bytes // n_heads, unit, unit_bytes),
    )
