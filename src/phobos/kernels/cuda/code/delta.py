"""The gated delta rule.

`delta_unit` and `delta_gates` make queries, keys, decays and the strengths of updates ready. In `delta_scan` a block of
threads has 32 columns of one head's state in shared memory, [k_dim][32], while it takes the rows of one slot in order:
a lane is a column, warp w has rows w, w + 4, ... of the state, and the warps' sums meet in one order. The state of a
slot is [n_heads][k_dim][v_dim] float32.
"""

from __future__ import annotations

import math

import numpy as np
from numba import cuda, float32

from phobos.kernels.cuda.code.elementary import exponential, sigmoid
from phobos.kernels.cuda.code.intrinsics import device, load_f32, load_i32, store_f32
from phobos.kernels.cuda.code.norm import sum_warp
from phobos.kernels.cuda.code.scan import N_WARPS, STATE_VALUES, is_first_of_slot, softplus, sum_warps
from phobos.kernels.cuda.declaration import Float, Int, kernel
from phobos.kernels.cuda.layout import THREADS, WARP

_ZERO, _ONE = np.float32(0), np.float32(1)


@device
def _scale_to_unit(x, dim, eps, factor):
    """x * factor / max(|x|, eps), in place, by a warp."""
    lane = cuda.threadIdx.x & 31
    total = _ZERO
    for i in range(lane, dim, WARP):
        value = load_f32(x + 4 * i)
        total = cuda.fma(value, value, total)
    scale = factor / max(math.sqrt(sum_warp(total)), eps)
    for i in range(lane, dim, WARP):
        store_f32(x + 4 * i, load_f32(x + 4 * i) * scale)


@kernel(WARP)
def delta_unit(q: Int, k: Int, q_stride: Int, k_stride: Int, n_rows_at: Int, k_dim: Int, scale: Float, eps: Float):
    """Unit queries, times `scale`, and keys. Grid: x by head of keys, y by row."""
    head, row = cuda.blockIdx.x, cuda.blockIdx.y
    if row >= load_i32(n_rows_at):
        return
    _scale_to_unit(q + q_stride * row + 4 * k_dim * head, k_dim, eps, scale)
    _scale_to_unit(k + k_stride * row + 4 * k_dim * head, k_dim, eps, _ONE)


@kernel(THREADS)
def delta_gates(decay: Int, beta: Int, rate: Int, bias: Int, n_rows_at: Int, n_heads: Int, decay_dim: Int):
    """Decays [n_heads, decay_dim] and strengths [n_heads] of a row. Grid: x along both, y by row."""
    row, i = cuda.blockIdx.y, cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    width = n_heads * decay_dim
    if row >= load_i32(n_rows_at) or i >= width + n_heads:
        return
    if i < width:
        at = decay + 4 * (width * row + i)
        raised = softplus(load_f32(at) + load_f32(bias + 4 * i))
        store_f32(at, exponential(load_f32(rate + 4 * (i // decay_dim)) * raised))
    else:
        at = beta + 4 * (n_heads * row + i - width)
        store_f32(at, sigmoid(load_f32(at)))


@kernel(THREADS)
def delta_scan(
    out: Int, q: Int, k: Int, v: Int, q_stride: Int, k_stride: Int, v_stride: Int, decay: Int, beta: Int, states: Int,
    slot_bytes: Int, positions: Int, slots: Int, n_rows_at: Int, n_heads: Int, n_k_heads: Int, k_dim: Int, v_dim: Int,
    decay_dim: Int, is_tiled: Int,
):  # fmt: skip
    """Grid: x by head and 32 columns, y by row, of which only those that begin a slot's do anything."""
    state = cuda.shared.array(STATE_VALUES, float32)
    predicted = cuda.shared.array(THREADS, float32)
    answered = cuda.shared.array(THREADS, float32)
    row, n_rows = np.int64(cuda.blockIdx.y), load_i32(n_rows_at)
    if row >= n_rows or not is_first_of_slot(slots, row):
        return
    lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
    n_parts = (v_dim + WARP - 1) // WARP
    head, column = cuda.blockIdx.x // n_parts, cuda.blockIdx.x % n_parts * WARP + lane
    key_head = head % n_k_heads if is_tiled != 0 else head // (n_heads // n_k_heads)
    slot = load_i32(slots + 4 * row)
    at = states + slot_bytes * slot + 4 * (v_dim * k_dim * head + column)
    is_known = load_i32(positions + 4 * row) != 0 and column < v_dim
    for i in range(warp, k_dim, N_WARPS):
        state[WARP * i + lane] = load_f32(at + 4 * v_dim * i) if is_known else _ZERO
    while row < n_rows and load_i32(slots + 4 * row) == slot:
        keys, queries = k + k_stride * row + 4 * k_dim * key_head, q + q_stride * row + 4 * k_dim * key_head
        factors = decay + 4 * decay_dim * (n_heads * row + head)
        factor = load_f32(factors)
        total = _ZERO
        for i in range(warp, k_dim, N_WARPS):
            weight = load_f32(keys + 4 * i)
            if decay_dim > 1:
                weight = weight * load_f32(factors + 4 * i)
            total = cuda.fma(weight, state[WARP * i + lane], total)
        total = sum_warps(predicted, total)
        if decay_dim == 1:
            total = total * factor
        value = load_f32(v + v_stride * row + 4 * (v_dim * head + column)) if column < v_dim else _ZERO
        change = (value - total) * load_f32(beta + 4 * (n_heads * row + head))
        total = _ZERO
        for i in range(warp, k_dim, N_WARPS):
            if decay_dim > 1:
                factor = load_f32(factors + 4 * i)
            value = cuda.fma(load_f32(keys + 4 * i), change, state[WARP * i + lane] * factor)
            state[WARP * i + lane] = value
            total = cuda.fma(load_f32(queries + 4 * i), value, total)
        total = sum_warps(answered, total)
        if warp == 0 and column < v_dim:
            store_f32(out + 4 * (v_dim * (n_heads * row + head) + column), total)
        row += 1
    if column < v_dim:
        for i in range(warp, k_dim, N_WARPS):
            store_f32(at + 4 * v_dim * i, state[WARP * i + lane])
