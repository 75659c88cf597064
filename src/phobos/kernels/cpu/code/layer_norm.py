"""Layer norm, also fused with the quantization of activations, and RMS norm of the heads of a row.

Threads share rows as in `norm.py`. Lanes past a row's width hold zeros, which the sums of the mean ignore and those of
the variance must not count.
"""

from __future__ import annotations

import numpy as np

from phobos.kernels.cpu.code.access import load_i32, load_i64, vload, vstore
from phobos.kernels.cpu.code.norm import inverse_rms, is_mine, quantize_block, share_of
from phobos.kernels.cpu.code.simd import inlined, lane_numbers, splat, splat_i32, sum_lanes, where_less, zeros
from phobos.kernels.cpu.declaration import Float, Int, kernel
from phobos.kernels.cpu.layout import BLOCK


@inlined
def mean_and_factor(x, n_vectors, width, eps):
    """A row's mean, and 1 / sqrt(variance + eps), each summed in one order."""
    total = zeros()
    for i in range(n_vectors):
        total = total + vload(x + 64 * i)
    mean = sum_lanes(total) / np.float32(width)
    squares = zeros()
    for i in range(n_vectors):
        lanes = splat_i32(np.int32(16 * i)) + lane_numbers()
        distance = where_less(lanes, splat_i32(np.int32(width)), vload(x + 64 * i) - splat(mean), zeros())
        squares = squares + distance * distance
    return mean, np.float32(1) / np.sqrt(sum_lanes(squares) / np.float32(width) + eps)


@inlined
def _normed(x, mean, factor, weight, bias):
    """16 values; `bias` is an address or 0."""
    value = (vload(x) - splat(mean)) * splat(factor) * vload(weight)
    if bias != 0:
        value = value + vload(bias)
    return value


@kernel
def layer_norm(
    out: Int, x: Int, weight: Int, bias: Int, rows_of: Int, n_rows_at: Int, width: Int, eps: Float, thread, n_threads
):
    """Float rows. `rows_of`: address of the int32 row numbers to read, 0 for all rows in order."""
    n_rows = load_i64(n_rows_at)
    n_vectors = (width + 15) // 16
    first, last = share_of(n_vectors, n_rows, thread, n_threads)
    for row in range(n_rows):
        if is_mine(row, n_rows, thread, n_threads):
            source = x + 64 * n_vectors * (load_i32(rows_of + 4 * row) if rows_of != 0 else row)
            mean, factor = mean_and_factor(source, n_vectors, width, eps)
            for i in range(first, last):
                at_bias = bias + 64 * i if bias != 0 else 0
                value = _normed(source + 64 * i, mean, factor, weight + 64 * i, at_bias)
                vstore(out + 64 * (n_vectors * row + i), value)


@kernel
def layer_norm_quantize(
    out: Int, x: Int, weight: Int, bias: Int, rows_of: Int, n_rows_at: Int, width: Int, eps: Float, thread, n_threads
):
    """`layer_norm` then `quantize`, the floats never stored."""
    n_rows = load_i64(n_rows_at)
    n_vectors = (width + 15) // 16
    stride = (width + 16 * (width // BLOCK) + 63) // 64 * 64
    first, last = share_of(width // BLOCK, n_rows, thread, n_threads)
    for row in range(n_rows):
        if is_mine(row, n_rows, thread, n_threads):
            source = x + 64 * n_vectors * (load_i32(rows_of + 4 * row) if rows_of != 0 else row)
            mean, factor = mean_and_factor(source, n_vectors, width, eps)
            for b in range(first, last):
                at, at_bias = source + 128 * b, bias + 128 * b if bias != 0 else 0
                low = _normed(at, mean, factor, weight + 128 * b, at_bias)
                high = _normed(at + 64, mean, factor, weight + 128 * b + 64, at_bias + 64 if bias != 0 else 0)
                quantize_block(out + stride * row, width, b, low, high)


@kernel
def head_norm(
    out: Int, x: Int, weight: Int, n_rows_at: Int, n_heads: Int, dim: Int, weight_stride: Int, eps: Float,
    thread, n_threads,
):  # fmt: skip
    """RMS norm of each head, `dim` a multiple of 16; `weight` is an address or 0, `weight_stride` the bytes from one
    head's weights to the next's."""
    n_items = load_i64(n_rows_at) * n_heads
    for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
        at = 4 * dim * item
        factor = splat(inverse_rms(x + at, dim // 16, dim, eps))
        for i in range(dim // 16):
            value = vload(x + at + 64 * i) * factor
            if weight != 0:
                value = value * vload(weight + item % n_heads * weight_stride + 64 * i)
            vstore(out + at + 64 * i, value)
