"""The code of every CUDA kernel, compiled without a card: it exists for both targets, keeps within a card's limits, and
a launch says of a kernel what its declaration says."""

from __future__ import annotations

import importlib
import pkgutil
import re

import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed: pip install -e '.[dev]'")

from phobos.kernels.cuda import code as kernel_source
from phobos.kernels.cuda.compiler import CompiledKernel, load_code
from phobos.kernels.cuda.declaration import Kernel
from phobos.kernels.cuda.ptx import find_kernel

TARGETS = ((8, 0), (9, 0))
MODULES = tuple(module.name for module in pkgutil.iter_modules(kernel_source.__path__))
# Of the kernels that are made when asked for, some.
MADE = (
    "matmul_joined:combined_q6_k_1", "matmul_joined:joined_q4_k_q6_k_1", "matmul_joined:joined_q4_k_q6_k_8",
    "matmul_joined:rotated_q4_k_q6_k_1_f16_f16",
    "matmul_joined:gated_q4_k_1_silu", "matmul_joined:gated_q8_0_8_gelu_tanh", "matmul_joined:normed_q6_k_1",
    "matmul_stages:gated_q4_k_silu", "matmul_stages:gated_q6_k_gelu",
)  # fmt: skip
REGISTERS_OF_PROCESSOR = 65536
SHARED_OF_BLOCK = 48 << 10
# What a pass of one row runs most of: no value of theirs may live in memory.
DECODE = re.compile(
    r"matmul:\w+_1$|matmul_joined:\w+_1\b|matmul_joined:\w+_1_\w+$|attention:attention_split"
    r"|(activations|embed|norm|pointwise|rope|moe|sampling|delta|scan|short_conv|streams):"
)


def declared() -> dict[str, Kernel]:
    """Every kernel there is, by name."""
    found: dict[str, Kernel] = {}
    for module in MODULES:
        for value in vars(importlib.import_module(f"{kernel_source.__name__}.{module}")).values():
            if isinstance(value, Kernel):
                found.setdefault(value.name, value)
    return found | {name: find_kernel(name) for name in MADE}


@pytest.fixture(scope="module")
def code() -> dict[tuple[str, tuple[int, int]], CompiledKernel]:
    return dict(load_code(declared(), TARGETS))


def number(log: str, pattern: str) -> int:
    found = re.search(pattern, log)
    return int(found[1]) if found else 0


@pytest.mark.timeout(600)  # compiles all of them where the kernel cache is empty
def test_every_kernel_compiles_within_limits(code: dict[tuple[str, tuple[int, int]], CompiledKernel]) -> None:
    kernels = declared()
    assert len(code) == len(TARGETS) * len(kernels)
    for (name, target), compiled in code.items():
        text = f".target sm_{target[0]}{target[1]}"
        assert text in compiled.ptx, name
        assert compiled.code.startswith(b"\x7fELF"), name
        n_threads, min_blocks = kernels[name].n_threads, kernels[name].min_blocks
        registers = number(compiled.log, r"used (\d+) registers")
        assert 0 < registers <= 255, name
        assert -(-registers // 8) * 8 * n_threads * min_blocks <= REGISTERS_OF_PROCESSOR, (name, target, registers)
        assert number(compiled.log, r"(\d+) bytes smem") <= SHARED_OF_BLOCK, name
        spills = number(compiled.log, r"(\d+) bytes spill stores") + number(compiled.log, r"(\d+) bytes stack frame")
        if DECODE.search(name):
            assert spills == 0, f"{name} for {target}: {spills} bytes"
            assert ".local" not in compiled.ptx, name


def test_nothing_is_contracted(code: dict[tuple[str, tuple[int, int]], CompiledKernel]) -> None:
    """A product and a sum that the source has apart stay apart, in every kernel: the bits of a formula are one."""
    for (name, target), compiled in code.items():
        loose = re.findall(r"\b(?:mul|add|sub|mad)(?:\.ftz)?\.f(?:32|64)\b", compiled.ptx)
        assert not loose, (name, target, loose[:3])


def test_the_dot_products_are_instructions(code: dict[tuple[str, tuple[int, int]], CompiledKernel]) -> None:
    ptx = code["matmul:matmul_q4_k_1", (8, 0)].ptx
    assert "dp4a.u32.s32" in ptx
    assert "ld.global.nc.L1::no_allocate.v4.u32" in ptx
