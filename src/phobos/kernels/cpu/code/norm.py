"""Norms of rows and heads and the quantization of activations, apart and fused.

With several rows each thread takes whole rows; with fewer rows than threads every thread sums the whole row, in the
same order, and writes its share of the blocks. Either way a row's bits are the same. Lanes past a row's width hold
zeros, which sums ignore and those of a variance must not count.
"""

from __future__ import annotations

import numpy as np

from phobos.kernels.cpu.code.access import load_i32, load_i64, store_f32, vload, vstore
from phobos.kernels.cpu.code.simd import (
    absolute,
    inlined,
    lane_numbers,
    max_lanes,
    maximum,
    round_to_int,
    splat,
    splat_i32,
    store_narrow_i8,
    sum_lanes,
    sum_lanes_i32,
    where_less,
    zeros,
)
from phobos.kernels.cpu.declaration import Float, Int, kernel
from phobos.kernels.cpu.layout import BLOCK

CODE_MAX = np.float32(127)  # of a byte


@inlined
def share_of(n_items, n_rows, thread, n_threads):
    """(first, last) of a row's items this thread computes: its part where rows are few, else all."""
    if n_rows >= n_threads:
        return 0, n_items
    return n_items * thread // n_threads, n_items * (thread + 1) // n_threads


@inlined
def is_mine(row, n_rows, thread, n_threads):
    """Whether this thread has a part in a row."""
    return n_rows < n_threads or row % n_threads == thread


@inlined
def quantize_values(low, high, code_max):
    """A block's scale, and the codes of its 32 values, up to `code_max`."""
    largest = max_lanes(maximum(absolute(low), absolute(high)))
    inverse = code_max / largest if largest > np.float32(0) else np.float32(0)
    return largest / code_max, round_to_int(low * splat(inverse)), round_to_int(high * splat(inverse))


@inlined
def quantize_block(record, width, b, low, high):
    """Write block `b` of a quantized row from its 32 values."""
    scale, codes_low, codes_high = quantize_values(low, high, CODE_MAX)
    store_narrow_i8(record + BLOCK * b, codes_low)
    store_narrow_i8(record + BLOCK * b + 16, codes_high)
    sum_low, sum_high = sum_lanes_i32(codes_low), sum_lanes_i32(codes_high)
    n_blocks = width // BLOCK
    store_f32(record + width + 4 * b, scale)
    store_f32(record + width + 4 * (n_blocks + b), scale * np.float32(sum_low + sum_high))
    store_f32(record + width + 4 * (2 * n_blocks + 2 * b), scale * np.float32(sum_low))
    store_f32(record + width + 4 * (2 * n_blocks + 2 * b + 1), scale * np.float32(sum_high))


@inlined
def inverse_rms(x, n_vectors, width, eps):
    """1 / sqrt(mean(x²) + eps), summed in four interleaved parts."""
    a, b, c, d = zeros(), zeros(), zeros(), zeros()
    whole = n_vectors // 4 * 4
    for i in range(0, whole, 4):
        v0, v1, v2, v3 = vload(x + 64 * i), vload(x + 64 * i + 64), vload(x + 64 * i + 128), vload(x + 64 * i + 192)
        a, b, c, d = a + v0 * v0, b + v1 * v1, c + v2 * v2, d + v3 * v3
    for i in range(whole, n_vectors):
        v = vload(x + 64 * i)
        a = a + v * v
    total = sum_lanes((a + b) + (c + d))
    return np.float32(1) / np.sqrt(total / np.float32(width) + eps)


@kernel
def rms_norm(
    out: Int, x: Int, weight: Int, residual: Int, rows_of: Int, n_rows_at: Int, width: Int, eps: Float,
    thread, n_threads,
):  # fmt: skip
    """Float rows. `rows_of`: address of the int32 row numbers to read, 0 for all rows in order."""
    n_rows = load_i64(n_rows_at)
    n_vectors = (width + 15) // 16
    first, last = share_of(n_vectors, n_rows, thread, n_threads)
    for row in range(n_rows):
        if is_mine(row, n_rows, thread, n_threads):
            source = x + 64 * n_vectors * (load_i32(rows_of + 4 * row) if rows_of != 0 else row)
            factor = splat(inverse_rms(source, n_vectors, width, eps))
            at = 64 * n_vectors * row
            for i in range(first, last):
                value = vload(source + 64 * i) * factor * vload(weight + 64 * i)
                if residual != 0:
                    value = vload(residual + at + 64 * i) + value
                vstore(out + at + 64 * i, value)


@kernel
def rms_norm_quantize(
    out: Int, x: Int, weight: Int, rows_of: Int, n_rows_at: Int, width: Int, eps: Float, thread, n_threads
):
    """`rms_norm` then `quantize`, the floats never stored."""
    n_rows = load_i64(n_rows_at)
    n_vectors = (width + 15) // 16
    stride = (width + 16 * (width // BLOCK) + 63) // 64 * 64
    first, last = share_of(width // BLOCK, n_rows, thread, n_threads)
    for row in range(n_rows):
        if is_mine(row, n_rows, thread, n_threads):
            source = x + 64 * n_vectors * (load_i32(rows_of + 4 * row) if rows_of != 0 else row)
            factor = splat(inverse_rms(source, n_vectors, width, eps))
            for b in range(first, last):
                low = vload(source + 128 * b) * factor * vload(weight + 128 * b)
                high = vload(source + 128 * b + 64) * factor * vload(weight + 128 * b + 64)
                quantize_block(out + stride * row, width, b, low, high)


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


@kernel
def quantize(out: Int, x: Int, n_rows_at: Int, width: Int, thread, n_threads):
    """Float rows to quantized rows."""
    n_rows = load_i64(n_rows_at)
    stride = (width + 16 * (width // BLOCK) + 63) // 64 * 64
    first, last = share_of(width // BLOCK, n_rows, thread, n_threads)
    for row in range(n_rows):
        if is_mine(row, n_rows, thread, n_threads):
            source = x + 4 * width * row
            for b in range(first, last):
                low, high = vload(source + 128 * b), vload(source + 128 * b + 64)
                quantize_block(out + stride * row, width, b, low, high)
