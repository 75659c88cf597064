"""Steps on single values: embedding, gated and plain activations, caps, sums, copies of column ranges.

A thread a value. Grid: x along a row, y by row. Activations can write a quantized record as well as or instead of
floats (`codes`, `out`: 0 for none); `count_at` is the address of a number of rows, of which each is `parts` here.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from phobos.kernels.cuda.code.elementary import ACTIVATIONS, GATES, hyperbolic_tangent, sigmoid
from phobos.kernels.cuda.code.formats import FORMATS, Format
from phobos.kernels.cuda.code.intrinsics import (
    device,
    half_to_float,
    load_f32,
    load_i32,
    load_u16,
    store_f32,
    word_as_float,
)
from phobos.kernels.cuda.code.norm import quantize_warp, record_stride
from phobos.kernels.cuda.compiler import Float, Int, kernel
from phobos.kernels.cuda.layout import BLOCK, THREADS


@device
def _place():
    """(row, column) of this thread."""
    return cuda.blockIdx.y, cuda.blockIdx.x * THREADS + cuda.threadIdx.x


# Embedding


def _make_embed(form: Format):
    words, scales_of, is_signed, halves = form.words, form.scales_of, form.signed, form.halves
    minima, has_minima = form.minima, form.minima is not None

    @device
    def store_word(at, word, d, offset, scale):
        for i in range(4):
            byte = np.int32((word >> np.uint32(8 * i)) & np.uint32(0xFF))
            code = ((byte ^ 128) - 128) if is_signed else byte
            store_f32(at + 4 * i, (np.float32(code) * d + offset) * scale)

    def embed(out: Int, codes: Int, high: Int, scales: Int, tokens: Int, n_rows_at: Int, width: Int, scale: Float):
        row, b = cuda.blockIdx.y, cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        n_blocks = width // BLOCK
        if row >= load_i32(n_rows_at) or b >= n_blocks:
            return
        index = load_i32(tokens + 4 * row) * n_blocks + b
        w0, w1, w2, w3, w4, w5, w6, w7 = words(codes, high, index)
        first, other = scales_of(scales, index)
        second = other if halves else first
        offset = np.float32(0) if halves else other
        end = offset
        if has_minima:
            lower, upper = minima(high, index)
            offset = other * np.float32(lower & np.uint32(0xFF))
            end = other * np.float32(upper & np.uint32(0xFF))
        at = out + 4 * (width * row + BLOCK * b)
        store_word(at, w0, first, offset, scale)
        store_word(at + 16, w1, first, offset, scale)
        store_word(at + 32, w2, first, offset, scale)
        store_word(at + 48, w3, first, offset, scale)
        store_word(at + 64, w4, second, end, scale)
        store_word(at + 80, w5, second, end, scale)
        store_word(at + 96, w6, second, end, scale)
        store_word(at + 112, w7, second, end, scale)

    embed.__name__ = f"embed_{form.kind.name}"
    return kernel(THREADS)(embed)


@device
def _load_f16(at):
    return half_to_float(load_u16(at))


@device
def _load_bf16(at):
    return word_as_float(load_u16(at) << np.uint32(16))


def _make_float_embed(name, load, n_bytes):
    def embed(out: Int, codes: Int, high: Int, scales: Int, tokens: Int, n_rows_at: Int, width: Int, scale: Float):
        row, i = _place()
        if row < load_i32(n_rows_at) and i < width:
            at = codes + n_bytes * (load_i32(tokens + 4 * row) * width + i)
            store_f32(out + 4 * (width * row + i), load(at) * scale)

    embed.__name__ = f"embed_{name}"
    return kernel(THREADS)(embed)


for _form in FORMATS.values():
    globals()[f"embed_{_form.kind.name}"] = _make_embed(_form)
embed_f32 = _make_float_embed("f32", load_f32, 4)
embed_f16 = _make_float_embed("f16", _load_f16, 2)
embed_bf16 = _make_float_embed("bf16", _load_bf16, 2)


# Activations


@device
def put_value(out, codes, width, row, i, value):
    """A value to the floats, the record, or both; a warp's columns are a block."""
    if out != 0:
        store_f32(out + 4 * (width * row + i), value)
    if codes != 0:
        quantize_warp(codes + record_stride(width) * row, width, i // BLOCK, value)


def _make_gate(activation):
    @device
    def gate_of(gate, up):
        return activation(gate) * up

    return gate_of


@device
def _swiglu_oai(gate, up):
    """g * sigmoid(1.702 g) * (u + 1), with g at most 7 and u within 7 of 0."""
    seven = np.float32(7)
    g = min(gate, seven)
    u = max(min(up, seven), -seven)
    return g * sigmoid(np.float32(1.702) * g) * (u + np.float32(1))


ALL_GATES = {**{name: _make_gate(activation) for name, activation in GATES.items()}, "swiglu_oai": _swiglu_oai}


def _make_glu(name, gate_of):
    def glu(out: Int, codes: Int, gate: Int, up: Int, count_at: Int, parts: Int, width: Int):
        row, i = _place()
        if row < load_i32(count_at) * parts and i < width:
            at = 4 * (width * row + i)
            put_value(out, codes, width, row, i, gate_of(load_f32(gate + at), load_f32(up + at)))

    glu.__name__ = f"glu_{name}"
    return kernel(THREADS)(glu)


def _make_activate(name, activation):
    def activate(out: Int, codes: Int, x: Int, count_at: Int, parts: Int, width: Int):
        row, i = _place()
        if row < load_i32(count_at) * parts and i < width:
            put_value(out, codes, width, row, i, activation(load_f32(x + 4 * (width * row + i))))

    activate.__name__ = f"activate_{name}"
    return kernel(THREADS)(activate)


for _name, _gate in ALL_GATES.items():
    globals()[f"glu_{_name}"] = _make_glu(_name, _gate)
for _name, _activation in ACTIVATIONS.items():
    globals()[f"activate_{_name}"] = _make_activate(_name, _activation)


@kernel(THREADS)
def soft_cap(x: Int, n_rows_at: Int, width: Int, cap: Float):
    """cap * tanh(x / cap), in place."""
    row, i = _place()
    if row < load_i32(n_rows_at) and i < width:
        at = x + 4 * (width * row + i)
        store_f32(at, cap * hyperbolic_tangent(load_f32(at) / cap))


# Sums and copies


@kernel(THREADS)
def add(out: Int, x: Int, residual: Int, n_rows_at: Int, width: Int, weight: Int, weight_step: Int, scale: Float):
    """out = (x + residual) * scale * weight; `residual` and `weight` are addresses or 0, and from one column's weight
    to the next's there are `weight_step` bytes."""
    row, i = _place()
    if row < load_i32(n_rows_at) and i < width:
        at = 4 * (width * row + i)
        value = load_f32(x + at)
        if residual != 0:
            value = value + load_f32(residual + at)
        factor = scale * load_f32(weight + weight_step * i) if weight != 0 else scale
        store_f32(out + at, value * factor)


@kernel(THREADS)
def add_gated(out: Int, x: Int, gate: Int, residual: Int, n_rows_at: Int, width: Int):
    """out = residual + sigmoid(gate[0]) * x, a gate a row."""
    row, i = _place()
    if row < load_i32(n_rows_at) and i < width:
        at = 4 * (width * row + i)
        store_f32(out + at, load_f32(residual + at) + sigmoid(load_f32(gate + 4 * row)) * load_f32(x + at))


@kernel(THREADS)
def add_position(x: Int, table: Int, positions: Int, n_rows_at: Int, width: Int):
    """Add row `position` of a float table."""
    row, i = _place()
    if row < load_i32(n_rows_at) and i < width:
        at = x + 4 * (width * row + i)
        store_f32(at, load_f32(at) + load_f32(table + 4 * (width * load_i32(positions + 4 * row) + i)))


@device
def _logarithm(x):
    """ln x for x >= 1: by halving to [1, 2), then 2 artanh((x - 1) / (x + 1)) by its series, exact to 1e-9."""
    halvings = 0
    while x >= 2.0:
        x *= 0.5
        halvings += 1
    z = (x - 1.0) / (x + 1.0)
    square = z * z
    series = 1.0 / 19.0
    for n in (17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0):
        series = series * square + 1.0 / n
    return 2.0 * z * series + halvings * 0.6931471805599453


@kernel(THREADS)
def temper(x: Int, positions: Int, n_rows_at: Int, width: Int, span: Int, slope: Float):
    """Times 1 + slope * ln(1 + floor(position / span))."""
    row, i = _place()
    if row < load_i32(n_rows_at) and i < width:
        turns = load_i32(positions + 4 * row) // span
        if turns > 0:
            at = x + 4 * (width * row + i)
            factor = np.float32(1) + slope * np.float32(_logarithm(np.float64(1 + turns)))
            store_f32(at, load_f32(at) * factor)


@kernel(THREADS)
def splice(
    out: Int, x: Int, n_rows_at: Int, out_width: Int, x_width: Int, n_heads: Int, width: Int, x_start: Int,
    x_stride: Int, out_start: Int, out_stride: Int,
):  # fmt: skip
    """For each head: `width` values of x to their place in out."""
    row, i = _place()
    if row < load_i32(n_rows_at) and i < n_heads * width:
        head, j = i // width, i % width
        value = load_f32(x + 4 * (x_width * row + head * x_stride + x_start + j))
        store_f32(out + 4 * (out_width * row + head * out_stride + out_start + j), value)
