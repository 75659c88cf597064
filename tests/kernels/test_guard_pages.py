"""No kernel reads or writes beside its buffers: all families and types, prompts and decoding, batches and reuse, with
every buffer at a page that ends the process when it is touched. See `guards.py`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hostile_files import NAMES
from models.tiny_models import PACKED_TYPES, RARE_TYPES, SMALL_TYPES
from phobos.errors import UsageError
from phobos.kernels.cpu.guards import SIDES, VARIABLE, guarded_copy, guarded_side
from phobos.kernels.cpu.memory import PAGE, Arena

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="guard pages are set by Linux's mprotect")
ROOT = Path(__file__).parents[1]
MIXED = "Q4_K,Q8_0,Q6_K,Q5_1,Q4_0,F16"
TYPES = (*PACKED_TYPES, *SMALL_TYPES, *RARE_TYPES)
CASES = (
    *(f"{name}/{kinds}/f16/f16" for name in NAMES for kinds in ("F32", MIXED)),
    *(f"{name}/{kind.name}/f16/f16" for kind in TYPES for name in ("llama", "mixtral")),
    *(f"{name}/{MIXED}/{k}/{v}" for name in ("llama", "gemma3") for k in ("f16", "q8_0") for v in ("f16", "q8_0")),
)


def run_guarded(side: str, *arguments: str, timeout_s: float = 1200) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, VARIABLE: side, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, check=False, env=environment, capture_output=True, text=True, timeout=timeout_s, cwd=ROOT
    )


OVERRUN = """
import ctypes
from phobos.kernels.cpu.memory import Arena
arena = Arena(1 << 20)
pieces = [arena.take(640) for _ in range(3)]
arena.view(pieces[1], 640)[:] = 1
print("inside", flush=True)
ctypes.memset({at}, 1, 1)
print("outside", flush=True)
"""


@pytest.mark.parametrize(("side", "at"), [("after", "pieces[1] + 640"), ("before", "pieces[1] - 1")])
def test_a_byte_beside_a_buffer_ends_the_process(side: str, at: str) -> None:
    done = run_guarded(side, "-c", OVERRUN.format(at=at), timeout_s=60)
    assert done.stdout == "inside\n" and done.returncode == -signal.SIGSEGV


def test_guarded_memory_is_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.arange(100, dtype=np.uint8)
    assert guarded_side() is None and guarded_copy(data) is data
    for side in SIDES:
        monkeypatch.setenv(VARIABLE, side)
        arena = Arena(4 * PAGE)
        first, second = arena.take(100), arena.take(2 * PAGE, PAGE)
        assert first % 64 == 0 and second % PAGE == 0
        arena.view(first + 30, 70)[:] = 7
        assert arena.view(first, 100).sum() == 490
        arena.view(second, 2 * PAGE)[:] = 1
        arena.forget(second + PAGE, PAGE)
        assert arena.view(second, 2 * PAGE).sum() == PAGE
        assert (guarded_copy(data) == data).all()
        with pytest.raises(MemoryError):
            arena.take(4 * PAGE)
    monkeypatch.setenv(VARIABLE, "inside")
    with pytest.raises(UsageError, match="after or before"):
        guarded_side()


@pytest.mark.slow
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("part", range(0, len(CASES), 10))
def test_no_kernel_reaches_beside_its_buffers(side: str, part: int) -> None:
    cases = CASES[part : part + 10]
    done = run_guarded(side, "guarded_runs.py", *cases)
    held = [line.removeprefix("held ") for line in done.stdout.splitlines() if line.startswith("held ")]
    assert done.returncode == 0, f"{done.stdout[-300:]}\n{done.stderr[-3000:]}"
    assert held == list(cases)
