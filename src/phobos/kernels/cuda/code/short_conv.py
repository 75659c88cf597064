"""The causal convolution of each channel over the sequence.

A thread a value: a row's taps reach back over the rows before it that are of its slot, and beyond them into the state.
The state of a slot is [width - 1][channels] float32, the last inputs, oldest first; it takes up the pass's inputs only
once all rows are done. Weights are [channels][width].
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from phobos.kernels.cuda.code.elementary import identity, silu
from phobos.kernels.cuda.code.intrinsics import device, load_f32, load_i32, store_f32
from phobos.kernels.cuda.declaration import Int, kernel
from phobos.kernels.cuda.layout import THREADS

_ZERO = np.float32(0)


@device
def count_before(slots, row, most):
    """How many rows right before `row` are of its slot, at most `most`."""
    n, slot = 0, load_i32(slots + 4 * row)
    while n < most and n < row and load_i32(slots + 4 * (row - n - 1)) == slot:
        n += 1
    return n


@device
def _input(x, state, channels, row, back, n_before, width, is_new):
    """The input `back` rows before `row`: of the pass, or of the state, or 0 before the first of all."""
    if back <= n_before:
        return load_f32(x + 4 * channels * (row - back))
    if is_new:
        return _ZERO
    return load_f32(state + 4 * channels * (width - 1 - (back - n_before)))


def _make_conv(name, activation):
    def short_conv(
        out: Int, x: Int, weight: Int, bias: Int, states: Int, slot_bytes: Int, positions: Int, slots: Int,
        n_rows_at: Int, channels: Int, width: Int,
    ):  # fmt: skip
        row, c = cuda.blockIdx.y, cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if row >= load_i32(n_rows_at) or c >= channels:
            return
        n_before = count_before(slots, row, width - 1)
        is_new = load_i32(positions + 4 * row) == n_before
        state = states + slot_bytes * load_i32(slots + 4 * row) + 4 * c
        total = load_f32(bias + 4 * c) if bias != 0 else _ZERO
        for t in range(width):
            value = _input(x + 4 * c, state, channels, row, width - 1 - t, n_before, width, is_new)
            total = cuda.fma(load_f32(weight + 4 * (width * c + t)), value, total)
        store_f32(out + 4 * (channels * row + c), activation(total))

    short_conv.__name__ = f"short_conv_{name}"
    return kernel(THREADS)(short_conv)


short_conv_identity = _make_conv("identity", identity)
short_conv_silu = _make_conv("silu", silu)


@kernel(THREADS)
def keep_inputs(
    x: Int, states: Int, slot_bytes: Int, positions: Int, slots: Int, n_rows_at: Int, channels: Int, width: Int
):
    """The last row of each slot takes up the last inputs; what is read of the state lies behind what is written."""
    row, c = cuda.blockIdx.y, cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    n_rows = load_i32(n_rows_at)
    if row >= n_rows or c >= channels:
        return
    slot = load_i32(slots + 4 * row)
    if row + 1 < n_rows and load_i32(slots + 4 * (row + 1)) == slot:
        return
    n_before = count_before(slots, row, width - 1)
    is_new = load_i32(positions + 4 * row) == n_before
    state = states + slot_bytes * slot + 4 * c
    for t in range(width - 1):
        value = _input(x + 4 * c, state, channels, row, width - 2 - t, n_before, width, is_new)
        store_f32(state + 4 * channels * t, value)
