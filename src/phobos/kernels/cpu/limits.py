"""Measures the machine's own limits with the kernels of `probe.py`, and remembers them beside the kernels' code."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from phobos.kernels.cpu.compiling.compiler import cache_folder, encode_record, load_kernels
from phobos.kernels.cpu.layout import RECORD_WORDS
from phobos.kernels.cpu.memory import Arena
from phobos.kernels.cpu.names import Named, probe
from phobos.kernels.cpu.read_ahead import CANDIDATES
from phobos.kernels.cpu.team import Team

REGION_BYTES = 512 << 20  # more than caches hold
PART_BYTES = 64 << 20  # read by a probe
PROBES = 8  # in turn with each way of reading
TURNS = 500_000
REPEATS = 10
OPERATIONS_A_TURN = 12 * 64 * 2  # `probe.multiply_codes`: chains of 64 multiply-adds


@dataclass(frozen=True)
class MachineLimits:
    """GB read from memory a second, and 10⁹ int8 operations a second (a multiply and an add count two)."""

    read_gbs: float
    int8_gops: float

    def or_better(self, other: MachineLimits) -> MachineLimits:
        """The higher ones of two measurements: the others were disturbed."""
        return MachineLimits(max(self.read_gbs, other.read_gbs), max(self.int8_gops, other.int8_gops))


class Prober:
    """Probes one machine's limits again and again, and keeps the best: others only ever disturb a probe, and how much
    they do changes from minute to minute. A context manager that owns a region and a team."""

    def __init__(self, n_threads: int, region_bytes: int | None = None) -> None:
        self._n_threads = n_threads
        self._n_bytes = region_bytes or REGION_BYTES
        self._region = Arena(self._n_bytes + CANDIDATES[-1].far)
        self._region.bytes[:] = 1
        out = np.zeros(64 * (n_threads + 1), np.uint8)
        self._out = out
        self._spare = out.ctypes.data + -out.ctypes.data % 64
        self._addresses = load_kernels([probe.read_memory.name, probe.multiply_codes.name])
        self._n_reads = 0
        self._team = Team(n_threads, 0, 0)
        self.best = MachineLimits(0.0, 0.0)

    def probe(self) -> None:
        """Some more probes: about a quarter of a second."""
        n_bytes = min(PART_BYTES, self._n_bytes)
        read_gbs, int8_gops = self.best.read_gbs, self.best.int8_gops
        for _ in range(PROBES):
            for ahead in CANDIDATES:
                at = self._region.address + self._n_reads * n_bytes % self._n_bytes
                taken_s = self._time(probe.read_memory, (self._spare, at, n_bytes, ahead.near, ahead.far))
                read_gbs = max(read_gbs, n_bytes / taken_s / 1e9)
                self._n_reads += 1
        for _ in range(REPEATS):
            taken_s = self._time(probe.multiply_codes, (self._spare, self._region.address, TURNS))
            int8_gops = max(int8_gops, OPERATIONS_A_TURN * TURNS * self._n_threads / taken_s / 1e9)
        self.best = MachineLimits(read_gbs, int8_gops)

    def _time(self, kernel: Named, arguments: tuple[int, ...]) -> float:
        record = np.frombuffer(encode_record(self._addresses[kernel.name], 0, arguments), np.int64).copy()
        assert record.size == RECORD_WORDS
        started = time.perf_counter()
        self._team.run(record.ctypes.data, 1)
        return time.perf_counter() - started

    def __enter__(self) -> Prober:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._team.close()
        _remember(self.best, self._n_threads)


def measure_limits(n_threads: int) -> MachineLimits:
    """The best of many probes, within a second."""
    with Prober(n_threads) as prober:
        prober.probe()
        return prober.best


def _remember(limits: MachineLimits, n_threads: int) -> None:
    """Keep limits that are higher than those kept: lower ones were disturbed."""
    path = _memory_of(n_threads)
    if path is not None and limits.read_gbs > (remembered_read_gbs(n_threads) or 0.0):
        with contextlib.suppress(OSError):
            path.write_text(json.dumps(asdict(limits)), encoding="utf-8")


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
