"""Recurrent ops: against the reference; the same bits however a sequence is cut and whatever runs beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.recurrent_cases import CASES, N, make_delta, read_in_chunks
from one_op import OneOp, loaded, make_batch, random
from phobos.gguf.quants import GGMLType
from phobos.kernels.backend import Backend
from phobos.program.steps import Buffer, HeadNorm

F32 = GGMLType.F32


@pytest.mark.parametrize("name", CASES)
def test_against_the_reference(tmp_path: Path, name: str) -> None:
    found = []
    for kind in ("cpu", "reference"):
        with loaded(CASES[name](), tmp_path, kind) as backend:
            found.append(backend.run(make_batch(range(N))).copy())
    assert np.allclose(found[0], found[1], rtol=2e-5, atol=2e-5 * np.abs(found[1]).max())


def test_the_reference_is_what_the_formula_says(tmp_path: Path) -> None:
    """One head of two columns by hand: the delta rule from its definition."""
    one = make_delta(per_row=True, tiled=False, apart=True)
    rate, bias = one.weights["rate"][1][0], one.weights["bias"][1][:32]
    unit = [
        x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-6) for x in (one.inputs[n][:, :32] for n in "qk")
    ]
    decay = np.exp(rate * np.log1p(np.exp(one.inputs["decay"][:, :32].astype(np.float64) + bias)))
    beta = 1 / (1 + np.exp(-one.inputs["beta"][:, 0].astype(np.float64)))
    state, want = np.zeros((32, 64)), []
    for q, k, v, a, b in zip(*unit, one.inputs["v"][:, :64], decay, beta, strict=True):
        state = a[:, None] * state
        state = state - b * np.outer(k, k @ state) + b * np.outer(k, v)
        want.append(0.3 * q @ state)
    with loaded(one, tmp_path, "reference") as backend:
        got = backend.run(make_batch(range(N)))[:, :64]
    assert np.allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_however_cut(tmp_path: Path, name: str) -> None:
    with loaded(CASES[name](), tmp_path, "cpu", n_threads=1) as backend:
        plain = backend.run(make_batch(range(N))).copy()
    for n_threads in (2, 3):
        with loaded(CASES[name](), tmp_path, "cpu", n_threads=n_threads) as backend:
            for slot, chunks in enumerate(([1] * N, [5, 1, 1, 2, 13, 3, 25])):
                assert np.array_equal(read_in_chunks(backend, chunks, slot), plain)
            assert np.array_equal(backend.run(make_batch(range(N))).copy(), plain)  # from 0 on a used slot is new


@pytest.mark.parametrize("kind", ["cpu", "reference"])
def test_states_are_kept_copied_and_put_back(tmp_path: Path, kind: str) -> None:
    with loaded(CASES["delta"](), tmp_path, kind) as backend:
        assert not backend.limits.can_cut
        plain = backend.run(make_batch(range(N))).copy()
        backend.run(make_batch(range(20)))
        kept = backend.save_state(0)
        whole = backend.save(0, 20)
        backend.copy_rows(0, 1, 20)

        def rest(slot: int) -> np.ndarray:
            return backend.run(make_batch(range(20, N), 20, slot)).copy()

        assert np.allclose(rest(0), plain[20:], rtol=1e-5, atol=1e-6)
        assert np.array_equal(rest(1), rest_of(backend, kept))
        backend.release(1)
        with pytest.raises(ValueError, match="slot 1 stands at 0 and cannot go on from position 20"):
            rest(1)
        backend.restore(1, 20, whole, 20)
        assert np.array_equal(rest(1), rest_of(backend, kept))
        backend.copy_rows(0, 1, 20)
        with pytest.raises(ValueError, match="slot 1 stands at None"):
            rest(1)
        backend.restore_state(1, 20, kept)
        assert np.array_equal(rest(1), rest_of(backend, kept))
        with pytest.raises(ValueError, match="stands at 50, not at 20"):
            backend.save(1, 20)
        for wrong in (kept[:-4], kept + b"\0"):
            with pytest.raises(ValueError, match="bytes"):
                backend.restore_state(1, 20, wrong)
            with pytest.raises(ValueError, match="bytes"):
                backend.restore(1, 20, wrong, 20)


def rest_of(backend: Backend, kept: bytes) -> np.ndarray:
    backend.restore_state(0, 20, kept)
    return backend.run(make_batch(range(20, N), 20, 0)).copy()


def test_a_head_norm_with_weights_of_each_head(tmp_path: Path) -> None:
    x, out = Buffer("x", 96), Buffer("out", 96)
    op = HeadNorm(out, x, 3, "w", 1e-5, has_own_weights=True)
    one = OneOp({"x": random(1, 20, 96)}, (op,), out, {"w": (F32, random(2, 3, 32))})
    found = []
    for kind in ("cpu", "reference"):
        with loaded(one, tmp_path, kind) as backend:
            found.append(backend.run(make_batch(range(20))).copy())
    assert np.allclose(found[0], found[1], rtol=2e-6, atol=2e-6)
    heads = one.inputs["x"].reshape(20, 3, 32)
    want = heads / np.sqrt(np.mean(heads**2, axis=-1, keepdims=True) + 1e-5) * one.weights["w"][1]
    assert np.allclose(found[1], want.reshape(20, 96), rtol=1e-5)
