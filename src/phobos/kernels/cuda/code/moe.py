"""Mixtures of experts: routing, pairs (row, expert) sorted by expert, and their results brought back.

Theory. Sorted by expert, an expert's pairs are neighbours ("places"). A tile is up to `n_tile` places of one expert;
the products of `matmul.py` and `matmul_tile.py` run on tiles, so a row has the same bits whoever came with it. The
order of a pass lies in three tables of int32, see `sort_pairs`.
"""

from __future__ import annotations

import numpy as np
from numba import cuda, float32, int32

from phobos.kernels.cuda.code.elementary import exponential, sigmoid
from phobos.kernels.cuda.code.intrinsics import device, load_f32, load_i32, store_f32, store_i32
from phobos.kernels.cuda.code.norm import max_warp, sum_warp
from phobos.kernels.cuda.declaration import Float, Int, kernel
from phobos.kernels.cuda.layout import MAX_EXPERTS, NORM_THREADS, THREADS, WARP

SOFTMAX, SIGMOID, CHOSEN = 0, 1, 2
_EVERYONE = 0xFFFFFFFF
_N_WARPS = NORM_THREADS // WARP
_N_COUNTS = _N_WARPS * MAX_EXPERTS
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
    n_groups_used: Int, is_normalized: Int, expert_scales: Int, sources: Int, places: Int, tiles: Int, n_tiles_at: Int,
    scale: Float,
):  # fmt: skip
    """A warp a row; see `steps.Route`. Where `tiles` is not 0, the tables of `sort_pairs` are made here, each pair a
    tile of its own, in order."""
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
    if tiles != 0:
        cuda.syncwarp()
        for j in range(lane, n_used, WARP):
            pair = np.int64(row) * n_used + j
            store_i32(sources + 4 * pair, pair)
            store_i32(places + 4 * pair, pair)
            store_i32(tiles + 12 * pair, np.int64(load_f32(target + 4 * j)))
            store_i32(tiles + 12 * pair + 4, pair)
            store_i32(tiles + 12 * pair + 8, np.int64(1))
        if row == 0 and lane == 0:
            store_i32(n_tiles_at, load_i32(n_rows_at) * n_used)


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


@device
def _expert_of(routes, pair, n_pairs, n_used):
    """The expert of a pair; -1 behind the last."""
    if pair >= n_pairs:
        return int32(-1)
    return int32(load_f32(routes + 4 * (pair // n_used * 2 * n_used + pair % n_used)))


@device
def _rank(expert):
    """How many lower lanes of the warp have the same number, and how many lanes in all."""
    lane = cuda.threadIdx.x & 31
    below, same = int32(0), int32(0)
    for j in range(WARP):
        if cuda.shfl_sync(_EVERYONE, expert, j) == expert:
            same += int32(1)
            if j < lane:
                below += int32(1)
    return below, same


@device
def _sum_before(value, sums):
    """The sum over all threads before this one; `sums` holds a number a warp."""
    lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
    total = value
    for step in (1, 2, 4, 8, 16):
        other = cuda.shfl_sync(_EVERYONE, total, max(lane - step, 0))
        if lane >= step:
            total = int32(total + other)
    if lane == WARP - 1:
        sums[warp] = total
    cuda.syncthreads()
    total = int32(total - value)
    for w in range(warp):
        total = int32(total + sums[w])
    cuda.syncthreads()
    return total


@kernel(NORM_THREADS)
def sort_pairs(
    sources: Int, places: Int, tiles: Int, n_tiles_at: Int, routes: Int, n_rows_at: Int, n_experts: Int, n_used: Int,
    n_tile: Int,
):  # fmt: skip
    """One block. `sources[s]` is the pair at place s, `places` back; `tiles` are three numbers each: expert, first
    place, places. Pairs of an expert are in order of rows: each warp counts those of its share of the pairs, then an
    expert's counts are summed up over the warps and the experts, and each warp places its pairs."""
    counts = cuda.shared.array(_N_COUNTS, int32)
    starts = cuda.shared.array(MAX_EXPERTS, int32)
    sums = cuda.shared.array(_N_WARPS, int32)
    thread = np.int64(cuda.threadIdx.x)
    lane, warp = thread & 31, thread >> 5
    n_pairs = load_i32(n_rows_at) * n_used
    share = (n_pairs + NORM_THREADS - 1) // NORM_THREADS * WARP
    first, last = warp * share, min((warp + 1) * share, n_pairs)
    for i in range(thread, _N_WARPS * n_experts, NORM_THREADS):
        counts[i] = int32(0)
    cuda.syncthreads()
    for begin in range(first, last, WARP):
        expert = _expert_of(routes, begin + lane, n_pairs, n_used)
        below, same = _rank(expert)
        if below == 0 and expert >= 0:
            counts[warp * n_experts + expert] += same
        cuda.syncwarp()
    cuda.syncthreads()
    for e in range(thread, n_experts, NORM_THREADS):
        total = int32(0)
        for w in range(_N_WARPS):
            count = counts[w * n_experts + e]
            counts[w * n_experts + e] = total
            total = int32(total + count)
        starts[e] = total
    cuda.syncthreads()
    each = (n_experts + NORM_THREADS - 1) // NORM_THREADS
    first_expert, last_expert = min(thread * each, n_experts), min((thread + 1) * each, n_experts)
    n_mine, n_tiles = int32(0), int32(0)
    for e in range(first_expert, last_expert):
        n_mine = int32(n_mine + starts[e])
        n_tiles = int32(n_tiles + (starts[e] + n_tile - 1) // n_tile)
    start, number = np.int64(_sum_before(n_mine, sums)), np.int64(_sum_before(n_tiles, sums))
    for e in range(first_expert, last_expert):
        count = np.int64(starts[e])
        starts[e] = int32(start)
        for at in range(0, count, n_tile):
            store_i32(tiles + 12 * number, e)
            store_i32(tiles + 12 * number + 4, start + at)
            store_i32(tiles + 12 * number + 8, min(n_tile, count - at))
            number += 1
        start += count
    if thread == NORM_THREADS - 1:
        store_i32(n_tiles_at, number)
    cuda.syncthreads()
    for begin in range(first, last, WARP):
        expert = _expert_of(routes, begin + lane, n_pairs, n_used)
        below, same = _rank(expert)
        if expert >= 0:
            place = np.int64(starts[expert] + counts[warp * n_experts + expert] + below)
            store_i32(sources + 4 * place, begin + lane)
            store_i32(places + 4 * (begin + lane), place)
        cuda.syncwarp()
        if below == 0 and expert >= 0:
            counts[warp * n_experts + expert] += same
        cuda.syncwarp()


@device
def combine_value(out, x, routes, residual, row, i, width, n_used, places):
    """Value i of a row: its pairs times their weights, best first, plus residual. `places` is 0 where a pair's place is
    its number."""
    total = _ZERO
    for j in range(n_used):
        place = n_used * row + j
        if places != 0:
            place = load_i32(places + 4 * place)
        weight = load_f32(routes + 4 * (2 * n_used * row + n_used + j))
        total = cuda.fma(weight, load_f32(x + 4 * (width * place + i)), total)
    at = 4 * (width * row + i)
    if residual != 0:
        total = load_f32(residual + at) + total
    store_f32(out + at, total)


@kernel(THREADS)
def combine(out: Int, x: Int, routes: Int, residual: Int, n_rows_at: Int, width: Int, n_used: Int, places: Int):
    """out[row] = residual[row] + the row's pairs times their weights, best first. Grid: x along a row, y by row."""
    row, i = np.int64(cuda.blockIdx.y), np.int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
    if row < load_i32(n_rows_at) and i < width:
        combine_value(out, x, routes, residual, row, i, width, n_used, places)
