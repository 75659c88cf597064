"""Measures the machine's own limits with the kernels of `probe.py`, and remembers them beside the kernels' code."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from phobos.kernels.cpu.compiling.compiler import cache_folder, encode_record, load_kernels
from phobos.kernels.cpu.memory import Arena
from phobos.kernels.cpu.names import Named, probe
from phobos.kernels.cpu.team import Team

REGION_BYTES = 512 << 20
TURNS = 2_000_000
REPEATS = 5
OPERATIONS_A_TURN = 12 * 64 * 2  # `probe.multiply_codes`: chains of 64 multiply-adds


@dataclass(frozen=True)
class MachineLimits:
    """GB read from memory a second, and 10⁹ int8 operations a second (a multiply and an add count two)."""

    read_gbs: float
    int8_gops: float


def measure_limits(n_threads: int) -> MachineLimits:
    """The best of a few runs, about a second in all. The best result is remembered: others may have been disturbed."""
    region = Arena(REGION_BYTES)
    region.bytes[:] = 1
    out = np.zeros(64 * (n_threads + 1), np.uint8)
    spare = out.ctypes.data + -out.ctypes.data % 64
    read_s = _best(probe.read_memory, (spare, region.address, REGION_BYTES), n_threads)
    multiply_s = _best(probe.multiply_codes, (spare, region.address, TURNS), n_threads)
    operations = OPERATIONS_A_TURN * TURNS * n_threads
    limits = MachineLimits(REGION_BYTES / read_s / 1e9, operations / multiply_s / 1e9)
    path = _memory_of(n_threads)
    if path is not None and limits.read_gbs > (remembered_read_gbs(n_threads) or 0.0):
        with contextlib.suppress(OSError):
            path.write_text(json.dumps(asdict(limits)), encoding="utf-8")
    return limits


def remembered_read_gbs(n_threads: int) -> float | None:
    """GB so many threads read a second, as measured on this machine; None where it never was."""
    path = _memory_of(n_threads)
    try:
        read_gbs = json.loads(path.read_text(encoding="utf-8"))["read_gbs"] if path is not None else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return float(read_gbs) if isinstance(read_gbs, int | float) and read_gbs > 0 else None


def _memory_of(n_threads: int) -> Path | None:
    folder = cache_folder()
    return None if folder is None else folder / f"limits-{n_threads}.json"


def _best(kernel: Named, arguments: tuple[int, ...], n_threads: int) -> float:
    """Seconds of the fastest of `REPEATS` runs by a whole team."""
    record = np.frombuffer(encode_record(load_kernels([kernel.name])[kernel.name], 0, arguments), np.int64).copy()
    team = Team(n_threads, record.ctypes.data, 1)
    try:
        best = float("inf")
        for _ in range(REPEATS):
            started = time.perf_counter()
            team.run()
            best = min(best, time.perf_counter() - started)
        return best
    finally:
        team.close()
