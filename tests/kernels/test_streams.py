"""Streams, lengths and sparsity: against the formulas, and every row the same bits alone and among others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from one_op import OneOp, join_batches, loaded, make_batch, random
from phobos.gguf.quants import GGMLType
from phobos.program.steps import Add, Buffer, MatchLength, Mix, Sparsify

N, E = 40, 48


def check(one: OneOp, folder: Path, want: np.ndarray) -> None:
    for kind in ("cpu", "reference"):
        with loaded(one, folder, kind) as backend:
            assert np.allclose(backend.run(make_batch(range(N))), want, rtol=1e-5, atol=2e-6)
    with loaded(one, folder, "cpu", n_threads=1) as backend:
        plain = backend.run(make_batch(range(N))).copy()
    for n_threads in (2, 3):
        with loaded(one, folder, "cpu", n_threads=n_threads) as backend:
            assert np.array_equal(backend.run(make_batch(range(N))), plain)
            alone = [backend.run(join_batches(make_batch([row], row)))[0].copy() for row in range(N)]
            assert np.array_equal(np.stack(alone), plain)


@pytest.mark.parametrize("has_residual", [False, True])
def test_streams_are_mixed(tmp_path: Path, has_residual: bool) -> None:
    inputs = {"x": random(1, N, 2 * E), "c": random(2, N, 6), "r": random(3, N, 3 * E)}
    x, c, r, out = Buffer("x", 2 * E), Buffer("c", 6), Buffer("r", 3 * E), Buffer("out", 3 * E)
    op = Mix(out, x, c, r if has_residual else None, 3, 2, offset=0.5)
    factors, streams = inputs["c"].reshape(N, 3, 2) + 0.5, inputs["x"].reshape(N, 2, E)
    want = (factors[..., None] * streams[:, None]).sum(axis=2).reshape(N, -1) + has_residual * inputs["r"]
    check(OneOp(inputs, (op,), out), tmp_path, want)


def test_the_first_streams_stay(tmp_path: Path) -> None:
    inputs = {"x": random(1, N, E), "out": random(2, N, 3 * E)}
    out = Buffer("out", 3 * E)
    op = Mix(out, Buffer("x", E), None, out, 2, 1, offset=1.0, skipped=1)
    want = inputs["out"].copy()
    want[:, E:] += np.tile(inputs["x"], 2)
    check(OneOp(inputs, (op,), out), tmp_path, want)


def test_lengths_are_matched(tmp_path: Path) -> None:
    inputs = {"x": random(1, N, 3 * E), "t": 5 * random(2, N, E)}
    inputs["x"][4, :E] = 0
    op = MatchLength(Buffer("x", 3 * E), Buffer("t", E), 3)
    heads = inputs["x"].reshape(N, 3, E)
    length = np.maximum(np.linalg.norm(heads, axis=-1, keepdims=True), 1e-20)
    want = heads / length * np.linalg.norm(inputs["t"], axis=-1)[:, None, None]
    check(OneOp(inputs, (op,), op.x), tmp_path, want.reshape(N, -1))


def test_only_the_largest_stay(tmp_path: Path) -> None:
    inputs = {"x": 2 * random(1, N, 512) + 0.3}
    x = inputs["x"].astype(np.float64)
    want = np.maximum(x - x.mean(axis=1, keepdims=True) - 1.645 * x.std(axis=1, ddof=1, keepdims=True), 0)
    assert 0.03 < (want > 0).mean() < 0.07
    op = Sparsify(Buffer("x", 512), 1.645)
    check(OneOp(inputs, (op,), op.x), tmp_path, want)


def test_a_sum_times_a_weight_for_each_column(tmp_path: Path) -> None:
    inputs = {"x": random(1, N, 72), "r": random(2, N, 72)}
    weight = random(3, 72)
    op = Add(Buffer("out", 72), Buffer("x", 72), Buffer("r", 72), 0.5, "w")
    want = (inputs["x"] + inputs["r"]) * 0.5 * weight
    check(OneOp(inputs, (op,), op.out, {"w": (GGMLType.F32, weight)}), tmp_path, want)
