"""Products of many rows with packed weights, on tensor cores (`mma`): the bits are those of `matmul.py`.

Theory. A warp multiplies 16 outputs by `COLUMNS` rows of activations, 8 at a time; a block of 32 inputs (16 where
scales are of 16) is one instruction, whose integers are exact. A lane holds words t and 4 + t of two rows of weights
and has the results of two outputs for two rows of activations. Sums are those of the eight parts of `matmul.py`, two
parts at a time, added in the same order.

Grid: x by 64 outputs (a block's four warps have 16 each), y by `COLUMNS` rows or by tile, z by matrix; arguments mean
what they mean to `matmul.py`.
"""

from __future__ import annotations

import numpy as np
from numba import cuda, float32, int32

from phobos.kernels.cuda.code.formats import FORMATS, Format
from phobos.kernels.cuda.code.intrinsics import (
    device,
    load_i32,
    load_u32,
    multiply_half,
    multiply_signed,
    multiply_unsigned,
    read_two_floats,
)
from phobos.kernels.cuda.code.matmul import find_tile, finish
from phobos.kernels.cuda.declaration import Float, Int, kernel
from phobos.kernels.cuda.layout import BLOCK, PARTS, THREADS, TILE_COLUMNS

COLUMNS = TILE_COLUMNS
N_TILES = COLUMNS // 8
_N_SUMS = 4 * N_TILES
_ZERO = np.float32(0)


def _make_block(form: Format):
    """`add_block(sums, codes, high, scales, upper, lower, codes_at, scales_at, b, t)`: block b of two rows of weights,
    whose blocks begin at `upper` and `lower`, times all columns, added to the lane's sums. `codes_at` has for each 8
    columns the address of the lane's codes, `scales_at` those of its two columns' scales."""
    pair, scales_of, has_minimum, halves = form.pair, form.scales_of, form.has_minimum, form.halves
    minima, has_minima = form.minima, form.minima is not None
    multiply = multiply_signed if form.signed else multiply_unsigned

    @device
    def add(sums, i, dots, d0, d1, s0, s1):
        """Four results: outputs of scales d0 and d1, columns of scales s0 and s1."""
        sums[i] = cuda.fma(np.float32(dots[0]), d0 * s0, sums[i])
        sums[i + 1] = cuda.fma(np.float32(dots[1]), d0 * s1, sums[i + 1])
        sums[i + 2] = cuda.fma(np.float32(dots[2]), d1 * s0, sums[i + 2])
        sums[i + 3] = cuda.fma(np.float32(dots[3]), d1 * s1, sums[i + 3])

    @device
    def add_block(sums, codes, high, scales, upper, lower, codes_at, scales_at, b, t):
        a0, a2 = pair(codes, high, upper + b, t)
        a1, a3 = pair(codes, high, lower + b, t)
        d0, m0 = scales_of(scales, upper + b)
        d1, m1 = scales_of(scales, lower + b)
        if has_minima:
            c0, c2 = minima(high, upper + b)
            c1, c3 = minima(high, lower + b)
        for n in range(N_TILES):
            at = codes_at[n] + BLOCK * b
            b0, b1 = load_u32(at), load_u32(at + 16)
            s0, x0 = read_two_floats(scales_at[2 * n] + 8 * b)
            s1, x1 = read_two_floats(scales_at[2 * n + 1] + 8 * b)
            if halves:
                add(sums, 4 * n, multiply_half(a0, a1, b0, int32(0)), d0, d1, s0, s1)
                add(sums, 4 * n, multiply_half(a2, a3, b1, int32(0)), m0, m1, s0, s1)
            else:
                add(sums, 4 * n, multiply(a0, a1, a2, a3, b0, b1, int32(0)), d0, d1, s0, s1)
            if has_minima:
                add(sums, 4 * n, multiply(c0, c1, c2, c3, b0, b1, int32(0)), m0, m1, s0, s1)
            if has_minimum:
                sums[4 * n] = cuda.fma(m0, x0, sums[4 * n])
                sums[4 * n + 1] = cuda.fma(m0, x1, sums[4 * n + 1])
                sums[4 * n + 2] = cuda.fma(m1, x0, sums[4 * n + 2])
                sums[4 * n + 3] = cuda.fma(m1, x1, sums[4 * n + 3])

    return add_block


@device
def _source(row, last, sources, divisor):
    """The row of x that is row `row` of a product, or its last."""
    row = min(row, last - 1)
    return load_i32(sources + 4 * row) // divisor if sources != 0 else row


def _make_matmul(form: Format):
    add_block = _make_block(form)
    n_scales = 2 * N_TILES

    def matmul(
        out: Int, x: Int, codes: Int, high: Int, scales: Int, bias: Int, residual: Int, count_at: Int, tiles: Int,
        sources: Int, divisor: Int, n_out: Int, n_in: Int, first_row: Int, x_stride: Int, out_stride: Int, z_rows: Int,
        z_in: Int, z_out: Int, scale: Float,
    ):  # fmt: skip
        matrix, row, last = find_tile(count_at, tiles, COLUMNS)
        if row >= last:
            return
        x += cuda.blockIdx.z * z_in
        first_row += matrix * z_rows
        lane = cuda.threadIdx.x & 31
        g, t = np.int64(lane >> 2), np.int64(lane & 3)
        o = np.int64(cuda.blockIdx.x) * 64 + (cuda.threadIdx.x >> 5) * 16 + g
        n_blocks = n_in // BLOCK
        upper = (first_row + min(o, n_out - 1)) * n_blocks
        lower = (first_row + min(o + 8, n_out - 1)) * n_blocks
        codes_at = cuda.local.array(N_TILES, np.int64)
        scales_at = cuda.local.array(n_scales, np.int64)
        for n in range(N_TILES):
            codes_at[n] = x + _source(row + 8 * n + g, last, sources, divisor) * x_stride + 4 * t
            for c in range(2):
                at = _source(row + 8 * n + 2 * t + c, last, sources, divisor)
                scales_at[2 * n + c] = x + at * x_stride + n_in
        even = cuda.local.array(_N_SUMS, float32)
        odd = cuda.local.array(_N_SUMS, float32)
        total = cuda.local.array(_N_SUMS, float32)
        for i in range(_N_SUMS):
            total[i] = _ZERO
        for part in range(0, PARTS, 2):
            for i in range(_N_SUMS):
                even[i] = _ZERO
                odd[i] = _ZERO
            b = np.int64(part)
            while b < n_blocks:
                add_block(even, codes, high, scales, upper, lower, codes_at, scales_at, b, t)
                if b + 1 < n_blocks:
                    add_block(odd, codes, high, scales, upper, lower, codes_at, scales_at, b + 1, t)
                b += PARTS
            for i in range(_N_SUMS):
                pair = even[i] + odd[i]
                total[i] = pair if part == 0 else total[i] + pair
        for n in range(N_TILES):
            for i in range(4):
                output, r = o + 8 * (i // 2), row + 8 * n + 2 * t + i % 2
                if output < n_out and r < last:
                    at = out_stride * r + cuda.blockIdx.z * z_out + 4 * output
                    finish(
                        out + at, total[4 * n + i], bias + 4 * (first_row + output) if bias != 0 else 0,
                        residual + at if residual != 0 else 0, scale,
                    )  # fmt: skip

    matmul.__name__ = f"matmul_{form.kind.name}"
    return kernel(THREADS, min_blocks=2)(matmul)


for _form in FORMATS.values():
    globals()[f"matmul_{_form.kind.name}"] = _make_matmul(_form)
