"""The memory of the kernels: taken as it is written, on huge pages where wanted, and given back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mapped import needs_pages, taken_bytes
from phobos.kernels.cpu.memory import PAGE, Arena


def test_pieces_are_apart_and_end_somewhere() -> None:
    arena = Arena(3 * PAGE)
    first, second = arena.take(100), arena.take(100)
    assert first % 64 == second % 64 == 0 and second >= first + 100
    arena.view(second, 100)[:] = 7
    assert not arena.view(first, 100).any()
    with pytest.raises(MemoryError, match="no 12288 left"):
        arena.take(3 * PAGE)


@needs_pages
def test_pages_are_taken_as_they_are_written_and_given_back() -> None:
    arena = Arena(1024 * PAGE, huge=False)
    before = taken_bytes(arena.address, arena.n_bytes)
    arena.view(arena.address + 100 * PAGE, 50 * PAGE)[:] = 1
    assert taken_bytes(arena.address, arena.n_bytes) == before + 50 * PAGE
    arena.forget(arena.address + 110 * PAGE, 40 * PAGE)
    assert taken_bytes(arena.address, arena.n_bytes) == before + 10 * PAGE
    assert not arena.view(arena.address + 110 * PAGE, 40 * PAGE).any()


@needs_pages
@pytest.mark.parametrize("huge", [True, False])
def test_large_arenas_ask_for_huge_pages_where_they_have_effect(huge: bool) -> None:
    """Of a private mapping: of a shared one the advice is kept and not followed."""
    if not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("this system has no huge pages to give")
    arena = Arena(16 << 20, huge=huge)
    for block in re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
        bounds = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+)", block)
        if bounds and int(bounds[1], 16) <= arena.address < int(bounds[2], 16):
            assert bounds[3] == "rw-p"
            assert (" hg" in block.partition("VmFlags:")[2]) is huge
            return
    raise AssertionError("the arena has no mapping")
