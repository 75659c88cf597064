"""Files that hold what people wrote: their owner's alone, whatever the process's mask says."""

from __future__ import annotations

import os
from pathlib import Path


def open_private(path: str, flags: int) -> int:
    """The `opener` of `open` for such a file: made readable by its owner only."""
    return os.open(path, flags, 0o600)


def make_private_folder(path: Path) -> None:
    """Make a folder, and those above it, that only its owner can enter; those that are there stay as they are."""
    for folder in (*reversed(path.parents), path):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
