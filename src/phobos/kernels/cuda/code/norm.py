"""Norms and the quantization of activations, apart and fused.

A block of threads a row: thread t sums values t, t + 256, ..., a warp's sums meet in a tree, the warps' in order. Both
outputs are optional: `out` (floats) and `codes` (a quantized record), 0 for none. A warp's 32 neighbouring values are a
block of the record.
"""

from __future__ import annotations

import math

import numpy as np
from numba import cuda, float32, int32

from phobos.kernels.cuda.code.intrinsics import device, load_f32, load_i32, round_to_int, store_f32, store_i8
from phobos.kernels.cuda.declaration import Float, Int, kernel
from phobos.kernels.cuda.layout import BLOCK, NORM_THREADS, THREADS, WARP

_EVERYONE = 0xFFFFFFFF
N_WARPS = NORM_THREADS // WARP
_CODE_MAX = np.float32(127)
_ZERO = np.float32(0)


@device
def sum_warp(value):
    """The sum over a warp, the same in every lane."""
    for step in (16, 8, 4, 2, 1):
        value = value + cuda.shfl_xor_sync(_EVERYONE, value, step)
    return value


@device
def max_warp(value):
    """The greatest of a warp, the same in every lane."""
    for step in (16, 8, 4, 2, 1):
        value = max(value, cuda.shfl_xor_sync(_EVERYONE, value, step))
    return value


@device
def sum_block(value, shared):
    """The sum over a block of `NORM_THREADS` threads; `shared` holds a float a warp."""
    value = sum_warp(value)
    if cuda.threadIdx.x & 31 == 0:
        shared[cuda.threadIdx.x >> 5] = value
    cuda.syncthreads()
    total = shared[0]
    for i in range(1, N_WARPS):
        total = total + shared[i]
    cuda.syncthreads()
    return total


@device
def code_warp(value):
    """The code of a lane's value among those of its warp, and their scale."""
    largest = max_warp(abs(value))
    inverse = _CODE_MAX / largest if largest > _ZERO else _ZERO
    return round_to_int(value * inverse), largest / _CODE_MAX


@device
def quantize_warp(record, width, b, value):
    """Write block `b` of a quantized row from the values of a warp, one a lane."""
    lane = cuda.threadIdx.x & 31
    code, scale = code_warp(value)
    store_i8(record + BLOCK * b + lane, code)
    total = code
    for step in (16, 8, 4, 2, 1):
        total = int32(total + cuda.shfl_xor_sync(_EVERYONE, total, step))
    if lane == 0:
        store_f32(record + width + 8 * b, scale)
        store_f32(record + width + 8 * b + 4, scale * np.float32(total))
    cuda.syncwarp()


@device
def record_stride(width):
    """Bytes of a quantized row; see `layout.quantized_stride`."""
    return (width + 8 * (width // BLOCK) + 15) // 16 * 16


@device
def put_value(out, codes, width, row, i, value):
    """A value to the floats, the record, or both; a warp's columns are a block."""
    if out != 0:
        store_f32(out + 4 * (width * row + i), value)
    if codes != 0:
        quantize_warp(codes + record_stride(width) * row, width, i // BLOCK, value)


def make_rms_row(n_threads: int):
    """`norm_row(out, codes, source, weight, residual, row, width, eps, shared)`: the norm of the row at `source` by
    `n_threads` threads, in the order that `NORM_THREADS` have; all of a block take part."""

    @device
    def norm_row(out, codes, source, weight, residual, row, width, eps, shared):
        for thread in range(cuda.threadIdx.x, NORM_THREADS, n_threads):
            total = _ZERO
            for i in range(thread, width, NORM_THREADS):
                value = load_f32(source + 4 * i)
                total = cuda.fma(value, value, total)
            total = sum_warp(total)
            if thread & 31 == 0:
                shared[thread >> 5] = total
        cuda.syncthreads()
        total = shared[0]
        for i in range(1, N_WARPS):
            total = total + shared[i]
        factor = np.float32(1) / math.sqrt(total / np.float32(width) + eps)
        for i in range(cuda.threadIdx.x, width, n_threads):
            value = load_f32(source + 4 * i) * factor * load_f32(weight + 4 * i)
            if residual != 0:
                value = load_f32(residual + 4 * (width * row + i)) + value
            if out != 0:
                store_f32(out + 4 * (width * row + i), value)
            if codes != 0:
                quantize_warp(codes + record_stride(width) * row, width, i // BLOCK, value)

    return norm_row


_norm_row = make_rms_row(NORM_THREADS)


@kernel(NORM_THREADS)
def rms_norm(
    out: Int, codes: Int, x: Int, weight: Int, residual: Int, rows_of: Int, n_rows_at: Int, width: Int, eps: Float
):
    """`rows_of`: address of the int32 row numbers to read, 0 for all rows in order."""
    shared = cuda.shared.array(N_WARPS, float32)
    row = cuda.blockIdx.x
    if row >= load_i32(n_rows_at):
        return
    source = x + 4 * width * (load_i32(rows_of + 4 * row) if rows_of != 0 else row)
    _norm_row(out, codes, source, weight, residual, row, width, eps, shared)


@kernel(NORM_THREADS)
def layer_norm(
    out: Int, codes: Int, x: Int, weight: Int, bias: Int, rows_of: Int, n_rows_at: Int, width: Int, eps: Float
):
    """The mean, then the mean square of what is left, each a pass over the row."""
    shared = cuda.shared.array(N_WARPS, float32)
    row = cuda.blockIdx.x
    if row >= load_i32(n_rows_at):
        return
    source = x + 4 * width * (load_i32(rows_of + 4 * row) if rows_of != 0 else row)
    total = _ZERO
    for i in range(cuda.threadIdx.x, width, NORM_THREADS):
        total = total + load_f32(source + 4 * i)
    mean = sum_block(total, shared) / np.float32(width)
    total = _ZERO
    for i in range(cuda.threadIdx.x, width, NORM_THREADS):
        value = load_f32(source + 4 * i) - mean
        total = cuda.fma(value, value, total)
    factor = np.float32(1) / math.sqrt(sum_block(total, shared) / np.float32(width) + eps)
    for i in range(cuda.threadIdx.x, width, NORM_THREADS):
        value = (load_f32(source + 4 * i) - mean) * factor * load_f32(weight + 4 * i)
        if bias != 0:
            value = value + load_f32(bias + 4 * i)
        if out != 0:
            store_f32(out + 4 * (width * row + i), value)
        if codes != 0:
            quantize_warp(codes + record_stride(width) * row, width, i // BLOCK, value)


@device
def inverse_rms_of_head(at, dim, eps):
    """1 / sqrt(mean(x²) + eps) of `dim` floats, by a warp."""
    total = _ZERO
    for i in range(cuda.threadIdx.x & 31, dim, WARP):
        value = load_f32(at + 4 * i)
        total = cuda.fma(value, value, total)
    return np.float32(1) / math.sqrt(sum_warp(total) / np.float32(dim) + eps)


@kernel(THREADS)
def head_norm(out: Int, x: Int, weight: Int, n_rows_at: Int, n_heads: Int, dim: Int, weight_stride: Int, eps: Float):
    """A warp a head; from one head's weights to the next's there are `weight_stride` bytes. Grid: x by 4 heads, y by
    row."""
    head, row = cuda.blockIdx.x * (THREADS // WARP) + (cuda.threadIdx.x >> 5), cuda.blockIdx.y
    if row >= load_i32(n_rows_at) or head >= n_heads:
        return
    at = 4 * dim * (row * n_heads + head)
    factor = inverse_rms_of_head(x + at, dim, eps)
    for i in range(cuda.threadIdx.x & 31, dim, WARP):
        value = load_f32(x + at + 4 * i) * factor
        if weight != 0:
            value = value * load_f32(weight + weight_stride * head + 4 * i)
        store_f32(out + at + 4 * i, value)


@kernel(THREADS)
def quantize(codes: Int, x: Int, n_rows_at: Int, parts: Int, width: Int):
    """Float rows to quantized rows; a row of the batch is `parts` rows here. Grid: x by row, y by 4 blocks."""
    row, b = cuda.blockIdx.x, cuda.blockIdx.y * (THREADS // WARP) + (cuda.threadIdx.x >> 5)
    if row >= load_i32(n_rows_at) * parts or b >= width // BLOCK:
        return
    value = load_f32(x + 4 * (width * row + BLOCK * b + (cuda.threadIdx.x & 31)))
    quantize_warp(codes + record_stride(width) * row, width, b, value)
