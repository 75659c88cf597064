"""The memory of the slots: it grows with what they hold, is told exactly and is given back; contents move whole."""

from __future__ import annotations

import random

import numpy as np
import pytest

from mapped import needs_pages, taken_bytes
from phobos.kernels.cpu.cache import SlotCache
from phobos.kernels.cpu.memory import PAGE
from phobos.program.steps import CacheLayer

LAYERS = (CacheLayer(0, 2, 64, 64), CacheLayer(1, 1, 128, 64), CacheLayer(2, 3, 16, 32))  # the last begins inside pages
N_CTX = 700


def fill(cache: SlotCache, slot: int, n_rows: int, seed: int = 0) -> None:
    """Write a slot's first positions as a pass would."""
    cache.note_rows([slot] * n_rows, range(n_rows))
    rng = np.random.default_rng(seed)
    for part in cache._parts(slot, n_rows):
        part[:] = rng.integers(0, 256, part.shape, np.uint8)


@needs_pages
@pytest.mark.parametrize("layers", [LAYERS[:2], LAYERS], ids=["whole pages", "within pages"])
def test_what_is_taken_is_what_is_told(layers: tuple[CacheLayer, ...]) -> None:
    cache = SlotCache(layers, 3, N_CTX)
    rng = random.Random(4)
    before = taken_bytes(cache._arena.address, cache._arena.n_bytes)
    held = [0, 0, 0]
    for _ in range(40):
        slot, n_rows = rng.randrange(3), rng.choice([0, 1, 15, 16, 17, 100, 333, N_CTX])
        if n_rows > held[slot]:
            fill(cache, slot, n_rows)
        else:
            cache.release(slot, n_rows)
        held[slot] = n_rows
        told = sum(map(cache.slot_bytes, held))
        assert cache.n_bytes == told
        assert taken_bytes(cache._arena.address, cache._arena.n_bytes) - before <= told
        if len(layers) == 2:
            assert taken_bytes(cache._arena.address, cache._arena.n_bytes) - before >= told - 12 * PAGE


def test_a_slot_grows_up_to_its_whole_memory() -> None:
    cache = SlotCache(LAYERS[:2], 1, 4096)
    sizes = [cache.slot_bytes(n) for n in range(0, 4097, 64)]
    assert sizes == sorted(sizes) and sizes[0] == 0
    assert sizes[-1] == 2 * 4096 * (2 * 128 + 192)
    assert cache.slot_bytes(1) == 6 * PAGE, "a page for each head's keys and for its values"


@pytest.mark.parametrize("n_rows", [1, 16, 17, 500, N_CTX])
def test_contents_move_whole(n_rows: int) -> None:
    cache = SlotCache(LAYERS, 3, N_CTX)
    fill(cache, 0, n_rows, seed=n_rows)
    data = cache.save(0, n_rows)
    cache.copy(0, 1, n_rows)
    assert cache.save(1, n_rows) == data
    cache.release(0, 0)
    cache.restore(2, n_rows, data, n_rows)
    assert cache.save(2, n_rows) == data
    for part in cache._parts(0, n_rows):
        assert not part.any()


def test_the_first_positions_of_saved_ones() -> None:
    cache = SlotCache(LAYERS, 2, N_CTX)
    fill(cache, 0, 600, seed=1)
    cache.restore(1, 160, cache.save(0, 600), 600)
    assert cache.save(1, 160) == cache.save(0, 160)
    assert cache.slot_bytes(160) + cache.slot_bytes(600) == cache.n_bytes


def test_cutting_back_leaves_what_is_kept() -> None:
    cache = SlotCache(LAYERS, 2, N_CTX)
    fill(cache, 1, N_CTX, seed=2)
    kept = {n: cache.save(1, n) for n in (512, 160, 16, 0)}
    for n_rows, data in kept.items():
        cache.release(1, n_rows)
        assert cache.save(1, n_rows) == data
        assert cache.n_bytes == cache.slot_bytes(n_rows)


@pytest.mark.parametrize(("n_rows", "n_saved"), [(10, 11), (12, 11), (-1, 10), (10, 9), (701, 701)])
def test_what_does_not_fit_is_refused(n_rows: int, n_saved: int) -> None:
    cache = SlotCache(LAYERS, 1, N_CTX)
    fill(cache, 0, 10)
    data = cache.save(0, 10)
    with pytest.raises(ValueError, match="are not the state of"):
        cache.restore(0, n_rows, data + b"x" * (n_saved == 10), n_saved)
