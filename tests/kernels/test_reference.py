"""The reference against loops in float64 over the formulas of `program/steps.py`: slow twins of the slow twin."""

from __future__ import annotations

import cmath
import math
from pathlib import Path

import numpy as np
import pytest

from one_op import OneOp, loaded, make_batch, random
from phobos.kernels.reference.backend import GATES, rotate
from phobos.program.steps import Attention, Buffer, CacheLayer, GateActivation, RotateStore

FORMULAS = {
    "silu": lambda x: x / (1 + math.exp(-x)),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "relu": lambda x: max(x, 0.0),
    "relu_squared": lambda x: max(x, 0.0) ** 2,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "identity": lambda x: x,
}
ENDS = {"relu_squared": [0.0, 1e6], "sigmoid": [0.0, 1.0], "identity": [-1e3, 1e3]}


@pytest.mark.parametrize("name", GATES)
def test_activations(name: GateActivation) -> None:
    x = np.concatenate([np.linspace(-30, 30, 601), [0.0, 1e-20, -1e-20]]).astype(np.float32)
    want = [FORMULAS[name](float(value)) for value in x]
    assert np.allclose(GATES[name](x), want, rtol=1e-6, atol=1e-6)
    assert GATES[name](np.array([-1000, 1000], np.float32)).tolist() == ENDS.get(name, [0.0, 1e3])


@pytest.mark.parametrize("style", ["normal", "neox"])
def test_rotation_is_multiplication_of_complex_numbers(style: str) -> None:
    n_rot, dim = 8, 12
    heads, angles = random(1, 3, 2, dim), random(2, 3, n_rot // 2)
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    got = rotate(heads, table, style)
    for row in range(3):
        for head in range(2):
            for i in range(n_rot // 2):
                a, b = (2 * i, 2 * i + 1) if style == "normal" else (i, i + n_rot // 2)
                turned = complex(heads[row, head, a], heads[row, head, b]) * cmath.exp(1j * float(angles[row, i]))
                assert got[row, head, a] == pytest.approx(turned.real, abs=1e-6)
                assert got[row, head, b] == pytest.approx(turned.imag, abs=1e-6)
    assert np.array_equal(got[..., n_rot:], heads[..., n_rot:])


@pytest.mark.parametrize(("window", "soft_cap"), [(0, 0.0), (5, 0.0), (0, 2.0), (3, 1.5)])
def test_attention(tmp_path: Path, window: int, soft_cap: float) -> None:
    n_heads, n_kv_heads, k_dim, v_dim, n = 4, 2, 16, 32, 12
    layer = CacheLayer(0, n_kv_heads, k_dim, v_dim, window)
    widths = {"q": n_heads * k_dim, "k": n_kv_heads * k_dim, "v": n_kv_heads * v_dim}
    inputs = {name: random(i, n, width) for i, (name, width) in enumerate(widths.items())}
    q, k, v = (Buffer(name, width) for name, width in widths.items())
    out = Buffer("out", n_heads * v_dim)
    ops = (RotateStore(q, k, v, None, layer, n_heads), Attention(out, q, layer, n_heads, 0.5, soft_cap))
    with loaded(OneOp(inputs, ops, out, layers=(layer,)), tmp_path, "reference") as backend:
        got = backend.run(make_batch(range(n))).reshape(n, n_heads, v_dim)
    keys = inputs["k"].reshape(n, n_kv_heads, k_dim).astype(float)
    values = inputs["v"].reshape(n, n_kv_heads, v_dim).astype(float)
    for t in range(n):
        for head in range(n_heads):
            seen = range(max(0, t - window + 1) if window else 0, t + 1)
            query = inputs["q"][t].reshape(n_heads, k_dim)[head].astype(float)
            scores = [0.5 * float(query @ keys[s, head // 2]) for s in seen]
            if soft_cap:
                scores = [soft_cap * math.tanh(score / soft_cap) for score in scores]
            total = sum(math.exp(score) for score in scores)
            want = sum(math.exp(x) / total * values[s, head // 2] for x, s in zip(scores, seen, strict=True))
            assert np.allclose(got[t, head], want, rtol=1e-5, atol=1e-5)
