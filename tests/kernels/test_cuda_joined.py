"""Neighbouring ops that a card does in one launch, run by `ptx_machine.py`: the bits are those they have apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed: pip install -e '.[dev]'")

from one_op import OneOp, loaded, make_batch, make_matrix, random
from phobos.gguf.quants import GGMLType
from phobos.kernels.cuda.backend import CudaBackend
from phobos.program.steps import (
    Attention,
    Buffer,
    CacheLayer,
    Glu,
    MatMul,
    RmsNorm,
    RopeTable,
    RotateStore,
    Splice,
    Temper,
)

pytestmark = pytest.mark.timeout(300)  # the first to want a kernel compiles it
F32 = GGMLType.F32


def run_fused(
    one: OneOp, folder: Path, kernel: str, rows: tuple[int, ...], cache: tuple[str, str] = ("f16", "f16")
) -> None:
    """Ops that are one launch for few rows, against the same ops kept apart: equal bits, for any number of rows."""
    apart = [
        op for each in one.ops for op in ((each, Temper(each.out, 0.0, 1)) if isinstance(each, MatMul) else (each,))
    ]
    found = []
    for ops in (one.ops, tuple(apart)):
        with loaded(replace(one, ops=ops), folder, "cuda", n_ctx=96, max_rows=70, cache=cache) as backend:
            assert isinstance(backend, CudaBackend)
            found.append([backend.run(make_batch(np.arange(n) % 24)).copy() for n in (1, 1, 5, 24, 70)])
            for n in (1, 4, 24, 70):
                names = [launch.kernel.partition(":")[2] for launch in backend.launches(n, n)]
                is_fused = any(name.startswith(kernel) for name in names)
                assert is_fused == (ops is one.ops and n in rows), names
    for together, separate in zip(*found, strict=True):
        assert np.array_equal(together, separate)
        assert np.array_equal(together, found[0][-1][: len(together)])


@pytest.mark.parametrize(
    "kinds", [(GGMLType.Q6_K, GGMLType.Q4_K, GGMLType.Q6_K), (GGMLType.IQ4_XS,) * 2, (F32, GGMLType.F16)], ids=str
)
def test_products_of_one_input_are_one_launch(tmp_path: Path, kinds: tuple[GGMLType, ...]) -> None:
    """Two or three matrices of two types, of several widths, with and without a bias, one a part of its rows."""
    x, widths = Buffer("x", 256), (72, 40, 16)
    outs = [Buffer(name, width) for name, width in zip("abc", widths[: len(kinds)], strict=False)]
    matrices = {
        f"w{i}": (kind, make_matrix(kind, widths[i] + 8, 256)[:: 1 - 2 * (i % 2)]) for i, kind in enumerate(kinds)
    }
    weights = {**matrices, "bias": (F32, random(5, 80))}
    products = [MatMul(out, x, f"w{i}", "bias" if i == 0 else None) for i, out in enumerate(outs)]
    products[-1] = replace(products[-1], first_row=8)
    out = Buffer("out", sum(b.width for b in outs))
    starts = np.cumsum([0, *(b.width for b in outs)]).tolist()
    copies = [Splice(out, b, 1, b.width, 0, 0, start, 0) for b, start in zip(outs, starts, strict=False)]
    one = OneOp({"x": random(1, 24, 256)}, (*products, *copies), out, weights)
    run_fused(one, tmp_path, "joined", (1, 4, 24, 70) if kinds[0] == F32 else (1, 4))


@pytest.mark.parametrize(
    "kind", [GGMLType.Q4_K, pytest.param(GGMLType.Q2_K, marks=pytest.mark.slow), F32], ids=lambda kind: kind.name
)
@pytest.mark.parametrize("is_turned", [False, True])
def test_gate_up_and_activation_are_one_launch(tmp_path: Path, kind: GGMLType, is_turned: bool) -> None:
    """Into a product that takes them quantized; where floats are wanted too, of the gate as well, not in prompts."""
    x, a, b, hidden = Buffer("x", 256), Buffer("a", 96), Buffer("b", 96), Buffer("hidden", 96)
    out = Buffer("out", 40)
    weights = {name: (kind, make_matrix(kind, 96, 256)[::step]) for name, step in (("g", 1), ("u", -1))}
    weights |= {"bias": (F32, random(5, 96)), "d": (GGMLType.Q8_0, random(6, 40, 96))}
    products = (MatMul(a, x, "g", "bias"), MatMul(b, x, "u"))
    glu = Glu(hidden, b, a, "gelu_tanh") if is_turned else Glu(hidden, a, b, "silu")
    more = (Splice(out, hidden, 1, 8, 0, 0, 0, 0), Splice(out, b, 1, 8, 0, 0, 8, 0)) if is_turned else ()
    one = OneOp({"x": random(1, 24, 256)}, (*products, glu, MatMul(out, hidden, "d"), *more), out, weights)
    run_fused(one, tmp_path, "gated", (1, 4, 24, 70) if kind == F32 else (1, 4) if is_turned else (1, 4, 70))


@pytest.mark.parametrize("has_norms", [False, True])
def test_products_and_rotations_are_one_launch(tmp_path: Path, has_norms: bool) -> None:
    """Queries, keys and values of two types into the cache, halves or codes, whichever product comes first."""
    layer, x = CacheLayer(0, 2, 32, 64), Buffer("x", 256)
    q, k, v, table, out = (Buffer(*b) for b in (("q", 128), ("k", 64), ("v", 128), ("table", 16), ("out", 256)))
    kinds = {"wq": GGMLType.Q4_K, "wk": GGMLType.Q4_K, "wv": GGMLType.Q6_K}
    weights = {name: (kind, make_matrix(kind, 128, 256)) for name, kind in kinds.items()}
    weights |= {"bias": (F32, random(5, 128)), "qn": (F32, random(6, 32)), "kn": (F32, random(7, 32))}
    products = (MatMul(q, x, "wq", "bias"), MatMul(k, x, "wk", "bias"), MatMul(v, x, "wv"))
    norms = ("qn", "kn") if has_norms else (None, None)
    rotate = RotateStore(q, k, v, table, layer, 4, "neox" if has_norms else "normal", *norms, 1e-6)
    frequencies = tuple(float(f) for f in 100.0 ** (-np.arange(8) / 8))
    ops = (
        RopeTable(table, frequencies, 1.0),
        *products[:: -1 if has_norms else 1],
        rotate,
        Attention(out, q, layer, 4, 0.2),
    )
    one = OneOp({"x": random(1, 24, 256)}, ops, out, weights, (layer,))
    run_fused(one, tmp_path, "rotated", (1, 4), cache=("q8_0", "f16") if has_norms else ("f16", "f16"))


@pytest.mark.parametrize("kind", [GGMLType.Q6_K, GGMLType.F16], ids=lambda kind: kind.name)
def test_a_product_and_its_norm_are_one_launch(tmp_path: Path, kind: GGMLType) -> None:
    """Of one row, in a width that threads share unevenly; with residuals of the product and of the norm."""
    x, r, y, normed, out = (
        Buffer("x", 256),
        Buffer("r", 672),
        Buffer("y", 672),
        Buffer("normed", 672),
        Buffer("out", 40),
    )
    weights = {
        "w": (kind, make_matrix(kind, 672, 256)),
        "n": (F32, random(4, 672)),
        "d": (GGMLType.Q8_0, random(6, 40, 672)),
    }
    ops = (MatMul(y, x, "w", None, r, 0.5), RmsNorm(normed, y, "n", 1e-5, r), MatMul(out, normed, "d"))
    run_fused(OneOp({"x": random(1, 24, 256), "r": random(2, 24, 672)}, ops, out, weights), tmp_path, "normed", (1,))
