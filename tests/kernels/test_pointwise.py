"""Norms, rotations, gates, caps and embeddings: against the reference, and fused forms against plain ones."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from one_op import OneOp, join_batches, loaded, make_batch, random
from phobos.gguf.quants import GGMLType
from phobos.kernels.backend import Batch
from phobos.program.steps import (
    Activation,
    Attention,
    Buffer,
    CacheLayer,
    Embed,
    GateActivation,
    Glu,
    MatMul,
    Op,
    RmsNorm,
    RopeTable,
    RotateStore,
    SoftCap,
)

F32 = GGMLType.F32
ACTIVATIONS = get_args(Activation)


def run_both(one: OneOp, folder: Path, batch: Batch, **limits: int) -> tuple[np.ndarray, np.ndarray]:
    """What the CPU backend and the reference give."""
    found = []
    for kind in ("cpu", "reference"):
        with loaded(one, folder, kind, **limits) as backend:
            found.append(backend.run(batch).copy())
    return found[0], found[1]


def assert_rows_alone_equal(one: OneOp, folder: Path, n: int) -> None:
    """Every row has the same bits alone and among others, with one to three threads."""
    found = []
    for n_threads in (1, 2, 3):
        with loaded(one, folder, "cpu", n_threads=n_threads) as backend:
            found.append(backend.run(make_batch(range(n))).copy())
            alone = [backend.run(join_batches(make_batch([row], row)))[0].copy() for row in range(n)]
            found.append(np.stack(alone))
    for other in found[1:]:
        assert np.array_equal(other, found[0])


@pytest.mark.parametrize("width", [64, 256, 300])
@pytest.mark.parametrize("with_residual", [False, True])
def test_rms_norm(tmp_path: Path, width: int, with_residual: bool) -> None:
    x, residual = Buffer("x", width), Buffer("r", width)
    inputs = {"x": random(1, 60, width) * np.exp(3 * random(2, 60, 1)), "r": random(3, 60, width)}
    inputs["x"][7] = 0
    out = Buffer("out", width)
    op = RmsNorm(out, x, "w", 1e-5, residual if with_residual else None)
    one = OneOp(inputs, (op,), out, {"w": (F32, random(4, width))})
    got, want = run_both(one, tmp_path, make_batch(range(60)))
    assert np.allclose(got, want, rtol=2e-6, atol=2e-6)
    assert_rows_alone_equal(one, tmp_path, 5)


def test_rms_norm_of_wanted_rows(tmp_path: Path) -> None:
    x, out = Buffer("x", 256), Buffer("out", 256, per_output=True)
    one = OneOp({"x": random(1, 40, 256)}, (RmsNorm(out, x, "w", 1e-5),), out, {"w": (F32, random(2, 256))})
    rows = make_batch(range(40))
    batch = Batch(rows.tokens, rows.positions, rows.slots, np.array([3, 17, 39], np.int32))
    got, want = run_both(one, tmp_path, batch)
    assert got.shape == (3, 256)
    assert np.allclose(got, want, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("producer", ["norm", *ACTIVATIONS])
def test_fused_quantization_has_the_bits_of_the_plain_one(tmp_path: Path, producer: str) -> None:
    """A further reader of the floats keeps a backend from fusing; the product must not notice."""
    n = 256
    x, y, made, out, spare = (Buffer(name, n) for name in ("x", "y", "made", "out", "spare"))
    inputs = {"x": 4 * random(1, 40, n), "y": random(2, 40, n)}
    weights = {"w": (F32, random(3, n)), "m": (GGMLType.Q8_0, random(4, n, n))}
    first: Op = RmsNorm(made, x, "w", 1e-6) if producer == "norm" else Glu(made, x, y, producer)  # type: ignore[arg-type]
    product = MatMul(out, made, "m")
    found = []
    for ops in ((first, product), (first, product, RmsNorm(spare, made, "w", 1e-6))):
        with loaded(OneOp(inputs, ops, out, weights), tmp_path, "cpu") as backend:
            found.append(backend.run(make_batch(range(33))).copy())
    assert np.array_equal(found[0], found[1])


@pytest.mark.parametrize("activation", get_args(GateActivation))
def test_glu(tmp_path: Path, activation: GateActivation) -> None:
    n = 304
    gate = np.concatenate([np.linspace(-100, 100, 8 * n), np.linspace(-6, 6, 8 * n), np.geomspace(1e-12, 1, 8 * n)])
    inputs = {"x": gate.astype(np.float32).reshape(-1, n), "y": np.ones((24, n), np.float32)}
    out = Buffer("out", n)
    one = OneOp(inputs, (Glu(out, Buffer("x", n), Buffer("y", n), activation),), out)
    got, want = run_both(one, tmp_path, make_batch(range(24)))
    assert np.all(np.abs(got - want) <= 4e-7 * np.maximum(1, np.abs(want)))
    small = inputs["x"] < 0.01
    small &= inputs["x"] > 0
    assert np.allclose(got[small], want[small], rtol=2e-5, atol=0)  # near zero the error is relative
    assert_rows_alone_equal(one, tmp_path, 4)


def test_soft_cap(tmp_path: Path) -> None:
    n = 304
    x = np.concatenate([np.linspace(-500, 500, 8 * n), np.linspace(-1, 1, 8 * n)]).astype(np.float32).reshape(-1, n)
    buffer = Buffer("x", n)
    got, want = run_both(OneOp({"x": x}, (SoftCap(buffer, 30.0),), buffer), tmp_path, make_batch(range(16)))
    assert np.allclose(got, want, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("n_pairs", [8, 20, 64])
def test_rope_table(tmp_path: Path, n_pairs: int) -> None:
    frequencies = tuple(float(f) for f in 10000.0 ** (-np.arange(n_pairs) / n_pairs))
    out = Buffer("out", 2 * n_pairs)
    one = OneOp({"x": random(1, 16, 16)}, (RopeTable(out, frequencies, 1.25),), out)
    for first in (0, 1000, 131_000):
        got, want = run_both(one, tmp_path, make_batch([0] * 40, first), n_ctx=131_072)
        assert np.abs(got - want).max() < 3e-7


ROTATIONS = [
    ("normal", 64, 64, True),
    ("neox", 64, 64, False),
    ("normal", 128, 64, False),
    ("neox", 128, 32, True),
    ("neox", 16, 16, True),
]


@pytest.mark.parametrize(("style", "dim", "n_rot", "with_norms"), ROTATIONS)
def test_rotate_store(tmp_path: Path, style: str, dim: int, n_rot: int, with_norms: bool) -> None:
    n_heads, n_kv_heads = 4, 2
    frequencies = tuple(float(f) for f in 100.0 ** (-np.arange(n_rot // 2) / n_rot))
    layer = CacheLayer(0, n_kv_heads, dim, dim)
    q, k, v, out = (Buffer(name, n * dim) for name, n in (("q", 4), ("k", 2), ("v", 2), ("out", 4)))
    table = Buffer("table", n_rot)
    inputs = {b.name: random(i, 64, b.width) for i, b in enumerate((q, k, v))}
    weights = {"qn": (F32, 1 + 0.3 * random(5, dim)), "kn": (F32, 1 + 0.3 * random(6, dim))}
    names = ("qn", "kn") if with_norms else (None, None)
    ops: tuple[Op, ...] = (
        RopeTable(table, frequencies, 1.1),
        RotateStore(q, k, v, table, layer, n_heads, style, *names, 1e-6),  # type: ignore[arg-type]
    )
    used = weights if with_norms else {}
    got, want = run_both(OneOp(inputs, ops, q, used, (layer,)), tmp_path, make_batch(range(50)))
    assert np.allclose(got, want, rtol=3e-6, atol=3e-6), "queries"
    # Keys are seen only through attention, and were rounded to halves on their way into the cache.
    attention = Attention(out, q, layer, n_heads, dim**-0.5)
    one = OneOp(inputs, (*ops, attention), out, used, (layer,))
    got, want = run_both(one, tmp_path, make_batch(range(50)))
    assert np.abs(got - want).max() < 4e-3
    assert_rows_alone_equal(OneOp(inputs, ops, q, used, (layer,)), tmp_path, 5)


@pytest.mark.parametrize("scale", [1.0, 16.0])
def test_embed(tmp_path: Path, scale: float) -> None:
    table = random(1, 300, 320)
    out = Buffer("out", 320)
    one = OneOp({}, (Embed(out, "t", scale),), out, {"t": (F32, table)})
    tokens = np.array([0, 299, 16, 15, 17, 299])
    got, _ = run_both(one, tmp_path, make_batch(tokens))
    assert np.array_equal(got, table[tokens] * np.float32(scale))


def test_a_batch_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    x = Buffer("x", 64)
    one = OneOp({"x": random(1, 64, 64)}, (), x)
    for kind in ("cpu", "reference"):
        with loaded(one, tmp_path, kind, n_ctx=32, max_rows=16) as backend:
            for tokens, first, slot in (
                ([0] * 17, 0, 0),
                ([], 0, 0),
                ([64], 0, 0),
                ([-1], 0, 0),
                ([0], 32, 0),
                ([0], 0, 2),
            ):
                with pytest.raises(ValueError, match="batch"):
                    backend.run(make_batch(tokens, first, slot))
