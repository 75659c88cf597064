"""Mixtures of experts: routing, pairs (row, expert) sorted by expert, and their results brought back.

Theory. Sorted by expert, an expert's pairs are neighbours ("places"). A tile is up to `n_tile` places of one expert;
the products of `matmul.py` run on tiles, so a row has the same bits whoever came with it. The order of a pass lies in
three tables of int32, see `sort_pairs`.
"""

from __future__ import annotations

import numpy as np
from numba import cuda, float32, int32

from phobos.kernels.cuda.compiler import Float, Int, kernel
from phobos.kernels.cuda.elementary import exponential, sigmoid
from phobos.kernels.cuda.intrinsics import device, load_f32, load_i32, store_f32, store_i32
from phobos.kernels.cuda.layout import MAX_EXPERTS, THREADS, WARP
from phobos.kernels.cuda.norm import max_warp, sum_warp

SOFTMAX, SIGMOID, CHOSEN = 0, 1, 2
_EVERYONE = 0xFFFFFFFF
_N_STARTS = MAX_EXPERTS + 1
_ZERO, _ONE = np.float32(0), np.float32(1)
_LOWEST = np.float32(-1e30)
_SMALLEST_SUM = np.float32(6.103515625e-5)  # the least normal half, which sums of weights are not let below


@device
def _best(values, first, last):
    """The first index in [first, last) with the greatest value, by a warp."""
    best, value = int32(last), np.float32(-3e38)
    for i in range(first + (cuda.threadIdx.x & 31), last, WARP):
        if values[i] > value:
            best, value = int32(i), values[i]
    for step in (16, 8, 4, 2, 1):
        other_value = cuda.shfl_xor_sync(_EVERYONE, value, step)
        other = cuda.shfl_xor_sync(_EVERYONE, best, step)
        if other_value > value or (other_value == value and other < best):
            best, value = other, other_value
    return best


@device
def _set(values, i, value):
    """Lane 0 changes a shared value; all see it."""
    cuda.syncwarp()
    if cuda.threadIdx.x & 31 == 0:
        values[i] = value
    cuda.syncwarp()


@device
def _keep_groups(choice, scores, n, n_groups, n_groups_used):
    """Rule out all experts but those of the groups whose two best sum highest."""
    size = n // n_groups
    lane = cuda.threadIdx.x & 31
    for g in range(n_groups):
        best = _best(choice, g * size, g * size + size)
        value = choice[best]
        _set(choice, best, _LOWEST)
        second = choice[_best(choice, g * size, g * size + size)]
        _set(choice, best, value)
        _set(scores, g, value + (second if size > 1 else _ZERO))
    for _ in range(n_groups_used):
        _set(scores, _best(scores, 0, n_groups), _LOWEST)
    for i in range(lane, n, WARP):
        if scores[i // size] != _LOWEST:
            choice[i] = _LOWEST
    cuda.syncwarp()


@kernel(WARP)
def route(
    out: Int, logits: Int, bias: Int, n_rows_at: Int, n: Int, n_used: Int, gating: Int, n_groups: Int,
    n_groups_used: Int, is_normalized: Int, expert_scales: Int, scale: Float,
):  # fmt: skip
    """A warp a row; see `steps.Route`."""
    probs = cuda.shared.array(MAX_EXPERTS, float32)
    choice = cuda.shared.array(MAX_EXPERTS, float32)
    scores = cuda.shared.array(MAX_EXPERTS, float32)
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    if row >= load_i32(n_rows_at):
        return
    source = logits + 4 * n * row
    top = _LOWEST
    for i in range(lane, n, WARP):
        top = max(top, load_f32(source + 4 * i))
    top = max_warp(top)
    total = _ZERO
    for i in range(lane, n, WARP):
        value = load_f32(source + 4 * i)
        if gating == SIGMOID:
            value = sigmoid(value)
        elif gating == SOFTMAX:
            value = exponential(value - top)
        total = total + value
        probs[i] = value
    total = sum_warp(total)
    for i in range(lane, n, WARP):
        if gating == SOFTMAX:
            probs[i] = probs[i] / total
        choice[i] = probs[i] + load_f32(bias + 4 * i) if bias != 0 else probs[i]
    cuda.syncwarp()
    if n_groups > 1:
        _keep_groups(choice, scores, n, n_groups, n_groups_used)
    target = out + 8 * n_used * row
    for j in range(n_used):
        best = _best(choice, 0, n)
        _set(choice, best, _LOWEST * np.float32(2))
        _set(scores, j, probs[best])
        if lane == 0:
            store_f32(target + 4 * j, np.float32(best))
    if lane == 0:
        _weights(target, scores, n_used, gating == CHOSEN, is_normalized, expert_scales, scale)


@device
def _weights(target, chosen, n_used, is_chosen, is_normalized, expert_scales, scale):
    """Weights of the chosen, best first, by one thread, behind their numbers at `target`."""
    top = chosen[0]
    total = _ZERO
    for j in range(n_used):
        if is_chosen:
            chosen[j] = exponential(chosen[j] - top)
        total = total + chosen[j]
    if is_normalized == 0 and not is_chosen:
        total = _ONE
    total = max(total, _SMALLEST_SUM)
    for j in range(n_used):
        weight = chosen[j] / total * scale
        if expert_scales != 0:
            weight = weight * load_f32(expert_scales + 4 * np.int64(load_f32(target + 4 * j)))
        store_f32(target + 4 * (n_used + j), weight)


@kernel(THREADS)
def sort_pairs(
    sources: Int, places: Int, tiles: Int, n_tiles_at: Int, routes: Int, n_rows_at: Int, n_experts: Int, n_used: Int,
    n_tile: Int,
):  # fmt: skip
    """One block. `sources[s]` is the pair at place s, `places` back; `tiles` are three numbers each: expert, first
    place, places. A thread an expert counts and places its pairs in order of rows."""
    starts = cuda.shared.array(_N_STARTS, int32)
    n_pairs = load_i32(n_rows_at) * n_used
    for e in range(cuda.threadIdx.x, n_experts, THREADS):
        count = 0
        for pair in range(n_pairs):
            if np.int64(load_f32(routes + 4 * (pair // n_used * 2 * n_used + pair % n_used))) == e:
                count += 1
        starts[e + 1] = int32(count)
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        starts[0] = int32(0)
        n_tiles = 0
        for e in range(n_experts):
            first = np.int64(starts[e])
            count = np.int64(starts[e + 1])
            starts[e + 1] = int32(first + count)
            for at in range(0, count, n_tile):
                store_i32(tiles + 12 * n_tiles, np.int64(e))
                store_i32(tiles + 12 * n_tiles + 4, first + at)
                store_i32(tiles + 12 * n_tiles + 8, min(np.int64(n_tile), count - at))
                n_tiles += 1
        store_i32(n_tiles_at, np.int64(n_tiles))
    cuda.syncthreads()
    for e in range(cuda.threadIdx.x, n_experts, THREADS):
        place = np.int64(starts[e])
        if starts[e + 1] > starts[e]:
            for pair in range(n_pairs):
                if np.int64(load_f32(routes + 4 * (pair // n_used * 2 * n_used + pair % n_used))) == e:
                    store_i32(sources + 4 * place, np.int64(pair))
                    store_i32(places + 4 * pair, place)
                    place += 1


@kernel(THREADS)
def combine(out: Int, x: Int, routes: Int, residual: Int, n_rows_at: Int, width: Int, n_used: Int, places: Int):
    """out[row] = residual[row] + the row's pairs times their weights, best first. Grid: x along a row, y by row."""
    row, i = cuda.blockIdx.y, cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if row >= load_i32(n_rows_at) or i >= width:
        return
    total = _ZERO
    for j in range(n_used):
        place = load_i32(places + 4 * (n_used * row + j))
        weight = load_f32(routes + 4 * (2 * n_used * row + n_used + j))
        total = cuda.fma(weight, load_f32(x + 4 * (width * place + i)), total)
    at = 4 * (width * row + i)
    if residual != 0:
        total = load_f32(residual + at) + total
    store_f32(out + at, total)
