"""Memory between pages that nobody may touch, for tests: `PHOBOS_GUARD_PAGES` puts every buffer there.

`after` lets each buffer end at such a page, `before` begin at one, so that a kernel that reads or writes past that end
of a buffer ends the process at once. Costs a mapping a buffer, and nothing where the variable is not set.
"""

from __future__ import annotations

import bisect
import ctypes
import mmap
import os

import numpy as np
import numpy.typing as npt

from phobos.errors import UsageError

PAGE = mmap.PAGESIZE
VARIABLE = "PHOBOS_GUARD_PAGES"
SIDES = ("after", "before")
_PROT_NONE = 0


def guarded_side() -> str | None:
    """Which end of buffers is guarded; None where none is. `UsageError` where the variable names no side."""
    side = os.environ.get(VARIABLE, "")
    if side and side not in SIDES:
        raise UsageError(f"{VARIABLE}={side} is not a side: use after or before")
    return side or None


def map_guarded(n_bytes: int, align: int, side: str) -> tuple[mmap.mmap, int]:
    """A mapping with a buffer of `n_bytes` at a guard page, and the buffer's address, a multiple of `align`."""
    n_inner = -(-max(n_bytes, 1) // PAGE) * PAGE
    mapping = mmap.mmap(-1, n_inner + 2 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    base = int(np.frombuffer(mapping, np.uint8).ctypes.data)
    libc = ctypes.CDLL(None, use_errno=True)
    for guard in (base, base + PAGE + n_inner):
        if libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(PAGE), _PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
    start = base + PAGE
    if side == "after":
        start += (n_inner - n_bytes) // align * align
    return mapping, start


def guarded_copy(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The same bytes between guard pages, where they are asked for."""
    side = guarded_side()
    if side is None:
        return data
    mapping, start = map_guarded(data.nbytes, 1, side)
    offset = start - int(np.frombuffer(mapping, np.uint8).ctypes.data)
    copy = np.frombuffer(mapping, np.uint8, data.nbytes, offset)
    copy[:] = data.reshape(-1)
    return copy


class GuardedPieces:
    """Buffers of one arena, each in a mapping of its own."""

    def __init__(self, side: str) -> None:
        self._side = side
        self._starts: list[int] = []
        self._pieces: dict[int, tuple[mmap.mmap, int, int]] = {}  # by start: mapping, address of its first byte, bytes

    def take(self, n_bytes: int, align: int) -> int:
        """Address of a new buffer."""
        mapping, start = map_guarded(n_bytes, align, self._side)
        base = int(np.frombuffer(mapping, np.uint8).ctypes.data)
        bisect.insort(self._starts, start)
        self._pieces[start] = (mapping, base, n_bytes)
        return start

    def _piece(self, address: int) -> tuple[mmap.mmap, int]:
        at = bisect.bisect_right(self._starts, address) - 1
        mapping, base, _ = self._pieces[self._starts[at]]
        return mapping, address - base

    def view(self, address: int, n_bytes: int) -> npt.NDArray[np.uint8]:
        """The bytes at an address, within one buffer."""
        mapping, offset = self._piece(address)
        return np.frombuffer(mapping, np.uint8, n_bytes, offset)

    def forget(self, address: int, n_bytes: int) -> None:
        """As `Arena.forget`."""
        mapping, offset = self._piece(address)
        mapping.madvise(mmap.MADV_DONTNEED, offset, n_bytes)
