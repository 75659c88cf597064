"""Steps on rows of several streams: mixing them, matching their lengths; and the sparsity of activations."""

from __future__ import annotations

import math

import numpy as np
from numba import cuda, float32

from phobos.kernels.cuda.code.intrinsics import load_f32, load_i32, store_f32
from phobos.kernels.cuda.code.norm import inverse_rms_of_head, sum_block
from phobos.kernels.cuda.declaration import Float, Int, kernel
from phobos.kernels.cuda.layout import NORM_THREADS, THREADS, WARP

_SHORTEST = np.float32(1e-30)  # of a mean square: what is all zeros stays so
_N_WARPS = NORM_THREADS // WARP
_ZERO = np.float32(0)


@kernel(THREADS)
def mix(
    out: Int, x: Int, coefficients: Int, residual: Int, n_rows_at: Int, width: Int, n_out: Int, n_in: Int, skipped: Int,
    offset: Float,
):  # fmt: skip
    """A thread a value; `coefficients` and `residual` are addresses or 0, `width` that of a stream. Grid: x along the
    streams, y by row."""
    row, i = np.int64(cuda.blockIdx.y), np.int64(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
    if row >= load_i32(n_rows_at) or i >= n_out * width:
        return
    j, at = i // width, 4 * (width * ((n_out + skipped) * row + skipped) + i)
    value = load_f32(residual + at) if residual != 0 else _ZERO
    for k in range(n_in):
        factor = offset
        if coefficients != 0:
            factor = load_f32(coefficients + 4 * (n_in * (n_out * row + j) + k)) + offset
        value = cuda.fma(factor, load_f32(x + 4 * (width * (n_in * row + k) + i % width)), value)
    store_f32(out + at, value)


@kernel(THREADS)
def match_length(x: Int, target: Int, n_rows_at: Int, n_heads: Int, dim: Int):
    """A warp a head. Grid: x by 4 heads, y by row."""
    row, head = cuda.blockIdx.y, cuda.blockIdx.x * (THREADS // WARP) + (cuda.threadIdx.x >> 5)
    if row >= load_i32(n_rows_at) or head >= n_heads:
        return
    at = x + 4 * dim * (n_heads * row + head)
    wanted = inverse_rms_of_head(target + 4 * dim * row, dim, _SHORTEST)
    factor = inverse_rms_of_head(at, dim, _SHORTEST) / wanted
    for i in range(cuda.threadIdx.x & 31, dim, WARP):
        store_f32(at + 4 * i, load_f32(at + 4 * i) * factor)


@kernel(NORM_THREADS)
def sparsify(x: Int, n_rows_at: Int, width: Int, multiplier: Float):
    """A block of threads a row: its mean, then the mean square of what is left, then the cut."""
    shared = cuda.shared.array(_N_WARPS, float32)
    row = cuda.blockIdx.x
    if row >= load_i32(n_rows_at):
        return
    at = x + 4 * width * row
    total = _ZERO
    for i in range(cuda.threadIdx.x, width, NORM_THREADS):
        total = total + load_f32(at + 4 * i)
    mean = sum_block(total, shared) / np.float32(width)
    total = _ZERO
    for i in range(cuda.threadIdx.x, width, NORM_THREADS):
        value = load_f32(at + 4 * i) - mean
        total = cuda.fma(value, value, total)
    deviation = math.sqrt(sum_block(total, shared) / np.float32(width - 1))
    cutoff = mean + multiplier * deviation
    for i in range(cuda.threadIdx.x, width, NORM_THREADS):
        store_f32(at + 4 * i, max(load_f32(at + 4 * i) - cutoff, _ZERO))
