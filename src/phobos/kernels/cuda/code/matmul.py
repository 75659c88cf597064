"""Matrix products with packed weights: out = x @ weight.T, plus bias, times scale, plus residual.

Theory. Eight threads share a row of weights: part p takes blocks p, p + 8, ... in rising order. A block's dot product
of codes is an exact integer (`dp4a`), so only its float epilogue rounds:
    acc = fma(float(dot), scale * x_scale, acc); acc = fma(minimum, x_sum, acc)
where minima are of 16 inputs, the last with the dot product of minima and activations, an exact integer too:
    acc = fma(float(dot), other * x_scale, acc)
Then neighbouring parts are added, and the four sums in order. Up to eight rows of activations share one reading of the
weights; nothing of this depends on how many there are, so a row has the same bits whatever it came with.

Grid: x by 16 outputs, y by `n_tile` rows, z by matrix (of heads: matrix z's rows begin `z_rows` further, its inputs
`z_in` bytes, its outputs `z_out` bytes). `count_at` is the address of the number of rows; where `tiles` is not 0, of
the number of tiles, each three int32: matrix, first row, rows. With `sources`, the row of x of row r is `sources[r] //
divisor` (see `moe.py`).
"""

from __future__ import annotations

import numpy as np
from numba import cuda, float32

from phobos.gguf.quants import GGMLType
from phobos.kernels.cuda.code.formats import FLOAT_FORMATS, FORMATS, FloatFormat, Format
from phobos.kernels.cuda.code.intrinsics import (
    device,
    dot4_signed,
    dot4_unsigned,
    load_f32,
    load_i32,
    read_floats,
    read_shared_words,
    read_two_floats,
    store_f32,
    word_as_float,
)
from phobos.kernels.cuda.declaration import Float, Int, kernel
from phobos.kernels.cuda.layout import BLOCK, PARTS, ROWS_OF_BLOCK, THREADS

ROW_COUNTS = (1, 8)  # rows of activations that a compiled product takes
_EVERYONE = 0xFFFFFFFF
_ZERO = np.float32(0)
#: Integers are summed on top of the bits of 3 * 2**22: up to 2**22 either way these are then a float, the sum more.
EXACT, _EXACT_FLOAT = np.int32(0x4B400000), np.float32(3 << 22)


@device
def exact_float(total):
    """The float of a sum that began at `EXACT`: cheaper than a conversion, and as exact."""
    return word_as_float(np.uint32(total)) - _EXACT_FLOAT


@device
def sum_parts(value):
    """The sum over the eight threads that share a row, the same in each of them."""
    pair = value + cuda.shfl_xor_sync(_EVERYONE, value, 1)
    first = cuda.threadIdx.x & 24
    total = cuda.shfl_sync(_EVERYONE, pair, first) + cuda.shfl_sync(_EVERYONE, pair, first + 2)
    total = total + cuda.shfl_sync(_EVERYONE, pair, first + 4)
    return total + cuda.shfl_sync(_EVERYONE, pair, first + 6)


@device
def finish(out, total, bias, residual, scale):
    """Store a result: plus bias, times scale, plus residual (addresses; 0: none)."""
    if bias != 0:
        total = total + load_f32(bias)
    total = total * scale
    if residual != 0:
        total = load_f32(residual) + total
    store_f32(out, total)


def make_quantized_row(form: Format, n_tile: int):
    """`multiply(acc, x_at, codes, high, scales, first_block, n_blocks, part)`: the part's sums of one row of weights
    with `n_tile` rows of quantized activations, whose addresses stand in `x_at`."""
    words, scales_of, has_minimum, halves = form.words, form.scales_of, form.has_minimum, form.halves
    minima, has_minima = form.minima, form.minima is not None
    dot4 = dot4_signed if form.signed else dot4_unsigned

    @device
    def multiply(acc, x_at, codes, high, scales, first_block, n_blocks, part):
        index, last = first_block + part, first_block + n_blocks
        offset, scale_at = BLOCK * part, BLOCK * n_blocks + 8 * part
        while index < last:
            w0, w1, w2, w3, w4, w5, w6, w7 = words(codes, high, index)
            d, other = scales_of(scales, index)
            if has_minima:
                first, second = minima(high, index)
            for m in range(n_tile):
                a0, a1, a2, a3 = read_shared_words(x_at[m] + offset)
                a4, a5, a6, a7 = read_shared_words(x_at[m] + offset + 16)
                x_scale, x_sum = read_two_floats(x_at[m] + scale_at)
                dot = dot4(EXACT, w0, a0)
                dot = dot4(dot, w1, a1)
                dot = dot4(dot, w2, a2)
                dot = dot4(dot, w3, a3)
                if halves:
                    acc[m] = cuda.fma(exact_float(dot), d * x_scale, acc[m])
                    dot = EXACT
                dot = dot4(dot, w4, a4)
                dot = dot4(dot, w5, a5)
                dot = dot4(dot, w6, a6)
                dot = dot4(dot, w7, a7)
                acc[m] = cuda.fma(exact_float(dot), (other if halves else d) * x_scale, acc[m])
                if has_minimum:
                    acc[m] = cuda.fma(other, x_sum, acc[m])
                if has_minima:
                    dot = dot4(dot4(dot4(dot4(EXACT, first, a0), first, a1), first, a2), first, a3)
                    dot = dot4(dot4(dot4(dot4(dot, second, a4), second, a5), second, a6), second, a7)
                    acc[m] = cuda.fma(exact_float(dot), other * x_scale, acc[m])
            index += PARTS
            offset += BLOCK * PARTS
            scale_at += 8 * PARTS

    return multiply


def make_float_row(form: FloatFormat, n_tile: int):
    """`multiply(acc, x_at, codes, high, scales, first_value, n_in, part)`: as `make_quantized_row`, for float weights
    and float activations; a part takes four neighbouring inputs at a time where rows are whole fours, else one."""
    four, one, n_bytes = form.four, form.one, form.n_bytes

    @device
    def multiply(acc, x_at, codes, high, scales, first_value, n_in, part):
        weights = codes + n_bytes * first_value
        if n_in & 3 == 0:
            for k in range(4 * part, n_in, 4 * PARTS):
                a, b, c, d = four(weights + n_bytes * k)
                for m in range(n_tile):
                    e, f, g, h = read_floats(x_at[m] + 4 * k)
                    acc[m] = cuda.fma(d, h, cuda.fma(c, g, cuda.fma(b, f, cuda.fma(a, e, acc[m]))))
        else:
            for k in range(part, n_in, PARTS):
                w = one(weights + n_bytes * k)
                for m in range(n_tile):
                    acc[m] = cuda.fma(w, load_f32(x_at[m] + 4 * k), acc[m])

    return multiply


def make_row(kind: GGMLType, n_tile: int):
    """The product of one row of weights for any packed type, and inputs that one step of its index means."""
    if kind in FORMATS:
        return make_quantized_row(FORMATS[kind], n_tile), BLOCK
    return make_float_row(FLOAT_FORMATS[kind], n_tile), 1


def make_outputs(kind: GGMLType, n_tile: int):
    """`put_outputs(...)`: output o of `n_tile` rows of x, whose addresses stand in `x_at`, by the eight threads of a
    group, which share `weight_row`; `out` and `residual` (0 for none) are addresses of row 0, `bias` of row 0 of the
    weights."""
    multiply, unit = make_row(kind, n_tile)

    @device
    def put_outputs(
        x_at, codes, high, scales, bias, residual, out, weight_row, o, n_out, n_in, row, last, out_stride, scale
    ):
        part = cuda.threadIdx.x & (PARTS - 1)
        acc = cuda.local.array(n_tile, float32)
        for m in range(n_tile):
            acc[m] = _ZERO
        n_steps = n_in // unit
        multiply(acc, x_at, codes, high, scales, weight_row * n_steps, n_steps, part)
        for m in range(n_tile):
            total = sum_parts(acc[m])
            if part == m and o < n_out and row + m < last:
                at = (row + m) * out_stride + 4 * o
                finish(
                    out + at, total, bias + 4 * weight_row if bias != 0 else 0, residual + at if residual != 0 else 0,
                    scale,
                )  # fmt: skip

    return put_outputs


@device
def find_tile(count_at, tiles, n_tile):
    """(matrix, first row, end) of what a block of threads multiplies: of no rows where there is nothing."""
    last = load_i32(count_at)
    if tiles == 0:
        return np.int64(cuda.blockIdx.z), np.int64(cuda.blockIdx.y) * n_tile, last
    if cuda.blockIdx.y >= last:
        return np.int64(0), np.int64(0), np.int64(0)
    tile = tiles + 12 * np.int64(cuda.blockIdx.y)
    row = load_i32(tile + 4)
    return load_i32(tile), row, row + load_i32(tile + 8)


def make_rows(n_tile: int):
    """`find_rows(x_at, x, row, last, x_stride, sources, divisor)`: addresses of `n_tile` rows of x from `row` on, the
    last one again where there are no more."""

    @device
    def find_rows(x_at, x, row, last, x_stride, sources, divisor):
        for m in range(n_tile):
            mine = min(row + m, last - 1)
            if sources != 0:
                mine = load_i32(sources + 4 * mine) // divisor
            x_at[m] = x + mine * x_stride

    return find_rows


def _make_matmul(kind: GGMLType, n_tile: int):
    put_outputs, find_rows = make_outputs(kind, n_tile), make_rows(n_tile)

    def matmul(
        out: Int, x: Int, codes: Int, high: Int, scales: Int, bias: Int, residual: Int, count_at: Int, tiles: Int,
        sources: Int, divisor: Int, n_out: Int, n_in: Int, first_row: Int, x_stride: Int, out_stride: Int, z_rows: Int,
        z_in: Int, z_out: Int, scale: Float,
    ):  # fmt: skip
        matrix, row, last = find_tile(count_at, tiles, n_tile)
        if row >= last:
            return
        o = cuda.blockIdx.x * ROWS_OF_BLOCK + (cuda.threadIdx.x >> 3)
        x_at = cuda.local.array(n_tile, np.int64)
        find_rows(x_at, x + cuda.blockIdx.z * z_in, row, last, x_stride, sources, divisor)
        z_at = cuda.blockIdx.z * z_out
        put_outputs(
            x_at, codes, high, scales, bias, residual + z_at if residual != 0 else 0, out + z_at,
            first_row + matrix * z_rows + min(o, n_out - 1), o, n_out, n_in, row, last, out_stride, scale,
        )  # fmt: skip

    matmul.__name__ = f"matmul_{kind.name.lower()}_{n_tile}"
    return kernel(THREADS, min_blocks=3)(matmul)


for _kind in (*FORMATS, *FLOAT_FORMATS):
    for _n in ROW_COUNTS:
        globals()[f"matmul_{_kind.name.lower()}_{_n}"] = _make_matmul(_kind, _n)
