"""Weights are put into place by threads beside the rest of a load: the same bytes by any number, and always an end."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from models.tiny_models import RECIPES, write_tiny_model
from phobos.archs import build_program
from phobos.errors import FileError
from phobos.gguf.quants import GGMLType
from phobos.gguf.reader import GGUF, open_gguf
from phobos.kernels.cpu import packing
from phobos.kernels.cpu.compiling.compiler import LoadedKernel, load_kernels
from phobos.kernels.cpu.packing import Packing
from phobos.kernels.cpu.weights import plan_weights


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packing") / "tiny.gguf"
    return write_tiny_model(RECIPES["qwen2"], path, (GGMLType.Q4_K, GGMLType.Q8_0))


def fill(gguf: GGUF, n_threads: int) -> tuple[np.ndarray, list[float]]:
    """The arena's bytes, and the fractions that were told."""
    weights, arena = plan_weights(gguf, build_program(gguf))
    told: list[float] = []
    with Packing(gguf, weights, arena, n_threads) as filling:
        load_kernels(filling.packers, filling.take)
        filling.wait(lambda name, fraction: told.append(fraction))
    return arena.bytes, told


def n_packing() -> int:
    return sum(thread.name.startswith("phobos-pack") for thread in threading.enumerate())


def test_the_same_bytes_by_any_number_of_threads_and_slices(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_gguf(model) as gguf:
        want, told = fill(gguf, 1)
        assert told == sorted(told) and told[-1] == 1.0
        monkeypatch.setattr(packing, "LEAST_SLICE_BYTES", 1)
        monkeypatch.setattr(packing, "SLICES_BYTES", 8192)
        for n_threads in (1, 3):
            got, finer = fill(gguf, n_threads)
            assert len(finer) > len(told)
            assert np.array_equal(got, want)
    assert n_packing() == 0


def test_what_a_thread_meets_is_raised(model: Path) -> None:
    gguf = open_gguf(model)
    weights, arena = plan_weights(gguf, build_program(gguf))
    gguf.close()
    with pytest.raises(FileError, match="closed"), Packing(gguf, weights, arena, 2) as filling:
        load_kernels(filling.packers, filling.take)
        filling.wait(lambda name, fraction: None)
    assert n_packing() == 0


def test_left_early_it_stops(model: Path) -> None:
    """As when a kernel cannot be compiled, or the user gives up."""
    with open_gguf(model) as gguf:
        weights, arena = plan_weights(gguf, build_program(gguf))
        with pytest.raises(KeyboardInterrupt), Packing(gguf, weights, arena, 2) as filling:
            for name, address in load_kernels(filling.packers).items():
                filling.take(LoadedKernel(name, address, 0.0))
            raise KeyboardInterrupt
        with Packing(gguf, weights, arena, 2):
            pass
    assert n_packing() == 0
