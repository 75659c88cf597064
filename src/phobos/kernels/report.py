"""What `PHOBOS_VRAM` prints: the memory a backend holds, at each pass."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping


def reports_memory() -> bool:
    """Whether memory is to be printed at each pass."""
    return bool(os.environ.get("PHOBOS_VRAM"))


def print_memory(what: str, memory: Mapping[str, int]) -> None:
    """One line of megabytes by kind, on standard error."""
    parts = [f"{kind} {n_bytes / 1e6:.1f} MB" for kind, n_bytes in memory.items()]
    print(f"memory {what}: {', '.join(parts)}", file=sys.stderr, flush=True)
