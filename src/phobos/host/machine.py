"""What this machine has: processor, cores, memory, as the system tells; unknown is `None`."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60  # version 1 control groups write a huge number for "no limit"


@dataclass(frozen=True)
class Memory:
    """Bytes: what is there, what a new program can take, and whether a container's limit (not the machine) says so."""

    total: int | None
    available: int | None
    limited: bool = False


def read_memory(proc: Path = Path("/proc"), cgroup: Path = _CGROUP) -> Memory:
    """Memory of the machine or of the container this runs in, whichever is less."""
    facts = _meminfo(proc / "meminfo")
    total, available = facts.get("MemTotal"), facts.get("MemAvailable")
    if total is None and sys.platform != "win32":
        try:
            total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (ValueError, OSError):
            total = None
    limit, used = _cgroup_memory(cgroup)
    if limit is None or limit >= min(total or limit, _UNLIMITED):
        return Memory(total, available)
    free = max(0, limit - (used or 0))
    return Memory(limit, free if available is None else min(available, free), limited=True)


def release_free_memory() -> None:
    """Give back to the system what the C library keeps of memory that was freed, where it can; takes milliseconds."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def _meminfo(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    facts = {}
    for line in lines:
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            facts[name] = int(words[0]) * 1024
    return facts


def _cgroup_memory(root: Path) -> tuple[int | None, int | None]:
    """The limit and what counts against it (without the file cache, which gives way)."""
    for limit_name, used_name, stat_name, cache_name in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
    ):
        limit = _number(root / limit_name)
        if limit is None:
            continue
        used = _number(root / used_name) or 0
        return limit, max(0, used - _stat_value(root / stat_name, cache_name))
    return None, None


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _stat_value(path: Path, name: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(name + " ")), 0)


def n_usable_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """What the processor calls itself."""
    try:
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown"
