"""The team: passes after its workers have parked, long waits, and kernels from the cache in a process without Numba."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from assembly import assembly_of
from one_op import OneOp, loaded, make_batch, random
from phobos.gguf.quants import GGMLType
from phobos.kernels.cpu.team import KERNELS, PARK_AFTER_S, Team
from phobos.program.steps import Buffer, RmsNorm


def make_norms(folder: Path, n_threads: int):  # type: ignore[no-untyped-def]
    """Ten steps, each waiting for the one before."""
    x = Buffer("x", 64)
    ops = tuple(RmsNorm(x, x, "w", 1e-6, x) for _ in range(10))
    one = OneOp({"x": random(1, 40, 64)}, ops, x, {"w": (GGMLType.F32, random(2, 64))})
    return loaded(one, folder, "cpu", n_threads=n_threads)


@pytest.mark.parametrize("n_threads", [1, 2, 4])
def test_passes_after_parking(tmp_path: Path, n_threads: int) -> None:
    """Pauses around the time a worker spins before it parks: no pass is lost, whichever side of it comes first."""
    with make_norms(tmp_path, n_threads) as backend:
        want = backend.run(make_batch(range(30))).copy()
        for share in (0, 0.3, 0.8, 1, 1.2, 3, 30) * 4:
            time.sleep(share * PARK_AFTER_S)
            assert np.array_equal(backend.run(make_batch(range(30))), want)


def test_workers_stay_between_passes(tmp_path: Path) -> None:
    """Who parks comes back by way of the interpreter, which the caller needs just then."""
    with make_norms(tmp_path, 2) as backend:
        backend.run(make_batch(range(30)))
        team, n_returned = backend._team, 0
        serve = team._serve

        def count(*arguments: int) -> None:
            nonlocal n_returned
            serve(*arguments)
            n_returned += 1

        team._serve = count
        time.sleep(2 * PARK_AFTER_S)  # what still runs is the uncounted one
        for _ in range(60):
            backend.run(make_batch(range(30)))
            until_s = time.perf_counter() + PARK_AFTER_S / 3
            while time.perf_counter() < until_s:
                pass
        assert n_returned < 30  # a busy machine may hold the caller up for longer now and then


@pytest.mark.parametrize(("kernel", "loads"), [("run:announce", 0), ("run:park", 1)])
def test_passes_are_announced_and_seen_in_order_on_arm(kernel: str, loads: int) -> None:
    """A plain store of the pass's number could be seen before what the pass is, and a look for parked workers before
    the store."""
    assembly = assembly_of("neon", kernel)
    assert len(re.findall(r"\tldar\t", assembly)) >= loads
    assert re.search(r"\tstlr\t", assembly)


def test_an_idle_team_uses_no_processor(tmp_path: Path) -> None:
    with make_norms(tmp_path, 3) as backend:
        backend.run(make_batch(range(30)))
        time.sleep(0.3)
        before = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - before < 0.05


def test_closing_ends_the_threads(tmp_path: Path) -> None:
    def workers() -> int:
        return sum(thread.name.startswith("phobos-kernel") for thread in threading.enumerate())

    before = workers()
    with make_norms(tmp_path, 3) as backend:
        assert workers() == before + 2
        backend.run(make_batch(range(3)))
    backend.close()
    assert workers() == before


def test_a_team_of_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="a team of 0 threads"):
        Team(0, 0, 0)


WITHOUT_NUMBA = """
import sys, threading, time
import numpy as np
from phobos.kernels.cpu.team import Team

team = Team(2, 0, 0)
team._control[:] = 0
team.close()
late = threading.Thread(target=lambda: (time.sleep(0.2), team._run_steps(team._record_address, 1, 2)))
late.start()
team._run_steps(team._record_address, 0, 2)  # waits for the late one, long enough to give its core away
late.join()
assert "numba" not in sys.modules, "kernels came from the compiler, not from the cache"
"""


def test_cached_kernels_run_without_numba(tmp_path: Path) -> None:
    """What object code calls outside itself must be found in a process that has never loaded Numba."""
    environment = {**os.environ, "PHOBOS_KERNEL_CACHE_DIR": str(tmp_path)}
    warm = f"from phobos.kernels.cpu.compiling.compiler import load_kernels; load_kernels({KERNELS!r})"
    for script in (warm, WITHOUT_NUMBA):
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
