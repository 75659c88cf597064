"""The selective scan of Mamba 2, and what it shares with `delta.py`, whose form it has.

The state of a slot is [n_heads][state_dim][head_dim] float32.
"""

from __future__ import annotations

import numpy as np
from numba import cuda, float32

from phobos.kernels.cuda.code.elementary import exponential
from phobos.kernels.cuda.code.intrinsics import device, load_f32, load_i32, store_f32
from phobos.kernels.cuda.declaration import Int, kernel
from phobos.kernels.cuda.layout import THREADS, WARP

MAX_ROWS = 256  # of a state
STATE_VALUES = MAX_ROWS * WARP
N_WARPS = THREADS // WARP
_ZERO, _ONE, _TWO = np.float32(0), np.float32(1), np.float32(2)


@device
def softplus(x):
    """ln(1 + e ** x): the greater of x and 0, plus 2 artanh(e / (2 + e)) with e = e ** -|x|, by its series."""
    e = exponential(-abs(x))
    z = e / (_TWO + e)
    square = z * z
    series = np.float32(1.0 / 15.0)
    for divisor in (13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0):
        series = cuda.fma(series, square, np.float32(1.0 / divisor))
    return cuda.fma(_TWO * z, series, max(x, _ZERO))


@device
def is_first_of_slot(slots, row):
    """Whether a row begins its slot's rows of a pass."""
    return row == 0 or load_i32(slots + 4 * (row - 1)) != load_i32(slots + 4 * row)


@device
def sum_warps(shared, value):
    """The sum over a block's warps, lane by lane; two barriers must lie between its uses of the same memory."""
    lane = cuda.threadIdx.x & 31
    shared[cuda.threadIdx.x] = value
    cuda.syncthreads()
    return (shared[lane] + shared[WARP + lane]) + (shared[2 * WARP + lane] + shared[3 * WARP + lane])


@kernel(THREADS)
def scan_prepare(dt: Int, bias: Int, n_rows_at: Int, n_heads: Int):
    """dt = softplus(dt + bias), in place. Grid: x along a row, y by row."""
    row, i = cuda.blockIdx.y, cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if row < load_i32(n_rows_at) and i < n_heads:
        at = dt + 4 * (n_heads * row + i)
        store_f32(at, softplus(load_f32(at) + load_f32(bias + 4 * i)))


@kernel(THREADS)
def selective_scan(
    out: Int, x: Int, dt: Int, rate: Int, skip: Int, states: Int, slot_bytes: Int, positions: Int, slots: Int,
    n_rows_at: Int, n_heads: Int, head_dim: Int, n_groups: Int, state_dim: Int,
):  # fmt: skip
    """Grid: x by head and 32 columns, y by row, of which only those that begin a slot's do anything."""
    state = cuda.shared.array(STATE_VALUES, float32)
    even = cuda.shared.array(THREADS, float32)
    odd = cuda.shared.array(THREADS, float32)
    row, n_rows = np.int64(cuda.blockIdx.y), load_i32(n_rows_at)
    if row >= n_rows or not is_first_of_slot(slots, row):
        return
    lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
    n_parts = (head_dim + WARP - 1) // WARP
    head, column = cuda.blockIdx.x // n_parts, cuda.blockIdx.x % n_parts * WARP + lane
    width, group = n_heads * head_dim, head // (n_heads // n_groups)
    x_stride = 4 * (width + 2 * n_groups * state_dim)
    slot = load_i32(slots + 4 * row)
    at = states + slot_bytes * slot + 4 * (head_dim * state_dim * head + column)
    is_known = load_i32(positions + 4 * row) != 0 and column < head_dim
    for i in range(warp, state_dim, N_WARPS):
        state[WARP * i + lane] = load_f32(at + 4 * head_dim * i) if is_known else _ZERO
    while row < n_rows and load_i32(slots + 4 * row) == slot:
        value = load_f32(x + x_stride * row + 4 * (head_dim * head + column)) if column < head_dim else _ZERO
        step = load_f32(dt + 4 * (n_heads * row + head))
        decay, taken = exponential(step * load_f32(rate + 4 * head)), step * value
        inner = x + x_stride * row + 4 * (width + state_dim * group)
        outer = inner + 4 * n_groups * state_dim
        total = _ZERO
        for i in range(warp, state_dim, N_WARPS):
            new = cuda.fma(load_f32(inner + 4 * i), taken, state[WARP * i + lane] * decay)
            state[WARP * i + lane] = new
            total = cuda.fma(load_f32(outer + 4 * i), new, total)
        total = sum_warps(even, total) if row & 1 == 0 else sum_warps(odd, total)
        if warp == 0 and column < head_dim:
            result = cuda.fma(load_f32(skip + 4 * head), value, total)
            store_f32(out + 4 * (width * row + head_dim * head + column), result)
        row += 1
    if column < head_dim:
        for i in range(warp, state_dim, N_WARPS):
            store_f32(at + 4 * head_dim * i, state[WARP * i + lane])
