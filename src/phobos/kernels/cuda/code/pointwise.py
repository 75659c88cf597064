"""Steps on single values: caps, sums, copies of column ranges, learned positions, tempered queries.

A thread a value. Grid: x along a row, y by row.
"""

from __future__ import annotations

import numpy as np

from phobos.kernels.cuda.code.elementary import hyperbolic_tangent, sigmoid
from phobos.kernels.cuda.code.intrinsics import device, load_f32, load_i32, place_of_thread, store_f32
from phobos.kernels.cuda.declaration import Float, Int, kernel
from phobos.kernels.cuda.layout import THREADS


@kernel(THREADS)
def soft_cap(x: Int, n_rows_at: Int, width: Int, cap: Float):
    """cap * tanh(x / cap), in place."""
    row, i = place_of_thread()
    if row < load_i32(n_rows_at) and i < width:
        at = x + 4 * (width * row + i)
        store_f32(at, cap * hyperbolic_tangent(load_f32(at) / cap))


@kernel(THREADS)
def add(out: Int, x: Int, residual: Int, n_rows_at: Int, width: Int, weight: Int, weight_step: Int, scale: Float):
    """out = (x + residual) * scale * weight; `residual` and `weight` are addresses or 0, and from one column's weight
    to the next's there are `weight_step` bytes."""
    row, i = place_of_thread()
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
    row, i = place_of_thread()
    if row < load_i32(n_rows_at) and i < width:
        at = 4 * (width * row + i)
        store_f32(out + at, load_f32(residual + at) + sigmoid(load_f32(gate + 4 * row)) * load_f32(x + at))


@kernel(THREADS)
def add_position(x: Int, table: Int, positions: Int, n_rows_at: Int, width: Int):
    """Add row `position` of a float table."""
    row, i = place_of_thread()
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
    row, i = place_of_thread()
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
    row, i = place_of_thread()
    if row < load_i32(n_rows_at) and i < n_heads * width:
        head, j = i // width, i % width
        value = load_f32(x + 4 * (x_width * row + head * x_stride + x_start + j))
        store_f32(out + 4 * (out_width * row + head * out_stride + out_start + j), value)
