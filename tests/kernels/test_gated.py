"""Gate, up and activation in one launch: done where nothing else reads them, and of the bits of the plain launches."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from one_op import OneOp, loaded, make_batch, random
from phobos.gguf.quants import GGMLType
from phobos.kernels.cpu.backend import CpuBackend
from phobos.program.steps import Buffer, GateActivation, Glu, MatMul, Op, RmsNorm

WIDTH, HIDDEN = 256, 96
X, GATE, UP, OUT = Buffer("x", WIDTH), Buffer("gate", HIDDEN), Buffer("up", HIDDEN), Buffer("out", WIDTH)
MIXED, SPARE = Buffer("mixed", HIDDEN), Buffer("spare", HIDDEN)


def make_ops(activation: GateActivation = "silu", **of_gate: object) -> tuple[Op, ...]:
    gate = MatMul(GATE, X, "gate", **of_gate)  # type: ignore[arg-type]
    return gate, MatMul(UP, X, "up"), Glu(MIXED, GATE, UP, activation), MatMul(OUT, MIXED, "down")


def run(ops: tuple[Op, ...], folder: Path, kinds: tuple[GGMLType, GGMLType], rows: int) -> tuple[np.ndarray, bool]:
    """What comes out, and whether gate and up ran as one."""
    weights = {
        "gate": (kinds[0], random(1, HIDDEN, WIDTH)),
        "up": (kinds[1], random(2, HIDDEN, WIDTH)),
        "down": (GGMLType.Q8_0, random(3, WIDTH, HIDDEN)),
        "bias": (GGMLType.F32, random(4, HIDDEN)),
        "norm": (GGMLType.F32, random(5, HIDDEN)),
    }
    with loaded(OneOp({"x": random(6, 48, WIDTH)}, ops, OUT, weights), folder, "cpu") as backend:
        assert isinstance(backend, CpuBackend)
        is_one = any(launch.kernel.startswith("gated:") for launch in backend._launches)
        return backend.run(make_batch(range(rows))).copy(), is_one


@pytest.mark.parametrize("kind", [GGMLType.Q4_K, GGMLType.Q8_0, GGMLType.Q6_K], ids=lambda kind: kind.name)
def test_one_launch_has_the_bits_of_three(tmp_path: Path, kind: GGMLType) -> None:
    fused = make_ops()
    apart = (*fused, RmsNorm(SPARE, GATE, "norm", 1e-6))  # a further reader of the gate's floats
    for rows in (1, 3, 16, 17, 40):
        got, is_one = run(fused, tmp_path, (kind, kind), rows)
        want, is_also_one = run(apart, tmp_path, (kind, kind), rows)
        assert (is_one, is_also_one) == (True, False)
        assert np.array_equal(got, want), rows


@pytest.mark.parametrize("activation", get_args(GateActivation))
def test_every_activation_has_a_kernel(activation: GateActivation) -> None:
    from phobos.kernels.cpu.compiling.compiler import find_kernel

    assert find_kernel(f"gated:gated_q4_0_{activation}").function.__name__ == f"gated_q4_0_{activation}"
    with pytest.raises(AttributeError):
        find_kernel(f"gated:gated_q4_7_{activation}")


def test_what_is_not_the_same_stays_apart(tmp_path: Path) -> None:
    q4_k, q8_0, f32 = GGMLType.Q4_K, GGMLType.Q8_0, GGMLType.F32
    for ops, kinds in (
        (make_ops(), (q4_k, q8_0)),
        (make_ops(), (f32, f32)),
        (make_ops(bias="bias"), (q8_0, q8_0)),
        (make_ops(scale=2.0), (q8_0, q8_0)),
    ):
        assert not run(ops, tmp_path, kinds, 2)[1]
