"""Steps on single values: caps, sums, copies of column ranges, learned positions, tempered queries.

Threads take whole rows, or with fewer rows than threads a share of each.
"""

from __future__ import annotations

import numpy as np

from phobos.kernels.cpu.code.access import load_f32, load_i32, load_i64, store_f32, vload, vstore
from phobos.kernels.cpu.code.elementary import hyperbolic_tangent, sigmoid
from phobos.kernels.cpu.code.norm import is_mine, share_of
from phobos.kernels.cpu.code.simd import inlined, splat
from phobos.kernels.cpu.declaration import Float, Int, kernel
from phobos.kernels.cpu.layout import Header

_POSITIONS = 8 * Header.POSITIONS


@kernel
def soft_cap(x: Int, n_rows_at: Int, width: Int, cap: Float, thread, n_threads):
    """x = cap * tanh(x / cap)."""
    total = load_i64(n_rows_at) * ((width + 15) // 16)
    for i in range(total * thread // n_threads, total * (thread + 1) // n_threads):
        vstore(x + 64 * i, splat(cap) * hyperbolic_tangent(vload(x + 64 * i) / splat(cap)))


@kernel
def add_gated(out: Int, x: Int, gate: Int, residual: Int, n_rows_at: Int, width: Int, thread, n_threads):
    """out = residual + sigmoid(gate) * x; a gate's row is one vector."""
    n_rows = load_i64(n_rows_at)
    n_vectors = (width + 15) // 16
    first, last = share_of(n_vectors, n_rows, thread, n_threads)
    for row in range(n_rows):
        if is_mine(row, n_rows, thread, n_threads):
            factor = sigmoid(splat(load_f32(gate + 64 * row)))
            for i in range(first, last):
                at = 64 * (n_vectors * row + i)
                vstore(out + at, vload(residual + at) + factor * vload(x + at))


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
def temper(x: Int, batch: Int, n_rows_at: Int, width: Int, span: Int, slope: Float, thread, n_threads):
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
