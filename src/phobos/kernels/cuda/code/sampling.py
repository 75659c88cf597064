"""The best token of every wanted row, so that ids come back from the card and not logits.

The greatest logit, the lowest id of several; NaN counts as -inf, and -1 says that all are: what `cpu/sampling.py` draws
at temperature 0. Comparisons are exact, so the order they come in changes nothing.
"""

from __future__ import annotations

import numpy as np
from numba import cuda, float32, int32

from phobos.kernels.cuda.code.intrinsics import device, load_f32, load_i32, store_f32, store_i32
from phobos.kernels.cuda.declaration import Int, kernel
from phobos.kernels.cuda.layout import NORM_THREADS, WARP

_EVERYONE = 0xFFFFFFFF
_N_WARPS = NORM_THREADS // WARP
_NONE = np.int32(0x7FFFFFFF)  # behind every id
_LOWEST = np.float32(-np.inf)


@device
def _best_of_warp(value, token):
    """The best of a warp's pairs, the same in every lane."""
    for step in (16, 8, 4, 2, 1):
        other_value = cuda.shfl_xor_sync(_EVERYONE, value, step)
        other = cuda.shfl_xor_sync(_EVERYONE, token, step)
        if other_value > value or (other_value == value and other < token):
            value, token = other_value, other
    return value, token


@kernel(NORM_THREADS)
def find_best(parts: Int, logits: Int, n_rows_at: Int, width: Int, n: Int, span: Int):
    """The greatest of `span` neighbouring logits and its id, for each span of the first `n` of a row. Grid: x by span,
    y by row."""
    values = cuda.shared.array(_N_WARPS, float32)
    tokens = cuda.shared.array(_N_WARPS, int32)
    row, thread = cuda.blockIdx.y, cuda.threadIdx.x
    if row >= load_i32(n_rows_at):
        return
    source, first = logits + 4 * width * row, cuda.blockIdx.x * span
    best, token = _LOWEST, _NONE
    for i in range(first + thread, min(first + span, n), NORM_THREADS):
        value = load_f32(source + 4 * i)
        if value > best:
            best, token = value, int32(i)
    best, token = _best_of_warp(best, token)
    if thread & 31 == 0:
        values[thread >> 5] = best
        tokens[thread >> 5] = token
    cuda.syncthreads()
    if thread == 0:
        for w in range(1, _N_WARPS):
            if values[w] > best:  # at a tie the warp before may hold the higher id
                best, token = values[w], tokens[w]
            elif values[w] == best and tokens[w] < token:
                token = tokens[w]
        target = parts + 8 * (cuda.gridDim.x * row + cuda.blockIdx.x)
        store_f32(target, best)
        store_i32(target + 4, np.int64(token))


@kernel(WARP)
def choose(out: Int, parts: Int, n_rows_at: Int, n_spans: Int):
    """The id (int32) of each row's best span at `out`. Grid: x by row."""
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    if row >= load_i32(n_rows_at):
        return
    best, token = _LOWEST, _NONE
    for s in range(lane, n_spans, WARP):
        part = parts + 8 * (n_spans * row + s)
        value = load_f32(part)
        if value > best:
            best, token = value, int32(load_i32(part + 4))
    best, token = _best_of_warp(best, token)
    if lane == 0:
        store_i32(out + 4 * row, np.int64(-1) if token == _NONE else np.int64(token))
