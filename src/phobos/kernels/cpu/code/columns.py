"""Steps on whole rows: copies of column ranges, learned positions, tempered queries, plain activations.

Threads take whole rows, or with fewer rows than threads a share of each.
"""

from __future__ import annotations

import numpy as np

from phobos.kernels.cpu.code.access import load_f32, load_i32, load_i64, store_f32, vload, vstore
from phobos.kernels.cpu.code.elementary import gelu, gelu_tanh, relu, relu_squared, silu
from phobos.kernels.cpu.code.norm import is_mine, quantize_block, share_of
from phobos.kernels.cpu.code.simd import inlined, splat
from phobos.kernels.cpu.declaration import Float, Int, Kernel, kernel
from phobos.kernels.cpu.layout import BLOCK, Header

_POSITIONS = 8 * Header.POSITIONS


@kernel
def splice(
    out: Int, x: Int, n_rows_at: Int, out_width: Int, x_width: Int, n_heads: Int, width: Int, x_start: Int,
    x_stride: Int, out_start: Int, out_stride: Int, thread, n_threads,
):  # fmt: skip
    """One head of one row at a time."""
    n_items = load_i64(n_rows_at) * n_heads
    x_row, out_row = (4 * x_width + 63) // 64 * 64, (4 * out_width + 63) // 64 * 64
    for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
        row, head = item // n_heads, item % n_heads
        source = x + row * x_row + 4 * (head * x_stride + x_start)
        target = out + row * out_row + 4 * (head * out_stride + out_start)
        for i in range(width // 16):
            vstore(target + 64 * i, vload(source + 64 * i))
        for i in range(width // 16 * 16, width):
            store_f32(target + 4 * i, load_f32(source + 4 * i))


@kernel
def add(
    out: Int, x: Int, residual: Int, n_rows_at: Int, width: Int, scale: Float, weight: Int, by_column: Int,
    thread, n_threads,
):  # fmt: skip
    """out = (x + residual) * scale * weight; `residual` and `weight` are addresses or 0, the weight one value or, where
    `by_column`, one a column."""
    n_vectors = (width + 15) // 16
    total = load_i64(n_rows_at) * n_vectors
    factor = scale * load_f32(weight) if weight != 0 and by_column == 0 else scale
    for i in range(total * thread // n_threads, total * (thread + 1) // n_threads):
        value = vload(x + 64 * i)
        if residual != 0:
            value = value + vload(residual + 64 * i)
        value = value * splat(factor)
        if by_column != 0:
            value = value * vload(weight + 64 * (i % n_vectors))
        vstore(out + 64 * i, value)


@kernel
def add_position(x: Int, table: Int, batch: Int, n_rows_at: Int, width: Int, thread, n_threads):
    """Add row `position` of a float table, whose rows follow one another without padding."""
    n_rows = load_i64(n_rows_at)
    positions = load_i64(batch + _POSITIONS)
    stride = (4 * width + 63) // 64 * 64
    first, last = share_of(width, n_rows, thread, n_threads)
    for row in range(n_rows):
        if is_mine(row, n_rows, thread, n_threads):
            at = table + 4 * width * load_i32(positions + 4 * row)
            for i in range(first, last):
                target = x + stride * row + 4 * i
                store_f32(target, load_f32(target) + load_f32(at + 4 * i))


@inlined
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


@kernel
def temper(x: Int, batch: Int, n_rows_at: Int, width: Int, slope: Float, span: Int, thread, n_threads):
    """Times 1 + slope * ln(1 + floor(position / span))."""
    n_rows = load_i64(n_rows_at)
    positions = load_i64(batch + _POSITIONS)
    n_vectors = (width + 15) // 16
    first, last = share_of(n_vectors, n_rows, thread, n_threads)
    for row in range(n_rows):
        turns = load_i32(positions + 4 * row) // span
        if turns > 0 and is_mine(row, n_rows, thread, n_threads):
            factor = np.float32(1) + slope * np.float32(_logarithm(np.float64(1 + turns)))
            for i in range(first, last):
                at = x + 64 * (n_vectors * row + i)
                vstore(at, vload(at) * splat(factor))


def _make_activate(name: str, activation) -> tuple[Kernel, Kernel]:
    def activate(out: Int, x: Int, n_rows_at: Int, width: Int, thread, n_threads):
        total = load_i64(n_rows_at) * ((width + 15) // 16)
        for i in range(total * thread // n_threads, total * (thread + 1) // n_threads):
            vstore(out + 64 * i, activation(vload(x + 64 * i)))

    def activate_quantize(out: Int, x: Int, n_rows_at: Int, width: Int, thread, n_threads):
        n_rows = load_i64(n_rows_at)
        stride = (width + 16 * (width // BLOCK) + 63) // 64 * 64
        first, last = share_of(width // BLOCK, n_rows, thread, n_threads)
        for row in range(n_rows):
            if is_mine(row, n_rows, thread, n_threads):
                for b in range(first, last):
                    at = x + 4 * width * row + 128 * b
                    low, high = activation(vload(at)), activation(vload(at + 64))
                    quantize_block(out + stride * row, width, b, low, high)

    activate.__name__ = f"activate_{name}"
    activate_quantize.__name__ = f"activate_{name}_quantize"
    return kernel(activate), kernel(activate_quantize)


activate_silu, activate_silu_quantize = _make_activate("silu", silu)
activate_gelu_tanh, activate_gelu_tanh_quantize = _make_activate("gelu_tanh", gelu_tanh)
activate_gelu, activate_gelu_quantize = _make_activate("gelu", gelu)
activate_relu, activate_relu_quantize = _make_activate("relu", relu)
activate_relu_squared, activate_relu_squared_quantize = _make_activate("relu_squared", relu_squared)
