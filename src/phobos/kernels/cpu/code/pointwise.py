"""Element-wise steps: gated activations (also fused with quantization), soft caps; and the embedding."""

from __future__ import annotations

import numpy as np

from phobos.kernels.cpu.code.access import (
    load_f32,
    load_i32,
    load_i64,
    load_u8,
    store_f32,
    vload,
    vstore,
    vstore_u8,
)
from phobos.kernels.cpu.code.elementary import (
    gelu,
    gelu_tanh,
    hyperbolic_tangent,
    identity,
    relu,
    relu_squared,
    sigmoid,
    silu,
)
from phobos.kernels.cpu.code.formats import FloatFormat, Format, make_lookup_of_kernels
from phobos.kernels.cpu.code.norm import is_mine, quantize_block, share_of
from phobos.kernels.cpu.code.simd import inlined, splat
from phobos.kernels.cpu.declaration import Float, Int, Kernel, kernel
from phobos.kernels.cpu.layout import BLOCK, GROUP, Header

_TOKENS, _SCRATCH, _SCRATCH_BYTES = 8 * Header.TOKENS, 8 * Header.SCRATCH, 8 * Header.SCRATCH_BYTES


def _make_glu(name: str, activation) -> tuple[Kernel, Kernel]:
    def glu(out: Int, gate: Int, up: Int, n_rows_at: Int, width: Int, thread, n_threads):
        n_rows = load_i64(n_rows_at)
        n_vectors = (width + 15) // 16
        total = n_rows * n_vectors
        for i in range(total * thread // n_threads, total * (thread + 1) // n_threads):
            vstore(out + 64 * i, activation(vload(gate + 64 * i)) * vload(up + 64 * i))

    def glu_quantize(out: Int, gate: Int, up: Int, n_rows_at: Int, width: Int, thread, n_threads):
        n_rows = load_i64(n_rows_at)
        stride = (width + 16 * (width // BLOCK) + 63) // 64 * 64
        first, last = share_of(width // BLOCK, n_rows, thread, n_threads)
        for row in range(n_rows):
            if is_mine(row, n_rows, thread, n_threads):
                at = 4 * width * row
                for b in range(first, last):
                    g, u = gate + at + 128 * b, up + at + 128 * b
                    low = activation(vload(g)) * vload(u)
                    high = activation(vload(g + 64)) * vload(u + 64)
                    quantize_block(out + stride * row, width, b, low, high)

    glu.__name__ = f"glu_{name}"
    glu_quantize.__name__ = f"glu_{name}_quantize"
    return kernel(glu), kernel(glu_quantize)


glu_silu, glu_silu_quantize = _make_glu("silu", silu)
glu_gelu_tanh, glu_gelu_tanh_quantize = _make_glu("gelu_tanh", gelu_tanh)
glu_gelu, glu_gelu_quantize = _make_glu("gelu", gelu)
glu_relu, glu_relu_quantize = _make_glu("relu", relu)
glu_relu_squared, glu_relu_squared_quantize = _make_glu("relu_squared", relu_squared)
glu_sigmoid, glu_sigmoid_quantize = _make_glu("sigmoid", sigmoid)
glu_identity, glu_identity_quantize = _make_glu("identity", identity)


@kernel
def soft_cap(x: Int, n_rows_at: Int, width: Int, cap: Float, thread, n_threads):
    """x = cap * tanh(x / cap)."""
    total = load_i64(n_rows_at) * ((width + 15) // 16)
    for i in range(total * thread // n_threads, total * (thread + 1) // n_threads):
        vstore(x + 64 * i, splat(cap) * hyperbolic_tangent(vload(x + 64 * i) / splat(cap)))


def _make_embed(form: Format) -> Kernel:
    """The row of a packed matrix for each token: whole vectors are read and the token's lane kept."""
    codes, block_scale, block_minimum = form.codes, form.scale, form.minimum
    values, record_bytes, block = form.kind.values, form.kind.record_bytes, form.kind.block
    n_blocks, n_slices = values // block, block // 4

    def embed(out: Int, weight: Int, batch: Int, n_rows_at: Int, width: Int, scale: Float, thread, n_threads):
        n_rows = load_i64(n_rows_at)
        n_records = width // values
        spare = load_i64(batch + _SCRATCH) + thread * load_i64(batch + _SCRATCH_BYTES)
        tokens = load_i64(batch + _TOKENS)
        first, last = share_of(n_records, n_rows, thread, n_threads)
        for row in range(n_rows):
            if is_mine(row, n_rows, thread, n_threads):
                token = load_i32(tokens + 4 * row)
                lane = token % GROUP
                start = weight + token // GROUP * (n_records * record_bytes)
                for record in range(first, last):
                    w = start + record * record_bytes
                    target = out + 4 * (width * row + record * values)
                    for b in range(n_blocks):
                        vstore(spare + 64, block_scale(w, b))
                        vstore(spare + 128, block_minimum(w, b))
                        factor, offset = load_f32(spare + 64 + 4 * lane), load_f32(spare + 128 + 4 * lane)
                        for j in range(n_slices):
                            vstore_u8(spare, codes(w, b, j))
                            for i in range(4):
                                code = np.float32(load_u8(spare + 4 * lane + i))
                                store_f32(target + 4 * (b * block + 4 * j + i), (factor * code + offset) * scale)

    embed.__name__ = f"embed_{form.kind.name}"
    return kernel(embed)


def _make_float_embed(name: str, form: FloatFormat) -> Kernel:
    load, vector_bytes = form.load, GROUP * form.bytes_each

    @inlined
    def value_at(address, spare, lane):
        vstore(spare, load(address))
        return load_f32(spare + 4 * lane)

    def embed(out: Int, weight: Int, batch: Int, n_rows_at: Int, width: Int, scale: Float, thread, n_threads):
        n_rows = load_i64(n_rows_at)
        spare = load_i64(batch + _SCRATCH) + thread * load_i64(batch + _SCRATCH_BYTES)
        tokens = load_i64(batch + _TOKENS)
        stride = (4 * width + 63) // 64 * 64
        first, last = share_of(width, n_rows, thread, n_threads)
        for row in range(n_rows):
            if is_mine(row, n_rows, thread, n_threads):
                token = load_i32(tokens + 4 * row)
                start = weight + token // GROUP * (width * vector_bytes)
                for k in range(first, last):
                    value = value_at(start + k * vector_bytes, spare, token % GROUP)
                    store_f32(out + stride * row + 4 * k, value * scale)

    embed.__name__ = f"embed_{name}"
    return kernel(embed)


__getattr__ = make_lookup_of_kernels("embed", _make_embed, _make_float_embed)
