"""Matrix products with packed weights: out = x @ weight.T, plus bias, times scale, plus residual.

Theory. A block's dot product of codes is an exact integer, so only its float epilogue rounds:
    acc = fma(float(dot), scale * x_scale, acc); acc = fma(minimum, x_sum, acc)
with blocks in rising order of input. Up to `STREAMED_ROWS` rows stream the packed weights straight through registers;
more unpack `CHUNK_VALUES` inputs of two groups into the first cache and multiply tiles of rows by them. Both run the
same epilogue in the same order, so a row has the same bits however many rows it came with. Threads take whole groups.
"""

from __future__ import annotations

from functools import cache

from phobos.kernels.cpu.code.access import (
    keep_loads_apart,
    keep_own_frame,
    load_f32,
    load_i64,
    prefetch_far,
    prefetch_near,
    vload,
    vload_u8,
    vstore,
    vstore_u8,
)
from phobos.kernels.cpu.code.float_products import make_float_sums
from phobos.kernels.cpu.code.formats import FloatFormat, Format, make_lookup_of_kernels
from phobos.kernels.cpu.code.simd import (
    F32,
    I32,
    always_inlined,
    dot4,
    fma,
    inlined,
    make_tile,
    splat,
    splat_bytes,
    to_float,
    zeros,
    zeros_i32,
)
from phobos.kernels.cpu.code.sync import take_work
from phobos.kernels.cpu.declaration import Float, Int, Kernel, kernel
from phobos.kernels.cpu.layout import (
    BLOCK,
    CHUNK_VALUES,
    GROUP,
    GROUP_TILE,
    ROW_TILE,
    STREAMED_ROWS,
    Header,
)
from phobos.kernels.cpu.packed_types import read_ahead_offset

_BATCH_PASS, _BATCH_SCRATCH, _BATCH_SCRATCH_BYTES = 8 * Header.PASS, 8 * Header.SCRATCH, 8 * Header.SCRATCH_BYTES


@inlined
def finish(out, acc, bias, residual, scale):
    """Store 16 results: plus bias, times scale, plus residual (addresses; 0: none)."""
    if bias != 0:
        acc = acc + vload(bias)
    acc = acc * splat(scale)
    if residual != 0:
        acc = vload(residual) + acc
    vstore(out, acc)


def _make_add_blocks(form: Format, n_rows: int, n_together: int):
    """`add_blocks(w, b, x, scale_at, sum_at, x_stride, near, far, sums, dots)`: blocks b, b + 1, … of the record at
    `w`, by `n_rows` rows of activations, added to their sums in that order."""
    codes, scale, minimum = form.codes, form.scale, form.minimum
    record_bytes, block = form.kind.record_bytes, form.kind.block
    n_blocks, n_slices = form.kind.values // block, block // 4
    block_lines = -(-record_bytes // (64 * n_blocks))
    _, get_sum, put_sum = make_tile(F32, n_rows)
    _, get_dot, put_dot = make_tile(I32, n_together * n_rows)

    @always_inlined
    def add_blocks(w, b, x, scale_at, sum_at, x_stride, near, far, sums, dots):
        keep_loads_apart()  # else a record's prefetches are gathered at its head, more than a processor can await
        for line in range(b * block_lines, (b + n_together) * block_lines):
            prefetch_near(w + near + 64 * line)
            prefetch_far(w + far + 64 * line)
        for i in range(n_together * n_rows):
            put_dot(dots, i, zeros_i32())
        for j in range(n_slices):
            for t in range(n_together):
                code = codes(w + (b + t) // n_blocks * record_bytes, (b + t) % n_blocks, j)
                at = x + (b + t) * block + 4 * j
                for m in range(n_rows):
                    i = t * n_rows + m
                    put_dot(dots, i, dot4(get_dot(dots, i), code, splat_bytes(at + m * x_stride)))
        for t in range(n_together):
            record = w + (b + t) // n_blocks * record_bytes
            d, offset = scale(record, (b + t) % n_blocks), minimum(record, (b + t) % n_blocks)
            for m in range(n_rows):
                factor = d * splat(load_f32(scale_at + 4 * ((b + t) * block // BLOCK) + m * x_stride))
                total = fma(to_float(get_dot(dots, t * n_rows + m)), factor, get_sum(sums, m))
                put_sum(sums, m, fma(offset, splat(load_f32(sum_at + 4 * (b + t) + m * x_stride)), total))

    return add_blocks


def _make_few_rows(form: Format, n_rows: int):
    """`few_rows(w, x, x_stride, n_in, ahead, acc)`: one group by `n_rows` rows of activations, the packed weights
    streamed through registers; leaves a vector a row at `acc`. `ahead` is the address of how far ahead to read."""
    block, n_blocks = form.kind.block, form.kind.values // form.kind.block
    n_together = 2 if n_rows > 1 else 1  # several rows: enough products in flight, loads shared
    n_unrolled = max(n_blocks, n_together)  # block numbers, hence shifts, are constants
    unrolled_bytes = n_unrolled // n_blocks * form.kind.record_bytes
    may_be_odd = n_unrolled > n_blocks
    add_blocks, add_last = _make_add_blocks(form, n_rows, n_together), _make_add_blocks(form, n_rows, 1)
    sum_offset = 1 if block == BLOCK else 2  # where a block's code sums start, in units of 4 * n_in / BLOCK
    new_sums, get_sum, put_sum = make_tile(F32, n_rows)
    new_dots, _, _ = make_tile(I32, n_together * n_rows)
    new_last, _, _ = make_tile(I32, n_rows)

    @inlined
    def few_rows(w, x, x_stride, n_in, ahead, acc):
        keep_own_frame()
        near, far = load_i64(ahead), load_i64(ahead + 8)
        scale_at = x + n_in
        sum_at = scale_at + 4 * (n_in // BLOCK) * sum_offset
        sums = new_sums()
        dots = new_dots()
        for m in range(n_rows):
            put_sum(sums, m, zeros())
        for _ in range(n_in // (n_unrolled * block)):
            for b in range(0, n_unrolled, n_together):
                add_blocks(w, b, x, scale_at, sum_at, x_stride, near, far, sums, dots)
            w += unrolled_bytes
            x += n_unrolled * block
            scale_at += 4 * n_unrolled * block // BLOCK
            sum_at += 4 * n_unrolled
        if may_be_odd and n_in % (n_unrolled * block) != 0:
            add_last(w, 0, x, scale_at, sum_at, x_stride, near, far, sums, new_last())
        for m in range(n_rows):
            vstore(acc + 64 * m, get_sum(sums, m))

    return few_rows


def _make_unpack(form: Format):
    """`unpack(w, n_records, ahead, codes_out, scales_out)`: a group's codes as bytes, and scale and minimum of each
    block as floats."""
    codes, scale, minimum = form.codes, form.scale, form.minimum
    n_blocks, n_slices, record_bytes = form.kind.values // form.kind.block, form.kind.block // 4, form.kind.record_bytes
    block_lines = -(-record_bytes // (64 * n_blocks))

    @inlined
    def unpack(w, n_records, ahead, codes_out, scales_out):
        near, far = load_i64(ahead), load_i64(ahead + 8)
        for _ in range(n_records):
            for b in range(n_blocks):
                for line in range(b * block_lines, (b + 1) * block_lines):
                    prefetch_near(w + near + 64 * line)
                    prefetch_far(w + far + 64 * line)
                for j in range(n_slices):
                    vstore_u8(codes_out, codes(w, b, j))
                    codes_out += 64
                vstore(scales_out, scale(w, b))
                vstore(scales_out + 64, minimum(w, b))
                scales_out += 128
            w += record_bytes

    return unpack


@cache
def _make_tile_product(block: int, n_rows: int):
    """`multiply(...)`: `n_rows` rows of activations by `GROUP_TILE` unpacked groups, added to float accumulators."""
    n_slices = block // 4
    new_sums, get_sum, put_sum = make_tile(F32, n_rows * GROUP_TILE)
    new_dots, get_dot, put_dot = make_tile(I32, n_rows * GROUP_TILE)
    group_codes, group_scales = GROUP * CHUNK_VALUES, 128 * (CHUNK_VALUES // block)

    @inlined
    def multiply(codes, scales, acc, x, x_stride, x_scale, x_sum, first_block, n_blocks):
        keep_own_frame()
        sums = new_sums()
        for i in range(n_rows * GROUP_TILE):
            put_sum(sums, i, vload(acc + 64 * i))
        dots = new_dots()
        for b in range(n_blocks):
            for i in range(n_rows * GROUP_TILE):
                put_dot(dots, i, zeros_i32())
            for j in range(n_slices):
                w0 = vload_u8(codes + 64 * (b * n_slices + j))
                w1 = vload_u8(codes + group_codes + 64 * (b * n_slices + j))
                for m in range(n_rows):
                    value = splat_bytes(x + m * x_stride + (first_block + b) * block + 4 * j)
                    put_dot(dots, 2 * m, dot4(get_dot(dots, 2 * m), w0, value))
                    put_dot(dots, 2 * m + 1, dot4(get_dot(dots, 2 * m + 1), w1, value))
            for m in range(n_rows):
                d = splat(load_f32(x + m * x_stride + x_scale + 4 * ((first_block + b) * block // BLOCK)))
                s = splat(load_f32(x + m * x_stride + x_sum + 4 * (first_block + b)))
                for g in range(GROUP_TILE):
                    at = scales + g * group_scales + 128 * b
                    total = fma(to_float(get_dot(dots, 2 * m + g)), vload(at) * d, get_sum(sums, 2 * m + g))
                    put_sum(sums, 2 * m + g, fma(vload(at + 64), s, total))
        for i in range(n_rows * GROUP_TILE):
            vstore(acc + 64 * i, get_sum(sums, i))

    return multiply


def make_tile_sums(form: Format):
    """`tile_sums(...)`: `n_groups` (at most `GROUP_TILE`) groups, `group_stride` bytes apart, with all rows of
    activations. Returns the address of the sums, in the scratch: `GROUP_TILE` vectors a row."""
    unpack = _make_unpack(form)
    multiply = _make_tile_product(form.kind.block, ROW_TILE)
    block, values, record_bytes = form.kind.block, form.kind.values, form.kind.record_bytes
    codes_bytes = GROUP * CHUNK_VALUES
    scales_bytes = 128 * (CHUNK_VALUES // block)

    @inlined
    def tile_sums(w, group_stride, n_groups, x, x_stride, n_rows, n_in, ahead, scratch):
        codes = scratch
        scales = codes + GROUP_TILE * codes_bytes
        acc = scales + GROUP_TILE * scales_bytes
        x_scale = n_in
        x_sum = n_in + 4 * (n_in // BLOCK) * (1 if block == BLOCK else 2)
        for i in range((n_rows + ROW_TILE - 1) * GROUP_TILE):
            vstore(acc + 64 * i, zeros())
        for start in range(0, n_in, CHUNK_VALUES):
            n_values = min(CHUNK_VALUES, n_in - start)
            for g in range(n_groups):
                record = w + g * group_stride + start // values * record_bytes
                unpack(record, n_values // values, ahead, codes + g * codes_bytes, scales + g * scales_bytes)
            for row in range(0, n_rows, ROW_TILE):  # rows up to the tile's end are read, their results not used
                multiply(
                    codes, scales, acc + 128 * row, x + row * x_stride, x_stride, x_scale, x_sum, start // block,
                    n_values // block,
                )  # fmt: skip
        return acc

    return tile_sums


def make_several_rows(sums):
    """`several_rows(...)`: neighbouring groups, at most `GROUP_TILE`, with all rows of activations; `sums` is what
    `make_tile_sums` or `make_float_sums` makes."""

    @inlined
    def several_rows(
        out, out_stride, x, x_stride, w, group_bytes, n_groups, bias, residual, n_rows, n_in, scale, ahead, scratch
    ):
        acc = sums(w, group_bytes, n_groups, x, x_stride, n_rows, n_in, ahead, scratch)
        for row in range(n_rows):
            for g in range(n_groups):
                finish(
                    out + row * out_stride + 64 * g,
                    vload(acc + 128 * row + 64 * g),
                    bias + 64 * g if bias != 0 else 0,
                    residual + row * out_stride + 64 * g if residual != 0 else 0,
                    scale,
                )

    return several_rows


def make_stream(form: Format):
    """`stream(w, x, x_stride, n_rows, n_in, ahead, acc)`: a group by up to `STREAMED_ROWS` rows; rows up to the end of
    the last tile are read, their results not used."""
    one_row, four_rows, eight_rows = (_make_few_rows(form, n) for n in (1, 4, 8))

    @inlined
    def stream(w, x, x_stride, n_rows, n_in, ahead, acc):
        row = 0
        while row < n_rows:
            at, target = x + row * x_stride, acc + 64 * row
            if n_rows - row == 1:
                one_row(w, at, x_stride, n_in, ahead, target)
                row += 1
            elif n_rows - row <= 4:
                four_rows(w, at, x_stride, n_in, ahead, target)
                row += 4
            else:
                eight_rows(w, at, x_stride, n_in, ahead, target)
                row += 8

    return stream


def _make_matmul(form: Format) -> Kernel:
    stream = make_stream(form)
    several_rows = make_several_rows(make_tile_sums(form))
    values, record_bytes = form.kind.values, form.kind.record_bytes
    ahead_offset = read_ahead_offset(form.kind.name)

    def matmul(
        out: Int, x: Int, weight: Int, bias: Int, residual: Int, n_rows_at: Int, batch: Int, work: Int, n_out: Int,
        n_in: Int, scale: Float, thread, n_threads,
    ):  # fmt: skip
        n_rows = load_i64(n_rows_at)
        if n_rows == 0:
            return
        n_groups = (n_out + GROUP - 1) // GROUP
        group_bytes = n_in // values * record_bytes
        out_stride = n_groups * 64
        x_stride = (n_in + 16 * (n_in // BLOCK) + 63) // 64 * 64
        streamed = n_rows <= STREAMED_ROWS
        unit = max(1, n_groups // (8 * n_threads)) if streamed else GROUP_TILE
        scratch = load_i64(batch + _BATCH_SCRATCH) + thread * load_i64(batch + _BATCH_SCRATCH_BYTES)
        pass_number, ahead = load_i64(batch + _BATCH_PASS), batch + ahead_offset
        while True:
            item = take_work(work, pass_number, (n_groups + unit - 1) // unit)
            if item < 0:
                return
            first = item * unit
            last = min(first + unit, n_groups)
            if not streamed:
                several_rows(
                    out + 64 * first, out_stride, x, x_stride, weight + first * group_bytes, group_bytes, last - first,
                    bias + 64 * first if bias != 0 else 0, residual + 64 * first if residual != 0 else 0, n_rows, n_in,
                    scale, ahead, scratch,
                )  # fmt: skip
                continue
            for g in range(first, last):
                stream(weight + g * group_bytes, x, x_stride, n_rows, n_in, ahead, scratch)
                for row in range(n_rows):
                    finish(
                        out + row * out_stride + 64 * g,
                        vload(scratch + 64 * row),
                        bias + 64 * g if bias != 0 else 0,
                        residual + row * out_stride + 64 * g if residual != 0 else 0,
                        scale,
                    )

    matmul.__name__ = f"matmul_{form.kind.name}"
    return kernel(matmul)


def _make_float_matmul(name: str, form: FloatFormat) -> Kernel:
    """Float weights with float activations."""
    several_rows = make_several_rows(make_float_sums(form))
    vector_bytes, ahead_offset = GROUP * form.bytes_each, read_ahead_offset(name)

    def matmul(
        out: Int, x: Int, weight: Int, bias: Int, residual: Int, n_rows_at: Int, batch: Int, work: Int, n_out: Int,
        n_in: Int, scale: Float, thread, n_threads,
    ):  # fmt: skip
        n_rows = load_i64(n_rows_at)
        n_groups = (n_out + GROUP - 1) // GROUP
        group_bytes = n_in * vector_bytes
        out_stride = n_groups * 64
        x_stride = (4 * n_in + 63) // 64 * 64
        scratch = load_i64(batch + _BATCH_SCRATCH) + thread * load_i64(batch + _BATCH_SCRATCH_BYTES)
        pass_number, ahead = load_i64(batch + _BATCH_PASS), batch + ahead_offset
        while True:
            item = take_work(work, pass_number, (n_groups + GROUP_TILE - 1) // GROUP_TILE)
            if item < 0:
                return
            g = item * GROUP_TILE
            several_rows(
                out + 64 * g, out_stride, x, x_stride, weight + g * group_bytes, group_bytes,
                min(GROUP_TILE, n_groups - g), bias + 64 * g if bias != 0 else 0,
                residual + 64 * g if residual != 0 else 0, n_rows, n_in, scale, ahead, scratch,
            )  # fmt: skip

    matmul.__name__ = f"matmul_{name}"
    return kernel(matmul)


__getattr__ = make_lookup_of_kernels("matmul", _make_matmul, _make_float_matmul)
