"""Memory the kernels work in: large anonymous mappings, zero until written and taken page by page as they are.

Mappings are private: the system puts only those on huge pages, and only of those it takes pages back.
"""

from __future__ import annotations

import mmap
import sys

import numpy as np
import numpy.typing as npt

from phobos.kernels.cpu.guards import GuardedPieces, guarded_side
from phobos.kernels.cpu.layout import LINE, round_up

PAGE = mmap.PAGESIZE


# More addresses than there is memory are reserved for conversations; what is written is bounded elsewhere.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


def _map(n_bytes: int) -> mmap.mmap:
    if hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    return mmap.mmap(-1, n_bytes)


class Arena:
    """A mapping that is handed out piece by piece, each on a cache line of its own. Owned by the backend.

    `huge`: on huge pages where the system has them; else in pages of `PAGE` bytes, so that little is taken for little.
    """

    def __init__(self, n_bytes: int, *, huge: bool = True) -> None:
        self.n_bytes = round_up(max(n_bytes, 1), PAGE)
        side = guarded_side()
        self._guarded = GuardedPieces(side) if side is not None else None
        self._mapping = _map(self.n_bytes)
        if huge and hasattr(mmap, "MADV_HUGEPAGE"):
            self._mapping.madvise(mmap.MADV_HUGEPAGE)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self._mapping, np.uint8)
        self.address = int(self.bytes.ctypes.data)
        self._used = 0

    def take(self, n_bytes: int, align: int = LINE) -> int:
        """Address of the next `n_bytes`."""
        start = round_up(self._used, align)
        if start + n_bytes > self.n_bytes:
            raise MemoryError(f"an arena of {self.n_bytes} bytes has no {n_bytes} left")
        self._used = start + n_bytes
        if self._guarded is not None:
            return self._guarded.take(n_bytes, align)
        return self.address + start

    def view(self, address: int, n_bytes: int) -> npt.NDArray[np.uint8]:
        """The bytes at an address."""
        if self._guarded is not None:
            return self._guarded.view(address, n_bytes)
        start = address - self.address
        return self.bytes[start : start + n_bytes]

    def forget(self, address: int, n_bytes: int) -> None:
        """Give whole pages back to the system; they read as zero afterwards."""
        if self._guarded is not None:
            self._guarded.forget(address, n_bytes)
            return
        if hasattr(mmap, "MADV_DONTNEED"):
            self._mapping.madvise(mmap.MADV_DONTNEED, address - self.address, n_bytes)
        else:
            self.view(address, n_bytes)[:] = 0
