"""Attention and the cache: shapes, windows, soft caps, several slots, positions beyond one and two spans of 512."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from one_op import OneOp, join_batches, loaded, make_batch, quantize_activations, quantize_cached, random
from phobos.kernels.backend import Backend, Batch
from phobos.program.steps import Attention, Buffer, CacheLayer, RotateStore

N_CTX, MAX_ROWS = 1300, 320


@dataclass(frozen=True)
class Shape:
    n_heads: int
    n_kv_heads: int
    k_dim: int
    v_dim: int
    window: int = 0
    soft_cap: float = 0.0


SHAPES = (
    Shape(4, 2, 64, 64),
    Shape(3, 3, 16, 48),
    Shape(9, 1, 32, 32, window=100),
    Shape(6, 2, 128, 128, soft_cap=5.0),
    Shape(4, 4, 64, 64, window=600, soft_cap=20.0),
    Shape(2, 1, 256, 256, window=512),
)


def make_attention(shape: Shape) -> OneOp:
    """Queries, keys and values of halves, so that a cache of halves keeps them exactly."""
    n_tokens = shape.n_heads * shape.v_dim  # a backend takes tokens below the width of what it returns
    layer = CacheLayer(0, shape.n_kv_heads, shape.k_dim, shape.v_dim, shape.window)
    widths = {
        "q": shape.n_heads * shape.k_dim,
        "k": shape.n_kv_heads * shape.k_dim,
        "v": shape.n_kv_heads * shape.v_dim,
    }
    inputs = {
        name: random(i, n_tokens, width).astype(np.float16).astype(np.float32)
        for i, (name, width) in enumerate(widths.items())
    }
    q, k, v = (Buffer(name, width) for name, width in widths.items())
    out = Buffer("out", n_tokens)
    scale = 1.5 / np.sqrt(shape.k_dim)
    ops = (
        RotateStore(q, k, v, None, layer, shape.n_heads),
        Attention(out, q, layer, shape.n_heads, scale, shape.soft_cap),
    )
    return OneOp(inputs, ops, out, layers=(layer,))


def tokens_of(slot: int, first: int, n: int, n_tokens: int) -> np.ndarray:
    """The tokens of a slot's positions first, first + 1, …"""
    return (np.arange(first, first + n) * (7 + 4 * slot) + 3 * slot) % n_tokens


def batches(n_tokens: int) -> list[Batch]:
    """Two slots fill in uneven chunks, by turns and together; the last rows come alone and a few at a time."""

    def rows(slot: int, first: int, n: int) -> Batch:
        return make_batch(tokens_of(slot, first, n, n_tokens), first, slot)

    return [
        rows(0, 0, 1),
        rows(0, 1, 299),
        join_batches(rows(1, 0, 70), rows(0, 300, 5)),
        rows(0, 305, 205),
        rows(0, 510, 1),
        rows(0, 511, 1),
        rows(0, 512, 1),
        join_batches(rows(0, 513, 3), rows(1, 70, 2)),
        rows(0, 516, 320),
        rows(0, 836, 187),
        join_batches(rows(1, 72, 1), rows(0, 1023, 1)),
        join_batches(rows(0, 1024, 1), rows(1, 73, 1)),
        join_batches(rows(1, 74, 30), rows(0, 1025, 150)),
        rows(0, 1175, 8),
    ]


def run_all(backend: Backend, given: list[Batch]) -> list[np.ndarray]:
    return [backend.run(batch).copy() for batch in given]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention(tmp_path: Path, shape: Shape) -> None:
    one = make_attention(shape)
    results = {}
    for kind in ("cpu", "reference"):
        with loaded(one, tmp_path, kind, n_ctx=N_CTX, max_rows=MAX_ROWS) as backend:
            results[kind] = run_all(backend, batches(one.out.width))
    for batch, got, want in zip(batches(one.out.width), results["cpu"], results["reference"], strict=True):
        worst = np.abs(got - want).max(axis=1)
        assert worst.max() < 5e-6, f"position {batch.positions[worst.argmax()]} of {len(batch.tokens)} rows"


CODED = (
    (SHAPES[2], ("q8_0", "q8_0")),
    (SHAPES[3], ("q8_0", "q8_0")),
    (SHAPES[5], ("q8_0", "q8_0")),
    pytest.param(SHAPES[0], ("q8_0", "f16"), marks=pytest.mark.slow),
    pytest.param(SHAPES[0], ("f16", "q8_0"), marks=pytest.mark.slow),
)


@pytest.mark.parametrize(("shape", "cache"), CODED, ids=str)
def test_coded_cache(tmp_path: Path, shape: Shape, cache: tuple[str, str]) -> None:
    """Against plain attention with what the codes keep of keys and values, and of queries where keys are codes."""
    one = make_attention(shape)
    with loaded(one, tmp_path, "cpu", n_ctx=N_CTX, max_rows=MAX_ROWS, cache=cache) as backend:
        results = run_all(backend, batches(one.out.width))
    plain = dict(one.inputs)
    if cache[0] == "q8_0":
        one.inputs["q"] = quantize_activations(plain["q"], 127 * 256).astype(np.float32)
        one.inputs["k"] = quantize_cached(plain["k"])
    if cache[1] == "q8_0":
        one.inputs["v"] = quantize_cached(plain["v"])
    with loaded(one, tmp_path, "reference", n_ctx=N_CTX, max_rows=MAX_ROWS) as backend:
        wanted = run_all(backend, batches(one.out.width))
    for batch, got, want in zip(batches(one.out.width), results, wanted, strict=True):
        worst = np.abs(got - want).max(axis=1)
        assert worst.max() < 5e-6, f"position {batch.positions[worst.argmax()]} of {len(batch.tokens)} rows"


def test_a_coded_cache_is_copied_saved_and_restored(tmp_path: Path) -> None:
    one = make_attention(SHAPES[3])
    n_tokens = one.out.width
    options = {"n_ctx": N_CTX, "n_slots": 3, "max_rows": MAX_ROWS, "cache": ("q8_0", "q8_0")}
    with loaded(one, tmp_path, "cpu", **options) as backend:  # type: ignore[arg-type]
        backend.run(make_batch(tokens_of(0, 0, 200, n_tokens), 0, 0))
        later = tokens_of(0, 75, 20, n_tokens)
        want = backend.run(make_batch(later, 75, 0)).copy()
        backend.copy_rows(0, 1, 75)
        assert np.array_equal(backend.run(make_batch(later, 75, 1)), want)
        state = backend.save(1, 75)
        backend.release(1)
        backend.restore(2, 75, state, 75)
        assert np.array_equal(backend.run(make_batch(later, 75, 2)), want)
        with pytest.raises(ValueError, match="bytes"):
            backend.restore(2, 75, state[:-1], 75)
        half = 2 * sum(x.n_kv_heads * (x.k_dim + x.v_dim) for x in one.layers) * 80
        assert len(state) == half * 17 // 32, "80 positions, in whole tiles"


def test_a_window_forgets_what_is_behind_it(tmp_path: Path) -> None:
    """Two slots differ in positions 0 to 100. A window of 100 at position 200 begins at 101: from there on the bits
    are the same, and not one position before."""
    one = make_attention(Shape(4, 2, 64, 64, window=100))
    tokens = tokens_of(0, 0, 256, one.out.width)
    changed = tokens.copy()
    changed[:101] = (changed[:101] + 1) % one.out.width
    with loaded(one, tmp_path, "cpu", n_ctx=256, max_rows=256) as backend:
        first = backend.run(make_batch(tokens, 0, 0)).copy()
        second = backend.run(make_batch(changed, 0, 1)).copy()
    assert np.array_equal(first[200:], second[200:])
    assert not np.array_equal(first[199], second[199])


def test_large_values_do_not_overflow(tmp_path: Path) -> None:
    """Scores of several thousands: the softmax is of differences."""
    one = make_attention(Shape(4, 2, 64, 64))
    one.inputs["q"] *= 128
    one.inputs["k"] *= 8  # powers of two: still halves
    results = {}
    for kind in ("cpu", "reference"):
        with loaded(one, tmp_path, kind, n_ctx=N_CTX, max_rows=MAX_ROWS) as backend:
            results[kind] = run_all(backend, batches(one.out.width)[:4])
    for got, want in zip(results["cpu"], results["reference"], strict=True):
        assert np.isfinite(got).all()
        assert np.abs(got - want).max() < 2e-3  # weights of e ** (difference of scores around 5000)


@pytest.mark.parametrize("cache", ["f16", "q8_0"])
def test_rows_have_the_same_bits_alone_together_and_by_any_number_of_threads(tmp_path: Path, cache: str) -> None:
    for shape in (SHAPES[0], SHAPES[4]):
        one = make_attention(shape)
        n_tokens = one.out.width
        found = []
        for n_threads, chunk in ((1, 320), (2, 1), (3, 7), (2, 64)):
            n = 1100 if chunk > 1 else 530
            options = {"n_threads": n_threads, "n_ctx": N_CTX, "max_rows": MAX_ROWS, "cache": (cache, cache)}
            with loaded(one, tmp_path, "cpu", **options) as backend:  # type: ignore[arg-type]
                parts = [
                    backend.run(make_batch(tokens_of(0, at, min(chunk, n - at), n_tokens), at)).copy()
                    for at in range(0, n, chunk)
                ]
            found.append(np.concatenate(parts))
        for other in found[1:]:
            assert np.array_equal(other, found[0][: len(other)])
