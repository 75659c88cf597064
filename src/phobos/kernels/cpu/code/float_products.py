"""Sums of float weights by float activations: what a product of F32, F16 or BF16 weights does before its epilogue.

An output's sum has two parts, of the inputs with even and with odd numbers, each in rising order, then added; what is
left of a number of inputs that is no multiple of `_STEP` goes to the first part. So a row has the same bits in a tile
of one row, which is bound by memory, as in a tile of `ROW_TILE`, which is bound by multiply-adds.
"""

from __future__ import annotations

from phobos.kernels.cpu.code.access import keep_own_frame, load_f32, load_i64, prefetch_far, prefetch_near, vstore
from phobos.kernels.cpu.code.formats import FloatFormat
from phobos.kernels.cpu.code.simd import F32, fma, inlined, make_tile, splat, zeros
from phobos.kernels.cpu.layout import GROUP, GROUP_TILE, LINE, ROW_TILE

_STEP = 8  # inputs whose loads and prefetches lie together


def _make_tile(form: FloatFormat, n_rows: int):
    """`add_rows(w, group_stride, x, x_stride, n_in, ahead, acc)`: `n_rows` rows of activations by `GROUP_TILE`
    groups; `ahead` is the address of how far ahead to read."""
    load, vector_bytes = form.load, GROUP * form.bytes_each
    n_lines = _STEP * vector_bytes // LINE
    new_sums, get_sum, put_sum = make_tile(F32, 2 * GROUP_TILE * n_rows)

    @inlined
    def add_rows(w, group_stride, x, x_stride, n_in, ahead, acc):
        keep_own_frame()
        near, far = load_i64(ahead), load_i64(ahead + 8)
        sums = new_sums()
        for i in range(2 * GROUP_TILE * n_rows):
            put_sum(sums, i, zeros())
        for _ in range(n_in // _STEP):
            for line in range(n_lines):
                for at in (w + LINE * line, w + group_stride + LINE * line):
                    prefetch_near(at + near)
                    prefetch_far(at + far)
            for k in range(_STEP):
                w0, w1 = load(w + k * vector_bytes), load(w + group_stride + k * vector_bytes)
                for m in range(n_rows):
                    i = 4 * m + k % 2
                    value = splat(load_f32(x + m * x_stride + 4 * k))
                    put_sum(sums, i, fma(w0, value, get_sum(sums, i)))
                    put_sum(sums, i + 2, fma(w1, value, get_sum(sums, i + 2)))
            w += _STEP * vector_bytes
            x += 4 * _STEP
        for k in range(n_in % _STEP):
            w0, w1 = load(w + k * vector_bytes), load(w + group_stride + k * vector_bytes)
            for m in range(n_rows):
                value = splat(load_f32(x + m * x_stride + 4 * k))
                put_sum(sums, 4 * m, fma(w0, value, get_sum(sums, 4 * m)))
                put_sum(sums, 4 * m + 2, fma(w1, value, get_sum(sums, 4 * m + 2)))
        for i in range(GROUP_TILE * n_rows):
            vstore(acc + 64 * i, get_sum(sums, 2 * i) + get_sum(sums, 2 * i + 1))

    return add_rows


def make_float_sums(form: FloatFormat):
    """`float_sums(...)`, called as `matmul.make_tile_sums`'s."""
    one_row, tile = _make_tile(form, 1), _make_tile(form, ROW_TILE)

    @inlined
    def float_sums(w, group_stride, n_groups, x, x_stride, n_rows, n_in, ahead, scratch):
        stride = group_stride if n_groups == GROUP_TILE else 0  # a last group by itself is multiplied twice
        row = 0
        while row < n_rows:
            at, target = x + row * x_stride, scratch + 64 * GROUP_TILE * row
            if n_rows - row == 1:
                one_row(w, stride, at, x_stride, n_in, ahead, target)
                row += 1
            else:  # rows up to the tile's end are read, their results not used
                tile(w, stride, at, x_stride, n_in, ahead, target)
                row += ROW_TILE
        return scratch

    return float_sums
