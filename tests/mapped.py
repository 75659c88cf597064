"""What the system says of this process's memory, page by page: its account by mapping counts neighbours together."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

PAGES = Path("/proc/self/pagemap")
needs_pages = pytest.mark.skipif(not PAGES.exists(), reason="this system does not tell which pages are in memory")


def taken_bytes(address: int, n_bytes: int) -> int:
    """Bytes in memory of the pages that begin between `address`, the first of a page, and `n_bytes` on."""
    first, n_pages = address // mmap.PAGESIZE, -(-n_bytes // mmap.PAGESIZE)
    with PAGES.open("rb", buffering=0) as file:
        file.seek(8 * first)
        entries = np.frombuffer(file.read(8 * n_pages), np.uint64)
    assert len(entries) == n_pages
    return int((entries >> np.uint64(63)).sum()) * mmap.PAGESIZE
