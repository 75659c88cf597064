"""Matrix products of every weight type: against exact arithmetic on the same quantized activations, so that only
float32 rounding is allowed for; and against plain float32, as far as int8 activations allow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.gguf_writer import pack_tensor, random_blocks
from models.tiny_models import PACKED_TYPES, RARE_TYPES, SMALL_TYPES
from one_op import OneOp, loaded, make_batch, quantize_activations, random
from phobos.gguf.quants import TABLE, GGMLType
from phobos.program.steps import Buffer, Embed, MatMul

FLOAT_TYPES = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)
TYPES = (*PACKED_TYPES, *SMALL_TYPES, *(pytest.param(kind, marks=pytest.mark.slow) for kind in RARE_TYPES))
ROWS = (1, 2, 3, 4, 5, 9, 33)
N_TOKENS = 64


def dequantized(kind: GGMLType, values: np.ndarray) -> np.ndarray:
    """What the file's bytes mean, float64."""
    shape, data = pack_tensor(kind, values)
    return TABLE[kind].dequantize(np.frombuffer(data, np.uint8)).reshape(shape).astype(np.float64)


def assert_close(got: np.ndarray, want: np.ndarray, size: np.ndarray, tolerance: float) -> None:
    """Errors relative to the sum of absolute products, which bounds float rounding."""
    worst = float(np.max(np.abs(got - want) / size))
    assert worst < tolerance, f"off by {worst:.2e} of the sum of absolute products"


def make_product(kind: GGMLType, n_in: int, n_out: int, **options: object) -> tuple[OneOp, np.ndarray, np.ndarray]:
    """A product, its inputs and its weights as they are in the file."""
    x = random(1, N_TOKENS, n_in) * np.exp(random(2, N_TOKENS, 1))
    can_write = TABLE[kind].quantize is not None
    values = random(3, n_out, n_in) if can_write else random_blocks(kind, n_out, n_in, 3)
    out = Buffer("out", n_out)
    op = MatMul(out, Buffer("x", n_in), "w", **options)  # type: ignore[arg-type]
    return OneOp({"x": x}, (op,), out, {"w": (kind, values)}), x, dequantized(kind, values)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
@pytest.mark.parametrize(("n_in", "n_out"), [(256, 300), (1280, 72)])
def test_product(tmp_path: Path, kind: GGMLType, n_in: int, n_out: int) -> None:
    one, x, w = make_product(kind, n_in, n_out)
    seen = x.astype(np.float64) if kind in FLOAT_TYPES else quantize_activations(x)
    results = []
    with loaded(one, tmp_path, "cpu") as backend:
        for n_rows in ROWS:
            tokens = np.arange(n_rows) % N_TOKENS
            got = backend.run(make_batch(tokens)).copy()
            results.append(got)
            want, size = seen[tokens] @ w.T, np.abs(seen[tokens]) @ np.abs(w).T
            assert_close(got, want, size, 1e-6)
            exact = x[tokens].astype(np.float64) @ w.T
            rms = np.linalg.norm(x[tokens], axis=1, keepdims=True) * np.linalg.norm(w, axis=1) / 127
            assert np.all(np.abs(got - exact) < rms), "int8 activations cost more than they must"
    for got in results:
        assert np.array_equal(got, results[-1][: len(got)]), f"{len(got)} rows have other bits than {ROWS[-1]}"


def test_bias_scale_and_residual(tmp_path: Path) -> None:
    n = 256
    one, x, w = make_product(GGMLType.Q4_K, n, n, bias="b", scale=0.25, residual=Buffer("r", n))
    bias, residual = random(7, n), random(8, N_TOKENS, n)
    one.inputs["r"] = residual
    one.weights = {**one.weights, "b": (GGMLType.F32, bias)}
    seen = quantize_activations(x)
    results = {}
    for kind in ("cpu", "reference"):
        with loaded(one, tmp_path, kind) as backend:
            results[kind] = backend.run(make_batch(range(9))).copy()
            one_row = backend.run(make_batch([5])).copy()
            assert np.allclose(one_row[0], results[kind][5], rtol=1e-5, atol=1e-5)
    want = residual[:9] + 0.25 * (seen[:9] @ w.T + bias)
    assert np.allclose(results["cpu"], want, rtol=1e-5, atol=1e-5)
    plain = residual[:9] + 0.25 * (x[:9].astype(np.float64) @ w.T + bias)
    assert np.allclose(results["reference"], plain, rtol=1e-5, atol=1e-5)


def test_one_quantized_copy_serves_products_of_different_blocks(tmp_path: Path) -> None:
    """Q6_K sums codes of 16, the others of 32; both read one copy of the activations."""
    x = random(4, N_TOKENS, 512)
    first, second = Buffer("first", 512), Buffer("out", 96)
    weights = {"a": (GGMLType.Q6_K, random(5, 512, 512)), "b": (GGMLType.Q5_1, random(6, 96, 512))}
    ops = (MatMul(first, Buffer("x", 512), "a"), MatMul(second, Buffer("x", 512), "b"))
    with loaded(OneOp({"x": x}, ops, second, weights), tmp_path, "cpu") as backend:
        got = backend.run(make_batch(range(7)))
    w = dequantized(*weights["b"])
    seen = quantize_activations(x)[:7]
    assert_close(got, seen @ w.T, np.abs(seen) @ np.abs(w).T, 1e-6)


def test_a_very_long_pass(tmp_path: Path) -> None:
    """Thousands of rows: what a thread works in grows with them."""
    n_rows = 6000
    one, _, _ = make_product(GGMLType.Q4_K, 256, 72)
    tokens = np.arange(n_rows) % N_TOKENS
    with loaded(one, tmp_path, "cpu", n_threads=3, n_ctx=n_rows, max_rows=n_rows) as backend:
        got = backend.run(make_batch(tokens)).copy()
        few = backend.run(make_batch(tokens[:N_TOKENS])).copy()
    assert np.array_equal(got, few[tokens])


def test_extreme_activations(tmp_path: Path) -> None:
    """Blocks of zeros, of one huge value, and of values that all have the largest code."""
    x = np.zeros((N_TOKENS, 256), np.float32)
    x[1] = 3.0
    x[2, 40] = -1e30
    x[3] = np.where(np.arange(256) % 2, 1, -1)
    x[4] = 1e-30
    values = np.ones((64, 256), np.float32) * np.linspace(-127, 127, 64, dtype=np.float32)[:, None]
    w = dequantized(GGMLType.Q8_0, values)
    one = OneOp(
        {"x": x}, (MatMul(out := Buffer("out", 64), Buffer("x", 256), "w"),), out, {"w": (GGMLType.Q8_0, values)}
    )
    with loaded(one, tmp_path, "cpu") as backend:
        got = backend.run(make_batch(range(5))).copy()
        alone = np.concatenate([backend.run(make_batch([row])).copy() for row in range(5)])
    seen = quantize_activations(x)[:5]
    assert np.all(np.abs(got - seen @ w.T) <= 1e-6 * (np.abs(seen) @ np.abs(w).T))
    assert np.array_equal(got, alone)


def test_types_without_a_packed_form_are_widened(tmp_path: Path) -> None:
    one, x, w = make_product(GGMLType.F64, 256, 40)
    with loaded(one, tmp_path, "cpu") as backend:
        got = backend.run(make_batch(range(6)))
        assert backend.widened == ("w",)  # type: ignore[attr-defined]
    halves = w.astype(np.float32).astype(np.float16).astype(np.float64)
    seen = x[:6].astype(np.float64)
    assert_close(got, seen @ halves.T, np.abs(seen) @ np.abs(halves).T, 1e-6)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_packed_bytes_say_what_the_file_says(tmp_path: Path, kind: GGMLType) -> None:
    """Embedding reads single rows of a packed matrix: each must have the file's values. Bytes are random, so every
    code, scale and minimum occurs."""
    n_rows, width = 83, 512
    if kind in FLOAT_TYPES:
        data = pack_tensor(kind, random(10, n_rows, width))[1]
        packed = np.frombuffer(data, np.uint8).reshape(n_rows, -1)
    else:
        packed = random_blocks(kind, n_rows, width, 9)
    want = TABLE[kind].dequantize(packed)
    out = Buffer("out", width)
    one = OneOp({}, (Embed(out, "table", 0.5),), out, {"table": (kind, packed)})
    with loaded(one, tmp_path, "cpu", n_ctx=n_rows, max_rows=n_rows) as backend:
        got = backend.run(make_batch(range(n_rows))).copy()
        single = backend.run(make_batch([77])).copy()
    size = np.abs(want).max(axis=1, keepdims=True)
    assert np.all(np.abs(got - 0.5 * want) <= 1e-6 * size)
    assert np.array_equal(single[0], got[77])
