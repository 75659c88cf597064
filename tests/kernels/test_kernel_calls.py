"""Every call of a kernel says what the kernel's declaration says: so many arguments, integers and floats where they are
declared. For all launches of every tiny family on both devices, in float and in packed types; nothing is compiled."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.family_models import FAMILIES, write_family_model, write_quantized_twin
from models.tiny_models import PACKED_TYPES, RECIPES, write_tiny_model
from phobos.archs import build_program
from phobos.gguf.reader import GGUF, open_gguf
from phobos.kernels.backend import BackendLimits
from phobos.kernels.cpu import names as cpu_names
from phobos.kernels.cpu.cache import SlotCache
from phobos.kernels.cpu.compiling.compiler import find_kernel
from phobos.kernels.cpu.lowering.launches import BatchAddresses
from phobos.kernels.cpu.lowering.lower import Lowering
from phobos.kernels.cpu.packed_types import PACKED
from phobos.kernels.cpu.states import SlotStates
from phobos.kernels.cpu.team import KERNELS as TEAM_KERNELS
from phobos.kernels.cpu.weights import plan_weights
from phobos.kernels.names import made
from phobos.kernels.sampling import Chain, RowKernels
from phobos.program.steps import Program

N_CTX, N_SLOTS, MAX_ROWS = 64, 2, 32


class Ledger:
    """Stands in for a card: hands out addresses."""

    def __init__(self) -> None:
        self._next = 256

    def allocate(self, n_bytes: int) -> int:
        start, self._next = self._next, self._next + -(-n_bytes // 256) * 256
        return start

    def upload(self, address: int, data: np.ndarray) -> None:
        pass

    def synchronize(self) -> None:
        pass


@contextmanager
def opened(path: Path) -> Iterator[tuple[Program, GGUF, BackendLimits]]:
    with open_gguf(path) as gguf:
        program = build_program(gguf)
        yield program, gguf, BackendLimits(N_CTX, N_SLOTS, MAX_ROWS, MAX_ROWS, program.n_vocab)


def kinds_of(arguments: Iterable[Any]) -> tuple[type, ...]:
    """As kernels declare their parameters; whatever else an argument is stays what it is."""
    return tuple(map(type, arguments))


def check_cpu(path: Path) -> int:
    with opened(path) as (program, gguf, limits):
        weights, arena = plan_weights(gguf, program)
        cache = SlotCache(program.layers, N_SLOTS, N_CTX)
        states = SlotStates(program.states, N_SLOTS)
        launches = Lowering(program, weights, cache, states, BatchAddresses(64, 128), limits).lower()
        for launch in launches:
            assert kinds_of(launch.arguments) == find_kernel(launch.kernel).parameters, launch
        assert arena.n_bytes
        return len(launches)


def check_cuda(path: Path) -> int:
    from phobos.kernels.cuda.backend import describe_program
    from phobos.kernels.cuda.cache import SlotCache as CardCache
    from phobos.kernels.cuda.lowering.lower import Lowering as CardLowering
    from phobos.kernels.cuda.ptx import find_kernel as find_card_kernel
    from phobos.kernels.cuda.states import SlotStates as CardStates
    from phobos.kernels.cuda.weights import place_weights

    n_launches = 0
    with opened(path) as (program, gguf, limits):
        card: Any = Ledger()
        weights = place_weights(card, describe_program(gguf, program))
        cache = CardCache(card, program.layers, N_SLOTS, N_CTX)
        lowering = CardLowering(program, weights, cache, CardStates(card, program.states, N_SLOTS), card, limits)
        for n_rows in (1, 8, 32):
            for launch in lowering.lower(n_rows, 1, None if program.logits is None else program.n_vocab)[0]:
                declared = find_card_kernel(launch.kernel)
                assert kinds_of(launch.arguments) == declared.parameters, launch
                assert launch.n_threads == declared.n_threads, launch
                n_launches += 1
    return n_launches


def check_both(path: Path) -> None:
    assert check_cpu(path) > 5
    if importlib.util.find_spec("numba_cuda") is not None:
        assert check_cuda(path) > 5


@pytest.mark.parametrize("name", FAMILIES)
def test_every_launch_of_a_family_fits_its_kernel(name: str, tmp_path: Path) -> None:
    check_both(write_family_model(FAMILIES[name], tmp_path / "floats.gguf"))
    check_both(write_quantized_twin(name, tmp_path / "packed.gguf"))


@pytest.mark.parametrize("name", RECIPES)
def test_every_launch_of_a_tiny_model_fits_its_kernel(name: str, tmp_path: Path) -> None:
    check_both(write_tiny_model(RECIPES[name], tmp_path / "packed.gguf", PACKED_TYPES))


def test_a_launch_that_does_not_fit_is_found() -> None:
    declared = find_kernel("pointwise:temper").parameters
    assert kinds_of((1, 2, 3, 4, 5, 0.5)) == declared
    for wrong in ((1, 2, 3, 4, 0.5, 5), (1, 2, 3, 4, 5), (1, 2, 3, 4, 5, 6), (1, 2, 3, 4, np.int64(5), 0.5)):
        assert kinds_of(wrong) != declared


def test_calls_beside_launches_fit_their_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packers of every type, the team's own kernels, and those that read a row of logits."""
    for packed in PACKED.values():
        assert find_kernel(packed.packer).parameters == (int,) * 7, packed
    assert [find_kernel(name).parameters for name in TEAM_KERNELS] == [(int,), (int,), (int,) * 3, (int,)]
    called = set()

    def check_call(self: RowKernels, kernel: Any, *arguments: int | float) -> None:
        called.add(kernel.name)
        assert kinds_of(arguments) == find_kernel(kernel.name).parameters, kernel

    monkeypatch.setattr(RowKernels, "_call", check_call)
    kernels, row = RowKernels(64), np.zeros(64, np.float32)
    mask, ids = np.ones(2, np.int32), np.zeros(1, np.int32)
    kernels.draw(row, Chain(0.8, 4, 0.9, 0.9, 0.1, 1.1), 1, 2, mask=mask, seen_ids=ids, seen_counts=ids)
    kernels._top_ids.fill(-1)  # as a kernel that ran would leave what it does not find
    kernels.log_probabilities(row, 3, 5)
    kernels.log_probabilities_of(row, ids)
    assert called == {"sampling:adjust", "sampling:draw", "sampling:read_top"}


def test_names_are_of_kernels_and_import_none() -> None:
    assert cpu_names.norm.quantize.name == "norm:quantize"
    assert made(cpu_names.matmul, "matmul", "q4_k").name == "matmul:matmul_q4_k"
    assert find_kernel(made(cpu_names.gated, "gated", "q4_k", "silu").name).name == "gated:gated_q4_k_silu"
    with pytest.raises(AttributeError, match="no kernel"):
        find_kernel("matmul:matmul_q4_x")
