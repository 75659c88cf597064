"""The memory of the kernels: taken as it is written, on huge pages where wanted, and given back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from phobos.kernels.cpu.memory import PAGE, Arena

MAPS = Path("/proc/self/smaps")
needs_maps = pytest.mark.skipif(not MAPS.exists(), reason="this system does not tell what a mapping takes")


def taken(arena: Arena, what: str = "Rss") -> int:
    """Bytes of the arena's mapping that are in memory."""
    for block in re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", MAPS.read_text()):
        bounds = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", block)
        if bounds and int(bounds[1], 16) <= arena.address < int(bounds[2], 16):
            return int(re.search(rf"(?m)^{what}: +(\d+) kB", block)[1]) * 1024  # type: ignore[index]
    raise AssertionError("the arena has no mapping")


def test_pieces_are_apart_and_end_somewhere() -> None:
    arena = Arena(3 * PAGE)
    first, second = arena.take(100), arena.take(100)
    assert first % 64 == second % 64 == 0 and second >= first + 100
    arena.view(second, 100)[:] = 7
    assert not arena.view(first, 100).any()
    with pytest.raises(MemoryError, match="no 12288 left"):
        arena.take(3 * PAGE)


@needs_maps
def test_pages_are_taken_as_they_are_written_and_given_back() -> None:
    arena = Arena(1024 * PAGE, huge=False)
    before = taken(arena)
    arena.view(arena.address + 100 * PAGE, 50 * PAGE)[:] = 1
    assert taken(arena) == before + 50 * PAGE
    arena.forget(arena.address + 110 * PAGE, 40 * PAGE)
    assert taken(arena) == before + 10 * PAGE
    assert not arena.view(arena.address + 110 * PAGE, 40 * PAGE).any()


@needs_maps
def test_large_arenas_lie_on_huge_pages_where_the_system_has_them() -> None:
    switch = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not switch.exists() or "[never]" in switch.read_text():
        pytest.skip("this system has no huge pages to give")
    arena = Arena(16 << 20)
    arena.bytes[:] = 1
    assert taken(arena, "AnonHugePages") > 0
