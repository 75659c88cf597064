"""Every CUDA kernel's compiled code, run by `ptx_machine.py`, against the reference: one or a few ops at a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed: pip install -e '.[dev]'")

from models.gguf_writer import pack_tensor, random_blocks
from one_op import OneOp, join_batches, loaded, make_batch, make_matrix, quantize_activations, quantize_cached, random
from phobos.gguf.quants import TABLE, GGMLType
from phobos.kernels.backend import Batch, find_best
from phobos.kernels.cuda.backend import CudaBackend
from phobos.kernels.cuda.lowering.buffers import CHOICE_SPAN
from phobos.kernels.cuda.packed_types import PACKED, packed_bytes
from phobos.kernels.cuda.packing import find_packer
from phobos.program.steps import (
    Activate,
    Add,
    AddGated,
    AddPosition,
    Attention,
    Buffer,
    CacheLayer,
    Embed,
    Experts,
    Glu,
    HeadMatMul,
    HeadNorm,
    LayerNorm,
    MatMul,
    Op,
    RmsNorm,
    RopeTable,
    RotateStore,
    Route,
    SoftCap,
    Splice,
    Temper,
)

pytestmark = pytest.mark.timeout(300)  # the first to want a kernel compiles it
F32 = GGMLType.F32
#: Of types that share a kernel, one each here; the others are held against their values in `test_packed_levels`.
OWN_KERNELS = tuple(kind for kind in PACKED if not PACKED[kind].table or kind in (GGMLType.Q3_K, GGMLType.IQ4_XS))
FLOAT_TYPES = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)


def run_both(one: OneOp, folder: Path, *batches: Batch, **limits: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """What the compiled code and the reference give for each batch in turn."""
    found = []
    for kind in ("cuda", "reference"):
        with loaded(one, folder, kind, **limits) as backend:
            found.append([backend.run(batch).copy() for batch in batches])
    return list(zip(*found, strict=True))


def assert_like_reference(one: OneOp, folder: Path, n: int, tolerance: float = 3e-6) -> None:
    """Together and a row alone; alone, a row has the bits it has together."""
    together, alone = run_both(one, folder, make_batch(range(n)), make_batch([n - 1], n - 1))
    for got, want in (together, alone):
        assert np.abs(got - want).max() <= tolerance * max(1.0, float(np.abs(want).max()))
    assert np.array_equal(together[0][-1], alone[0][0])


@pytest.mark.parametrize("kind", OWN_KERNELS, ids=lambda kind: kind.name)
def test_products(tmp_path: Path, kind: GGMLType) -> None:
    """Against exact arithmetic on the same quantized activations; outputs that fill no block, a bias, a scale, a
    residual, and only some of the weight's rows."""
    n_in, n_out = 768, 40
    tokens = np.arange(70) % n_out
    x, values = random(1, n_out, n_in), make_matrix(kind, n_out + 32, n_in)
    shape, data = pack_tensor(kind, values)
    w = TABLE[kind].dequantize(np.frombuffer(data, np.uint8)).reshape(shape).astype(np.float64)[16 : 16 + n_out]
    bias, residual = random(4, n_out + 32), random(5, n_out, n_out)
    out, r = Buffer("out", n_out), Buffer("r", n_out)
    op = MatMul(out, Buffer("x", n_in), "w", "b", r, 0.5, 16)
    one = OneOp({"x": x, "r": residual}, (op,), out, {"w": (kind, values), "b": (F32, bias)})
    seen = x.astype(np.float64) if kind in FLOAT_TYPES else quantize_activations(x)
    size = np.abs(seen) @ np.abs(w).T
    with loaded(one, tmp_path, "cuda", n_ctx=96, max_rows=70) as backend:
        found = [backend.run(make_batch(tokens[:n])).copy() for n in (1, 3, 24, 70)]
    for got in found:
        n = len(got)
        want = (seen @ w.T + bias[16 : 16 + n_out]) * 0.5 + residual
        assert np.max(np.abs(got - want[tokens[:n]]) / size[tokens[:n]]) < 1e-6
        assert np.array_equal(got, found[-1][:n]), "a row's bits depend on its company"


@pytest.mark.parametrize(("kind", "n_in"), [(GGMLType.Q8_0, 32), (GGMLType.Q4_1, 96), (GGMLType.Q5_0, 544)])
def test_products_of_few_and_odd_blocks(tmp_path: Path, kind: GGMLType, n_in: int) -> None:
    """Parts that have no block or one less than others; more outputs and rows than a tile has."""
    x, values, out = random(1, 150, n_in), random(2, 150, n_in), Buffer("out", 150)
    shape, data = pack_tensor(kind, values)
    w = TABLE[kind].dequantize(np.frombuffer(data, np.uint8)).reshape(shape).astype(np.float64)
    one = OneOp({"x": x}, (MatMul(out, Buffer("x", n_in), "w"),), out, {"w": (kind, values)})
    with loaded(one, tmp_path, "cuda", n_ctx=160, max_rows=140) as backend:
        found = [backend.run(make_batch(np.arange(n))).copy() for n in (8, 63, 140)]
    seen = quantize_activations(x)
    for got in found:
        n = len(got)
        assert np.max(np.abs(got - seen[:n] @ w.T) / (np.abs(seen[:n]) @ np.abs(w).T)) < 1e-6
        assert np.array_equal(got, found[-1][:n])


@pytest.mark.parametrize("kind", OWN_KERNELS, ids=lambda kind: kind.name)
def test_embedding(tmp_path: Path, kind: GGMLType) -> None:
    out = Buffer("out", 256)
    one = OneOp({}, (Embed(out, "t", 2.0),), out, {"t": (kind, make_matrix(kind, 40, 256))})
    ((got, want),) = run_both(one, tmp_path, make_batch([0, 39, 7, 7]))
    assert np.allclose(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", [kind for kind in PACKED if PACKED[kind].table], ids=lambda kind: kind.name)
def test_packed_levels(kind: GGMLType) -> None:
    """Table, scales and codes give the file's values, also of blocks without a scale."""
    blocks = random_blocks(kind, 64, 256, 3).reshape(-1, TABLE[kind].n_bytes)
    if kind != GGMLType.IQ1_M:
        where = np.flatnonzero((random_blocks(kind, 1, 256, 3) != random_blocks(kind, 1, 256, 3, size=0.7))[0])
        blocks[3, where] = 0
    want = TABLE[kind].dequantize(blocks).reshape(-1, 256)
    codes, table, scales = find_packer(kind)(blocks)
    assert table is None and scales is not None
    each = np.stack([codes & 15, codes >> 4], axis=-1).reshape(-1, 2 * PACKED[kind].code_bytes)
    if PACKED[kind].code_bytes == 12:
        last = np.packbits((each >> 3).reshape(-1, 3, 8), axis=1, bitorder="little")[:, 0]
        each = np.concatenate([each & 7, last], axis=1)
    each = each.reshape(-1, 16, 16)
    d, small = scales[:, 16:].copy().view("<f4"), scales[:, :16].view(np.int8)
    got = np.array(PACKED[kind].table, np.float32)[each] * (d * small)[:, :, None]
    assert np.allclose(got.reshape(-1, 256), want, rtol=1e-6, atol=0)
    assert codes.size + scales.size == {12: 116, 16: 148}[PACKED[kind].code_bytes] * len(blocks)


def test_all_types_of_weights_are_packed() -> None:
    """What remains is widened: numbers that are not quantized, and the types of activations. None takes much more
    than the file has, but for codebooks."""
    wide = {"F64", "I8", "I16", "I32", "I64", "Q8_1", "Q8_K"}
    assert {kind.name for kind in TABLE if kind not in PACKED} == wide
    for kind, packed in PACKED.items():
        n_bytes = packed_bytes(packed, 256, 2048)
        ratio = n_bytes / (256 * 2048 // TABLE[kind].block * TABLE[kind].n_bytes)
        assert 0.99 < ratio < (2.4 if kind.name.startswith("IQ") else 1.3), kind.name


def test_norms(tmp_path: Path) -> None:
    x, r = random(1, 20, 320) * np.exp(3 * random(2, 20, 1)), random(3, 20, 320)
    x[7] = 0
    weights = {"w": (F32, random(4, 320)), "b": (F32, random(5, 320)), "h": (F32, random(6, 80))}
    b, rb, out = Buffer("x", 320), Buffer("r", 320), Buffer("out", 320)
    for op in (
        RmsNorm(out, b, "w", 1e-5),
        RmsNorm(out, b, "w", 1e-5, rb),
        LayerNorm(out, b, "w", "b", 1e-5),
        LayerNorm(out, b, "w", None, 1e-5),
        HeadNorm(out, b, 4, "h", 1e-5),
        HeadNorm(out, b, 5, None, 1e-5),
        HeadNorm(out, b, 4, "w", 1e-5, has_own_weights=True),
    ):
        assert_like_reference(OneOp({"x": x, "r": r}, (op,), out, weights), tmp_path, 20)


def test_wanted_rows(tmp_path: Path) -> None:
    x, out = Buffer("x", 64), Buffer("out", 64, per_output=True)
    one = OneOp({"x": random(1, 40, 64)}, (RmsNorm(out, x, "w", 1e-5),), out, {"w": (F32, random(2, 64))})
    rows = make_batch(range(40))
    batch = Batch(rows.tokens, rows.positions, rows.slots, np.array([3, 17, 39], np.int32))
    nothing = Batch(rows.tokens, rows.positions, rows.slots, np.empty(0, np.int32))
    for got, want in run_both(one, tmp_path, batch, nothing):
        assert got.shape == want.shape
        assert np.allclose(got, want, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu", "relu", "relu_squared", "sigmoid", "identity"])
def test_activations(tmp_path: Path, activation: str) -> None:
    """Also from the same values into a quantized product: fused, the bits are those of quantizing apart."""
    x = np.concatenate([np.linspace(-90, 90, 512), np.linspace(-6, 6, 512)]).astype(np.float32).reshape(4, 256)
    a, b, out, end = Buffer("x", 256), Buffer("y", 256), Buffer("out", 256), Buffer("end", 64)
    inputs = {"x": x, "y": random(1, 4, 256)}
    first: Op
    gated = Glu(out, a, b, activation)  # type: ignore[arg-type]
    only_gates = activation in ("sigmoid", "identity")
    for first in (gated,) if only_gates else (gated, Activate(out, a, activation)):  # type: ignore[arg-type]
        assert_like_reference(OneOp(inputs, (first,), out), tmp_path, 4, 1e-6)
        weights = {"m": (GGMLType.Q8_0, random(2, 64, 256))}
        found = []
        for more in ((), (Add(Buffer("spare", 256), out, None),)):
            one = OneOp(inputs, (first, MatMul(end, out, "m"), *more), end, weights)
            with loaded(one, tmp_path, "cuda") as backend:
                found.append(backend.run(make_batch(range(4))).copy())
        assert np.array_equal(found[0], found[1])


def test_pointwise(tmp_path: Path) -> None:
    x, y, gate = random(1, 24, 96) * 30, random(2, 24, 96), random(3, 24, 1)
    a, b, g, out = Buffer("x", 96), Buffer("y", 96), Buffer("g", 1), Buffer("out", 96)
    weights = {"p": (F32, random(4, 64, 96)), "s": (F32, random(5, 1)), "c": (F32, random(6, 96))}
    cases: list[tuple[tuple[Op, ...], Buffer]] = [
        ((SoftCap(a, 20.0),), a),
        ((Add(out, a, b, 0.5),), out),
        ((Add(out, a, None, 2.0, "s"),), out),
        ((Add(out, a, b, 2.0, "c"),), out),
        ((AddGated(out, a, g, b),), out),
        ((AddPosition(a, "p"),), a),
        ((Temper(a, 0.1, 5),), a),
        ((Add(out, a, None), Splice(out, b, 4, 10, 2, 20, 3, 24)), out),
        ((Add(out, a, None), Splice(out, b, 3, 16, 80, 0, 0, 32)), out),
    ]
    for ops, result in cases:
        assert_like_reference(OneOp({"x": x, "y": y, "g": gate}, ops, result, weights), tmp_path, 24)


@pytest.mark.parametrize(
    ("style", "dim", "n_rot", "with_norms"),
    [("normal", 64, 64, True), ("neox", 128, 32, False), ("neox", 16, 16, True)],
)
def test_rotations(tmp_path: Path, style: str, dim: int, n_rot: int, with_norms: bool) -> None:
    frequencies = tuple(float(f) for f in 100.0 ** (-np.arange(n_rot // 2) / n_rot))
    layer = CacheLayer(0, 2, dim, dim)
    q, k, v = (Buffer(name, n * dim) for name, n in (("q", 4), ("k", 2), ("v", 2)))
    table = Buffer("table", n_rot)
    inputs = {b.name: random(i, 30, b.width) for i, b in enumerate((q, k, v))}
    weights = {"qn": (F32, 1 + 0.3 * random(5, dim)), "kn": (F32, 1 + 0.3 * random(6, dim))} if with_norms else {}
    names = ("qn", "kn") if with_norms else (None, None)
    ops = (
        RopeTable(table, frequencies, 1.1),
        RotateStore(q, k, v, table, layer, 4, style, *names, 1e-6),  # type: ignore[arg-type]
    )
    for result in (q, k):
        assert_like_reference(OneOp(inputs, ops, result, weights, (layer,)), tmp_path, 30)


@pytest.mark.parametrize(
    ("n_heads", "n_kv_heads", "k_dim", "v_dim", "window", "soft_cap", "sinks", "cache"),
    [
        (4, 2, 64, 64, 0, 0.0, False, ("f16", "f16")),
        (3, 3, 16, 48, 0, 0.0, True, ("f16", "f16")),
        (9, 1, 32, 32, 50, 5.0, False, ("f16", "f16")),
        (2, 1, 128, 256, 140, 0.0, True, ("f16", "f16")),
        (3, 1, 160, 96, 50, 0.0, True, ("q8_0", "q8_0")),
        pytest.param(2, 1, 576, 512, 0, 0.0, False, ("f16", "f16"), marks=pytest.mark.slow),
        pytest.param(2, 1, 576, 512, 0, 5.0, False, ("q8_0", "q8_0"), marks=pytest.mark.slow),
        pytest.param(4, 2, 64, 64, 0, 0.0, False, ("q8_0", "f16"), marks=pytest.mark.slow),
        pytest.param(4, 2, 128, 128, 0, 0.0, False, ("f16", "q8_0"), marks=pytest.mark.slow),
    ],
)
def test_attention(
    tmp_path: Path, n_heads: int, n_kv_heads: int, k_dim: int, v_dim: int, window: int, soft_cap: float, sinks: bool,
    cache: tuple[str, str],
) -> None:  # fmt: skip
    """Two slots, by turns and together, over the ends of spans; many rows at once, then few. Coded caches against plain
    attention with what the codes keep of keys and values, and of queries where keys are codes."""
    layer = CacheLayer(0, n_kv_heads, k_dim, v_dim, window)
    widths = {"q": n_heads * k_dim, "k": n_kv_heads * k_dim, "v": n_kv_heads * v_dim}
    n_tokens = n_heads * v_dim
    inputs = {
        n: random(i, n_tokens, w).astype(np.float16).astype(np.float32) for i, (n, w) in enumerate(widths.items())
    }
    q, k, v = (Buffer(name, width) for name, width in widths.items())
    out = Buffer("out", n_tokens)
    attention = Attention(out, q, layer, n_heads, 1.5 * k_dim**-0.5, soft_cap, "s" if sinks else None)
    ops = (RotateStore(q, k, v, None, layer, n_heads), attention)
    weights = {"s": (F32, random(9, n_heads))} if sinks else {}

    def rows(slot: int, first: int, n: int, text: int = 0) -> Batch:
        return make_batch((np.arange(first, first + n) * 7 + text) % n_tokens, first, slot)

    batches = [
        rows(0, 0, 130),
        rows(1, 0, 3, 1),
        join_batches(rows(1, 3, 9, 1), rows(0, 130, 3)),
        join_batches(rows(1, 12, 1, 1), rows(0, 133, 1)),
        rows(1, 0, 134),
        fork(rows(0, 96, 10, 5), 96, 64),
        fork(rows(0, 106, 1, 5), 96, 64),
    ]
    one = OneOp(inputs, ops, out, weights, (layer,))
    with loaded(one, tmp_path, "cuda", n_ctx=192, max_rows=136, cache=cache) as backend:
        found = [backend.run(batch).copy() for batch in batches]
    if cache[0] == "q8_0":
        inputs |= {
            "q": quantize_activations(inputs["q"], 127 * 256).astype(np.float32),
            "k": quantize_cached(inputs["k"]),
        }
    if cache[1] == "q8_0":
        inputs["v"] = quantize_cached(inputs["v"])
    with loaded(one, tmp_path, "reference", n_ctx=192, max_rows=136) as backend:
        wanted = [backend.run(batch).copy() for batch in batches]
    for got, want in zip(found, wanted, strict=True):
        assert np.abs(got - want).max() < 5e-6
    pieces, whole = found[:4], found[4]
    assert np.array_equal(np.concatenate([pieces[0], pieces[2][9:], pieces[3][1:]]), whole), (
        "a row's bits depend on others"
    )


def fork(batch: Batch, shared: int, shift: int) -> Batch:
    """Rows that share their slot's beginning and keep the rest elsewhere."""
    return replace(batch, places=batch.positions + shift, shared=np.full(len(batch.tokens), shared, np.int32))


ROUTES = [
    {"gating": "softmax"},
    {"gating": "sigmoid", "bias": "b", "is_normalized": False, "scale": 2.5},
    {"gating": "chosen", "bias": "b", "expert_scales": "e"},
    {"gating": "sigmoid", "bias": "b", "n_groups": 4, "n_groups_used": 2},
]


@pytest.mark.parametrize("options", ROUTES, ids=str)
def test_routes(tmp_path: Path, options: dict[str, object]) -> None:
    n, n_used = 40, 4
    out = Buffer("out", 2 * n_used)
    op = Route(out, Buffer("x", n), n_used, **options)  # type: ignore[arg-type]
    weights = {name: (F32, random(2, n)) for field, name in (("bias", "b"), ("expert_scales", "e")) if field in options}
    assert_like_reference(OneOp({"x": random(1, 30, n)}, (op,), out, weights), tmp_path, 8)


@pytest.mark.parametrize("kind", [F32, GGMLType.Q8_0, GGMLType.Q4_1], ids=lambda kind: kind.name)
def test_experts(tmp_path: Path, kind: GGMLType) -> None:
    """Gate and up apart, or one matrix of both with biases; tiles of one pair, of eight and of 32, which an expert that
    most rows choose fills several times. A row has the same bits in all of them."""
    n, n_ff, n_experts, n_used, n_rows = 128, 96, 5, 2, 48
    names = (("x", n), ("r", n), ("out", n), ("l", n_experts), ("route", 2 * n_used))
    x, r, out, logits, routes = (Buffer(name, width) for name, width in names)
    inputs = {"x": random(1, n_rows, n), "r": random(2, n_rows, n), "l": random(3, n_rows, n_experts)}
    inputs["l"][:, 3] += 2
    weights = {
        "gate": (kind, random(4, n_experts, n_ff, n) / 8),
        "up": (kind, random(5, n_experts, n_ff, n) / 8),
        "both": (kind, random(6, n_experts, 2 * n_ff, n) / 8),
        "down": (kind, random(7, n_experts, n, n_ff) / 8),
        "bb": (F32, random(8, n_experts, 2 * n_ff)),
        "db": (F32, random(9, n_experts, n)),
    }
    route = Route(routes, logits, n_used, "softmax")
    apart = Experts(out, x, routes, r, n_experts, n_ff, "silu", "gate", "up", "down")
    joined = Experts(
        out, x, routes, None, n_experts, n_ff, "swiglu_oai", None, "both", "down", up_bias="bb", down_bias="db"
    )
    batches = [make_batch(range(n_rows)), make_batch(range(13)), make_batch([1, 2])]
    for op in (apart,) if kind == GGMLType.Q4_1 else (joined, apart):
        one = OneOp(inputs, (route, op), out, weights)
        found = run_both(one, tmp_path, *batches)
        for got, want in found:
            assert np.abs(got - want).max() < (1e-5 if kind == F32 else 0.1) * np.abs(want).max()
        whole, few, pair = (got for got, _ in found)
        assert np.array_equal(whole[:13], few) and np.array_equal(whole[1:3], pair)
    with loaded(one, tmp_path, "cuda") as backend:
        assert isinstance(backend, CudaBackend)
        launched = {n: [launch.kernel for launch in backend.launches(n, 1)] for n in (2, 16, 64)}
        assert [any("matmul_tile" in name for name in launched[n]) for n in (2, 16, 64)] == [False, False, kind != F32]
        assert ["moe:sort_pairs" in launched[n] for n in (2, 16, 64)] == [False, True, True]
        n_gated = [sum("gated" in name for name in launched[n]) for n in (2, 16, 64)]
        assert n_gated == [1, 1, int(kind == F32)]
        assert ["moe:combine" in launched[n] for n in (2, 16, 64)] == [False, True, True]


def test_many_experts(tmp_path: Path) -> None:
    """More than threads sort their pairs; some have none, some many."""
    n, n_experts, n_used, n_rows = 32, 300, 4, 90
    x, out, logits, routes = (Buffer(b, w) for b, w in (("x", n), ("out", n), ("l", n_experts), ("route", 2 * n_used)))
    inputs = {"x": random(1, n, n), "l": random(3, n, n_experts)}
    inputs["l"][:, [7, 299]] += 3
    inputs["l"][:, 20:140] -= 9
    weights = {name: (F32, random(i, n_experts, n, n) / 4) for i, name in enumerate(("gate", "up", "down"))}
    op = Experts(out, x, routes, None, n_experts, n, "silu", "gate", "up", "down")
    one = OneOp(inputs, (Route(routes, logits, n_used, "softmax"), op), out, weights)
    batches = (make_batch(np.arange(n_rows) % n), make_batch([5]))
    (all_rows, alone) = run_both(one, tmp_path, *batches, n_ctx=96, max_rows=96)
    for got, want in (all_rows, alone):
        assert np.abs(got - want).max() < 1e-5 * np.abs(want).max()
    assert np.array_equal(all_rows[0][5:6], alone[0])


@pytest.mark.parametrize("kind", [F32, GGMLType.Q8_0], ids=lambda kind: kind.name)
def test_products_of_heads(tmp_path: Path, kind: GGMLType) -> None:
    out = Buffer("out", 3 * 40)
    op = HeadMatMul(out, Buffer("x", 3 * 64), "w", 3)
    one = OneOp({"x": random(1, 37, 192)}, (op,), out, {"w": (kind, random(2, 3, 40, 64))})
    for n in (12, 37):  # the second on tensor cores
        assert_like_reference(one, tmp_path, n, 0.02 if kind == GGMLType.Q8_0 else 3e-6)


def test_the_best_token(tmp_path: Path) -> None:
    """Over the borders of lanes, warps and spans; ties, NaN, infinities, and rows of which nothing can be chosen."""
    width = 2 * CHOICE_SPAN + 700
    rows = np.random.default_rng(7).integers(-99, 100, (8, width)).astype(np.float32)  # full of ties
    rows[1, CHOICE_SPAN - 1 : CHOICE_SPAN + 1] = rows[1, -1] = 100
    rows[2, 33], rows[3], rows[4] = np.nan, np.nan, -np.inf
    rows[5], rows[5, 4567], rows[6, 4321] = -np.inf, -1e38, np.inf
    out = Buffer("out", width)
    with loaded(OneOp({"x": rows}, (Add(out, Buffer("x", width), None),), out), tmp_path, "cuda") as backend:
        assert backend.limits.chooses
        for n in (width, CHOICE_SPAN, CHOICE_SPAN + 1, 5):
            batch = make_batch(range(8))
            logits = backend.run(batch)[:, :n].copy()
            assert backend.choose(batch, n).tolist() == find_best(logits).tolist()
            assert backend.choose(make_batch([1]), n).tolist() == find_best(logits[1:2]).tolist()
