"""The user's own folders for Phobos, where each system keeps such things; they need not exist yet."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def data_dir() -> Path:
    """What was fetched and is worth keeping: models."""
    return _folder("XDG_DATA_HOME", ".local/share")


def state_dir() -> Path:
    """What the programs remember between runs: the chat's history, running servers, their logs."""
    return _folder("XDG_STATE_HOME", ".local/state")


def _folder(variable: str, below_home: str) -> Path:
    if sys.platform == "win32":
        root = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local")
    elif sys.platform == "darwin":
        root = Path.home() / "Library/Application Support"
    else:
        root = Path(os.environ.get(variable) or Path.home() / below_home)
    return root / "phobos"
