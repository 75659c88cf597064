"""Products of very many rows with packed weights, on tensor cores, by way of shared memory: the bits are those of
`matmul.py`.

Theory. A block of threads computes 128 outputs by 64 rows of activations, each of its eight warps 32 by 32. Blocks of
32 inputs come two at a time, one of an even and one of the next odd part of `matmul.py`: a *stage*. A thread unpacks
one block of weights a stage and leaves codes and scales in shared memory, so that a tile reads and unpacks every weight
once; activations are copied there as they are, asynchronously. While a stage is multiplied, the next one's weights are
on their way to registers and the activations of the one after it to memory. Stages of one pair of parts follow each
other, then come those of the next pair, so that three sets of sums are enough: even, odd, and total.

Layout of a stage. Weights: for each of the two blocks, 16 outputs and lane the four words of a fragment side by side;
places of lanes are turned (bits 4 and 5 of the address) and in the second block halves of a fragment exchanged (bit 3),
so that no store and no load meets another in a bank. Activations: 16-byte pieces of all rows, piece after piece, 32
bytes between the pieces.

A sum of integers becomes a float without a conversion: it is summed on top of the bits of 3 * 2**22, which are then
that float plus the sum, exactly.

Grid: x by 64 rows, so that the tiles that share weights run together, y by 128 outputs.
"""

from __future__ import annotations

import numpy as np
from numba import cuda, float32

from phobos.kernels.cuda.code.activations import ALL_GATES
from phobos.kernels.cuda.code.formats import FORMATS, Format
from phobos.kernels.cuda.code.intrinsics import (
    close_copies,
    copy_eight,
    copy_sixteen,
    device,
    drain_copies,
    load_f32,
    load_i32,
    load_shared_float,
    load_shared_floats,
    load_shared_word,
    load_shared_words,
    make_shared_memory,
    multiply_half,
    multiply_signed,
    multiply_unsigned,
    store_shared_float,
    store_shared_two_floats,
    store_shared_word,
    wait_for_copies,
)
from phobos.kernels.cuda.code.matmul import EXACT, exact_float, finish
from phobos.kernels.cuda.code.norm import put_value
from phobos.kernels.cuda.declaration import Float, Int, Kernel, kernel
from phobos.kernels.cuda.layout import BLOCK, PARTS, STAGE_COLUMNS, STAGE_OUTPUTS, STAGE_THREADS, WARP
from phobos.kernels.cuda.records import Input, Matrix

N_TILES = 4  # of eight rows, a warp
_N_SUMS = 2 * 4 * N_TILES
_WEIGHT_CODES = 4096  # bytes of a block's codes of all outputs, 512 for each 16
_WEIGHT_SCALES = 1024
_WEIGHT_MINIMA = 1024
_WEIGHTS = 2 * (_WEIGHT_CODES + _WEIGHT_SCALES + _WEIGHT_MINIMA)
_PIECE = 16 * STAGE_COLUMNS + 32
_VALUE_SCALES = 8 * STAGE_COLUMNS
_VALUES = 4 * _PIECE + 2 * _VALUE_SCALES
_SCALES_AT, _VALUE_SCALES_AT = 2 * _WEIGHT_CODES, 4 * _PIECE
_MINIMA_AT = 2 * _WEIGHT_SCALES  # from the scales on
HIDDEN_OUTPUTS = STAGE_OUTPUTS // 2  # of gate and up in one tile
_HIDDEN_STRIDE = HIDDEN_OUTPUTS + 4  # floats of a row of hidden values: lanes' stores do not meet in a bank
_MINUS_ZERO, _ZERO = np.float32(-0.0), np.float32(0)

shared_memory = make_shared_memory(2 * _WEIGHTS + 3 * _VALUES)


def _make_block(form: Format, second: bool):
    """`add_block(sums, codes_at, scales_at, values_at, value_scales_at)`: a stage's first or second block, the
    addresses being those of the lane in the stage."""
    has_minimum, has_minima, halves = form.has_minimum, form.minima is not None, form.halves
    multiply = multiply_signed if form.signed else multiply_unsigned
    codes_of, scales_of = second * _WEIGHT_CODES, second * _WEIGHT_SCALES
    values_of, value_scales_of = 2 * second * _PIECE, second * _VALUE_SCALES
    first = 2 * second  # word of a fragment that holds the first half of a block

    @device
    def add(sums, i, dots, d0, d1, s0, s1):
        """Four results: outputs of scales d0 and d1, columns of scales s0 and s1."""
        sums[i] = cuda.fma(exact_float(dots[0]), d0 * s0, sums[i])
        sums[i + 1] = cuda.fma(exact_float(dots[1]), d0 * s1, sums[i + 1])
        sums[i + 2] = cuda.fma(exact_float(dots[2]), d1 * s0, sums[i + 2])
        sums[i + 3] = cuda.fma(exact_float(dots[3]), d1 * s1, sums[i + 3])

    @device
    def add_tile(sums, i, a, c, scales, b0, b1, s0, x0, s1, x1):
        """16 outputs by 8 columns."""
        d0, m0, d1, m1 = scales
        if halves:
            add(sums, i, multiply_half(a[first], a[first + 1], b1 if second else b0, EXACT), d0, d1, s0, s1)
            add(sums, i, multiply_half(a[2 - first], a[3 - first], b0 if second else b1, EXACT), m0, m1, s0, s1)
        else:
            add(sums, i, multiply(a[0], a[1], a[2], a[3], b0, b1, EXACT), d0, d1, s0, s1)
        if has_minima:
            add(sums, i, multiply(c[0], c[1], c[2], c[3], b0, b1, EXACT), m0, m1, s0, s1)
        if has_minimum:
            sums[i] = cuda.fma(m0, x0, sums[i])
            sums[i + 1] = cuda.fma(m0, x1, sums[i + 1])
            sums[i + 2] = cuda.fma(m1, x0, sums[i + 2])
            sums[i + 3] = cuda.fma(m1, x1, sums[i + 3])

    @device
    def scales(scales_at, m):
        """(scale, minimum) of the lane's two outputs."""
        p, q, r, s = load_shared_floats(scales_at + scales_of + 128 * m)
        return (r, s, p, q) if second else (p, q, r, s)

    @device
    def add_block(sums, codes_at, scales_at, values_at, value_scales_at):
        first = load_shared_words(codes_at + codes_of)
        other = load_shared_words(codes_at + codes_of + 512)
        first_scales, other_scales = scales(scales_at, 0), scales(scales_at, 1)
        first_minima, other_minima = first, other
        if has_minima:
            first_minima = load_shared_words(scales_at + _MINIMA_AT + scales_of)
            other_minima = load_shared_words(scales_at + _MINIMA_AT + scales_of + 128)
        for n in range(N_TILES):
            b0 = load_shared_word(values_at + values_of + _PIECE * second + 16 * 8 * n)
            b1 = load_shared_word(values_at + values_of + _PIECE * (1 - second) + 16 * 8 * n)
            s0, x0, s1, x1 = load_shared_floats(value_scales_at + value_scales_of + 64 * n)
            add_tile(sums, 8 * n, first, first_minima, first_scales, b0, b1, s0, x0, s1, x1)
            add_tile(sums, 8 * n + 4, other, other_minima, other_scales, b0, b1, s0, x0, s1, x1)

    return add_block


@device
def _block_after(b, n_blocks):
    """The first block of the stage after that of block b; `n_blocks` or more: there is none."""
    if b >= n_blocks:
        return b
    if b + PARTS < n_blocks:
        return np.int32(b + PARTS)
    part = np.int32((b & (PARTS - 1)) + 2)
    return part if part < PARTS else n_blocks


@device
def _copy_values(values, codes, scales, b, n_blocks):
    """Begin to copy this thread's share of a stage's activations; a block that is not there is zeros."""
    thread = np.int64(cuda.threadIdx.x)
    piece = thread & 3
    n_codes = np.int32(16 if np.int32(b + (piece >> 1)) < n_blocks else 0)
    copy_sixteen(values + _PIECE * piece + 16 * (thread >> 2), codes + BLOCK * b, n_codes)
    if cuda.threadIdx.x < 2 * STAGE_COLUMNS:
        n_scales = np.int32(8 if np.int32(b + (thread & 1)) < n_blocks else 0)
        target = values + _VALUE_SCALES_AT + _VALUE_SCALES * (thread & 1) + 8 * (thread >> 1)
        copy_eight(target, scales + 8 * b, n_scales)
    close_copies()


@device
def _put_tile(first, total, o, r, out, bias, residual, n_out, n_rows, first_row, scale):
    """Finish the eight results of a lane, sums `first` and on, whose first output is o and first row r."""
    for i in range(8):
        output, row = o + 8 * (i // 2), r + i % 2
        if output < n_out and row < n_rows:
            at = 4 * (n_out * row + output)
            finish(
                out + at, total[first + i], bias + 4 * (first_row + output) if bias != 0 else 0,
                residual + at if residual != 0 else 0, scale,
            )  # fmt: skip


def _make_sum_tile(form: Format):
    """`sum_tile(total, weights, row, n_rows, x, x_stride, n_in, codes, high, scales, weight_row)`: a lane's results of
    rows `row` and on; `weights` is the shared memory, `weight_row` what output thread // 2 of the tile is multiplied
    with."""
    add_even, add_odd = _make_block(form, False), _make_block(form, True)
    words_of, scales_of, minima_of, has_minima = form.words, form.scales_of, form.minima, form.minima is not None

    @device
    def unpack(codes, high, scales, index, b, n_blocks):
        """(words, scales, minima) of block b of the row that begins at `index`; scales 0 where it has none."""
        index += min(b, np.int32(n_blocks - 1))
        d, other = scales_of(scales, index)
        if b >= n_blocks:
            d, other = _ZERO, _ZERO
        words = words_of(codes, high, index)
        return words, (d, other), minima_of(high, index) if has_minima else (words[0], words[1])

    @device
    def store(codes_at, scales_at, minima_at, block):
        """A block of weights to its places in a stage; words 0 to 3 are a fragment's first half."""
        words, both, minima = block
        for i in range(8):
            store_shared_word(codes_at ^ (16 * (i & 3) + 8 * (i >> 2)), words[i])
        store_shared_two_floats(scales_at, both[0], both[1])
        if has_minima:
            store_shared_word(minima_at, minima[0])
            store_shared_word(minima_at ^ 8, minima[1])

    @device
    def sum_tile(total, weights, row, n_rows, x, x_stride, n_in, codes, high, scales, weight_row):
        n_blocks = np.int32(n_in // BLOCK)
        thread = np.int64(cuda.threadIdx.x)
        g, t = thread >> 2 & 7, thread & 3
        values = weights + 2 * _WEIGHTS

        # what this thread unpacks: a block of output thread // 2, the stage's first or second by turns
        o, second = thread >> 1, thread & 1
        half, index = o >> 3 & 1, weight_row * n_blocks
        to_codes = weights + _WEIGHT_CODES * second + 512 * (o >> 4) + 64 * (o & 7) + 16 * (o >> 1 & 3)
        to_codes += 8 * second + 4 * half
        to_scales = weights + _SCALES_AT + _WEIGHT_SCALES * second + 128 * (o >> 4) + 16 * (o & 7)
        to_minima = to_scales + _MINIMA_AT + 8 * second + 4 * half
        to_scales += 8 * (half ^ second)
        # and copies: a piece of row thread // 4, scales of row thread // 2
        from_codes = x + min(row + (thread >> 2), n_rows - 1) * x_stride + 16 * (thread & 3)
        from_scales = x + min(row + (thread >> 1), n_rows - 1) * x_stride + n_in + 8 * second
        # what it multiplies: outputs 32 (warp % 4), rows 32 (warp // 4)
        m, c = thread & 96, thread >> 7 << 5
        codes_at = weights + 32 * m + 64 * g + 16 * (t ^ (g >> 1))
        scales_at = weights + _SCALES_AT + 8 * m + 16 * g
        values_at = values + 16 * (c + g) + 4 * t
        value_scales_at = values + _VALUE_SCALES_AT + 8 * (c + 2 * t)

        even = cuda.local.array(_N_SUMS, float32)
        odd = cuda.local.array(_N_SUMS, float32)
        for i in range(_N_SUMS):
            even[i] = _ZERO
            odd[i] = _ZERO
            total[i] = _MINUS_ZERO  # added to, x has the bits of x
        b = np.int32(0)
        following = _block_after(b, n_blocks)
        _copy_values(values, from_codes, from_scales, b, n_blocks)
        _copy_values(values + _VALUES, from_codes, from_scales, following, n_blocks)
        block = unpack(codes, high, scales, index, np.int32(second), n_blocks)
        store(to_codes, to_scales, to_minima, block)
        now, ahead, turn = np.int64(0), np.int64(2 * _VALUES), np.int64(0)
        while b < n_blocks:
            wait_for_copies()
            cuda.syncthreads()
            after = _block_after(following, n_blocks)
            _copy_values(values + ahead, from_codes, from_scales, after, n_blocks)
            block = unpack(codes, high, scales, index, np.int32(following + second), n_blocks)
            add_even(even, codes_at + turn, scales_at + turn, values_at + now, value_scales_at + now)
            add_odd(odd, codes_at + turn, scales_at + turn, values_at + now, value_scales_at + now)
            turn = _WEIGHTS - turn
            store(to_codes + turn, to_scales + turn, to_minima + turn, block)
            if following != b + PARTS or following >= n_blocks:
                for i in range(_N_SUMS):
                    total[i] = total[i] + (even[i] + odd[i])
                    even[i] = _ZERO
                    odd[i] = _ZERO
            b, following = following, after
            now = now + _VALUES if now < 2 * _VALUES else np.int64(0)
            ahead = ahead + _VALUES if ahead < 2 * _VALUES else np.int64(0)
        drain_copies()

    return sum_tile


def _make_matmul(form: Format):
    sum_tile = _make_sum_tile(form)

    def matmul(
        out: Int, x: Int, codes: Int, high: Int, scales: Int, bias: Int, residual: Int, count_at: Int, n_out: Int,
        n_in: Int, first_row: Int, x_stride: Int, scale: Float,
    ):  # fmt: skip
        n_rows = load_i32(count_at)
        row, first = np.int64(cuda.blockIdx.x) * STAGE_COLUMNS, np.int64(cuda.blockIdx.y) * STAGE_OUTPUTS
        if row >= n_rows:
            return
        thread = np.int64(cuda.threadIdx.x)
        total, memory = cuda.local.array(_N_SUMS, float32), shared_memory()
        weight_row = first_row + min(first + (thread >> 1), n_out - 1)
        sum_tile(total, memory, row, n_rows, x, x_stride, n_in, codes, high, scales, weight_row)
        o, r = first + (thread & 96) + (thread >> 2 & 7), row + (thread >> 7 << 5) + 2 * (thread & 3)
        _put_tile(0, total, o, r, out, bias, residual, n_out, n_rows, first_row, scale)
        _put_tile(8, total, o, r + 8, out, bias, residual, n_out, n_rows, first_row, scale)
        _put_tile(16, total, o, r + 16, out, bias, residual, n_out, n_rows, first_row, scale)
        _put_tile(24, total, o, r + 24, out, bias, residual, n_out, n_rows, first_row, scale)

    matmul.__name__ = f"matmul_{form.kind.name}"
    return kernel(STAGE_THREADS)(matmul)


@device
def _load_bias(bias, row):
    """A bias, and whether there is one: what adds nothing must not be added, for the sign of zero."""
    return load_f32(bias + 4 * row) if bias != 0 else _MINUS_ZERO


def _make_gated(form: Format, activation: str) -> Kernel:
    sum_tile, gate_of = _make_sum_tile(form), ALL_GATES[activation]

    @device
    def put_hidden(first, total, at, scale, gate_bias, gate_bias_8, up_bias, up_bias_8):
        """The hidden values of a lane's results `first` and on, four of the gate and four of up, to shared memory."""
        for i in range(4):
            gate = (total[first + i] + (gate_bias if i < 2 else gate_bias_8)) * scale
            up = (total[first + 4 + i] + (up_bias if i < 2 else up_bias_8)) * scale
            store_shared_float(at + 4 * (8 * (i // 2) + _HIDDEN_STRIDE * (i % 2)), gate_of(gate, up))

    def gated(x: Input, gate: Matrix, up: Matrix, out: Int, out_codes: Int):
        """Gate and up of 64 outputs, 16 of one and 16 of the other by turns, and what their activation gives. Grid: x
        by 64 rows, y by 64 outputs."""
        n_rows, n_out, scale = load_i32(x.count_at), gate.n_out, x.scale
        row, first = np.int64(cuda.blockIdx.x) * STAGE_COLUMNS, np.int64(cuda.blockIdx.y) * HIDDEN_OUTPUTS
        if row >= n_rows:
            return
        thread = np.int64(cuda.threadIdx.x)
        total, memory = cuda.local.array(_N_SUMS, float32), shared_memory()
        mine = min(first + 16 * (thread >> 6) + (thread >> 1 & 15), n_out - 1)
        chosen = gate
        if thread & 32 != 0:
            chosen = up
        weight_row = chosen.first_row + mine
        sum_tile(
            total, memory, row, n_rows, x.at, x.stride, x.n_in, chosen.codes, chosen.high, chosen.scales, weight_row
        )
        cuda.syncthreads()  # what weights were in is free
        o, r = 16 * (thread >> 5 & 3) + (thread >> 2 & 7), (thread >> 7 << 5) + 2 * (thread & 3)
        near, far = min(first + o, n_out - 1), min(first + o + 8, n_out - 1)
        g, g_8 = _load_bias(gate.bias, gate.first_row + near), _load_bias(gate.bias, gate.first_row + far)
        u, u_8 = _load_bias(up.bias, up.first_row + near), _load_bias(up.bias, up.first_row + far)
        at = memory + 4 * (o + _HIDDEN_STRIDE * r)
        put_hidden(0, total, at, scale, g, g_8, u, u_8)
        put_hidden(8, total, at + 32 * _HIDDEN_STRIDE, scale, g, g_8, u, u_8)
        put_hidden(16, total, at + 64 * _HIDDEN_STRIDE, scale, g, g_8, u, u_8)
        put_hidden(24, total, at + 96 * _HIDDEN_STRIDE, scale, g, g_8, u, u_8)
        cuda.syncthreads()
        for i in range(2 * STAGE_COLUMNS // (STAGE_THREADS // WARP)):
            r, o = STAGE_COLUMNS // (STAGE_THREADS // WARP) * (thread >> 5) + (i >> 1), BLOCK * (i & 1)
            if row + r < n_rows and first + o < n_out:
                value = load_shared_float(memory + 4 * (o + (thread & 31) + _HIDDEN_STRIDE * r))
                put_value(out, out_codes, n_out, row + r, first + o + (thread & 31), value)

    gated.__name__ = f"gated_{form.kind.name}_{activation}"
    return kernel(STAGE_THREADS)(gated)


for _form in FORMATS.values():
    globals()[f"matmul_{_form.kind.name}"] = _make_matmul(_form)
_GATED = {f"gated_{form.kind.name}_{name}": (form, name) for form in FORMATS.values() for name in ALL_GATES}


def __getattr__(name: str) -> Kernel:
    """Gated kernels are made when first asked for."""
    if name not in _GATED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = _make_gated(*_GATED[name])
    return found
