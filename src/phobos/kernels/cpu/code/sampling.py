"""Drawing a token from one row of logits, and its log-probabilities.

A row is float32 [n]. It is never changed; `-inf` (and NaN, which counts as `-inf`) is a token that cannot be drawn.
`rows.py` calls these kernels and owns their working memory, whose contents mean nothing between calls: `order` int64
[n], `weights` float32 [n rounded up to 16], `maxima` float32 [n / 64 rounded up], `bins` float32 [1024].

The chain is fixed: bias, mask, repetition, presence and frequency (`adjust`), then a temperature <= 0 takes the best
(lowest id on ties), then top_k, typical, top_p, min_p, temperature, draw (`draw`). The filters before the temperature
see the probabilities at temperature 1 of what the filter before them left.

How it stays cheap. The k-th greatest of the greatest logits of blocks of 64 bounds the k-th greatest logit from below,
and only blocks that reach the bound are looked at again. A float's bits, with the lower 31 flipped when it is negative,
compare as an integer exactly as the float does, which makes a candidate one integer (`selection.py`). Nothing is ever
sorted but the few candidates that are drawn from.
"""

from __future__ import annotations

import numpy as np

from phobos.kernels.cpu.code.access import load_f32, load_i32, load_i64, store_f32, store_i32, store_i64, vload, vstore
from phobos.kernels.cpu.code.elementary import exponential
from phobos.kernels.cpu.code.selection import (
    candidate_of,
    select_mass,
    select_top,
    sort_descending,
    swap,
    swap_weights,
    token_of,
)
from phobos.kernels.cpu.code.simd import inlined, max_lanes, maximum, splat, sum_lanes
from phobos.kernels.cpu.declaration import Float, Int, kernel

_BLOCK = 64
_MAX_SORTED = 1024  # more candidates than this are drawn from in no particular order
_N_BINS = 1024
_BINS_PER_UNIT = np.float32(64.0)
_NO_TOKEN = -1
_INFINITY = np.float32(np.inf)
_ONE = np.float32(1.0)
_EVERYTHING = -1


# Rows


@inlined
def find_maxima(row, n, maxima):
    """Put the greatest logit of each block into `maxima`; return the greatest of all. NaN counts as -inf."""
    best = -_INFINITY
    for block in range((n + _BLOCK - 1) // _BLOCK):
        first = block * _BLOCK
        if first + _BLOCK <= n:
            at = row + 4 * first
            top = splat(-_INFINITY)
            for i in range(4):
                top = maximum(vload(at + 64 * i), top)
            greatest = max_lanes(top)
        else:
            greatest = -_INFINITY
            for i in range(first, n):
                value = load_f32(row + 4 * i)
                greatest = value if value > greatest else greatest
        store_f32(maxima + 4 * block, greatest)
        best = greatest if greatest > best else best
    return best


@inlined
def find_first(row, n, maxima, wanted):
    """The lowest id whose logit is `wanted`, which must be there."""
    for block in range((n + _BLOCK - 1) // _BLOCK):
        if load_f32(maxima + 4 * block) == wanted:
            for i in range(block * _BLOCK, min(block * _BLOCK + _BLOCK, n)):
                if load_f32(row + 4 * i) == wanted:
                    return i
    return _NO_TOKEN


@inlined
def gather(row, n, maxima, bound, order):
    """Collect the tokens whose logit reaches `bound` (never -inf) as candidates; return how many."""
    count = 0
    for block in range((n + _BLOCK - 1) // _BLOCK):
        if load_f32(maxima + 4 * block) >= bound:
            for i in range(block * _BLOCK, min(block * _BLOCK + _BLOCK, n)):
                value = load_f32(row + 4 * i)
                if value >= bound and value > -_INFINITY:
                    store_i64(order + 8 * count, candidate_of(row + 4 * i, i))
                    count += 1
    return count


@inlined
def gather_top(row, n, maxima, k, order):
    """The `k` greatest tokens (all, where fewer can be drawn) as candidates; return how many."""
    bound = -_INFINITY
    n_blocks = (n + _BLOCK - 1) // _BLOCK
    if k <= n_blocks:
        for block in range(n_blocks):
            store_i64(order + 8 * block, candidate_of(maxima + 4 * block, block))
        select_top(order, n_blocks, k)
        bound = _INFINITY
        for i in range(k):
            greatest = load_f32(maxima + 4 * token_of(load_i64(order + 8 * i)))
            bound = greatest if greatest < bound else bound
    count = gather(row, n, maxima, bound, order)
    if count > k:
        select_top(order, count, k)
        count = k
    return count


@inlined
def exponentials(values, n, top, scale, out):
    """Put exp((value - top) * scale) of the first `n` into `out` (may be `values`); return their sum.

    No value exceeds `top`. Below e^-87 it is 0, as for NaN.
    """
    total = 0.0
    n_vectors = n // 16
    for i in range(n_vectors):
        weight = exponential((vload(values + 64 * i) - splat(top)) * splat(scale))
        vstore(out + 64 * i, weight)
        total += sum_lanes(weight)
    for i in range(16 * n_vectors, n):
        power = max_lanes(exponential(splat((load_f32(values + 4 * i) - top) * scale)))
        store_f32(out + 4 * i, power)
        total += power
    return total


@inlined
def greatest_of(row, order, n):
    """The greatest logit of the first `n` candidates."""
    top = -_INFINITY
    for i in range(n):
        value = load_f32(row + 4 * token_of(load_i64(order + 8 * i)))
        top = value if value > top else top
    return top


@inlined
def weigh(row, order, n, scale, weights):
    """Put the candidates' weights exp((logit - greatest) * scale) into `weights`; return their sum."""
    top = greatest_of(row, order, n)
    for i in range(n):
        store_f32(weights + 4 * i, load_f32(row + 4 * token_of(load_i64(order + 8 * i))))
    return exponentials(weights, n, top, scale, weights)


# Filters


@inlined
def keep_typical(row, order, n, typical_p, weights, cell):
    """Locally typical sampling (Meister et al., 2022): keep the candidates whose surprise is nearest the entropy.

    Both are counted from the greatest logit, so the sum of all weights cancels out of their distance.
    """
    total = weigh(row, order, n, _ONE, weights)
    top = greatest_of(row, order, n)
    entropy = 0.0
    for i in range(n):
        weight = load_f32(weights + 4 * i)
        if weight > 0:
            entropy += weight / total * (top - load_f32(row + 4 * token_of(load_i64(order + 8 * i))))
    for i in range(n):
        token = token_of(load_i64(order + 8 * i))
        distance = abs(top - load_f32(row + 4 * token) - entropy)
        store_f32(cell, np.float32(-distance))
        store_i64(order + 8 * i, candidate_of(cell, token))
    n = select_mass(order, weights, 0, n, typical_p * total)
    for i in range(n):
        token = token_of(load_i64(order + 8 * i))
        store_i64(order + 8 * i, candidate_of(row + 4 * token, token))
    return n


@inlined
def fill_bins(row, n, maxima, top, weights, bins):
    """Sum the weights by how far their logit lies below the greatest, in steps of 1 / 64."""
    for i in range(_N_BINS):
        store_f32(bins + 4 * i, np.float32(0))
    lowest = top - np.float32(_N_BINS) / _BINS_PER_UNIT
    for block in range((n + _BLOCK - 1) // _BLOCK):
        if load_f32(maxima + 4 * block) > lowest:
            for i in range(block * _BLOCK, min(block * _BLOCK + _BLOCK, n)):
                distance = (top - load_f32(row + 4 * i)) * _BINS_PER_UNIT
                if distance < _N_BINS:
                    at = bins + 4 * np.int64(distance)
                    store_f32(at, load_f32(at) + load_f32(weights + 4 * i))


@inlined
def gather_nucleus(row, n, maxima, top, top_p, order, weights, bins):
    """Collect the shortest run of most probable tokens that holds `top_p` of everything; return its length.

    Only the bin in which the sum passes `top_p` has to be ordered.
    """
    target = exponentials(row, n, top, _ONE, weights) * top_p
    fill_bins(row, n, maxima, top, weights, bins)
    held, last = 0.0, 0
    while last < _N_BINS and held + load_f32(bins + 4 * last) < target:
        held += load_f32(bins + 4 * last)
        last += 1
    bound = -_INFINITY  # one bin further, because of rounding at its edge
    if last < _N_BINS:
        bound = top - np.float32(last + 2) / _BINS_PER_UNIT
    count = gather(row, n, maxima, bound, order)
    weigh(row, order, count, _ONE, weights)
    edge = top - np.float32(last) / _BINS_PER_UNIT
    sure, held = 0, 0.0
    for i in range(count):  # those above the bin go to the front
        if load_f32(row + 4 * token_of(load_i64(order + 8 * i))) > edge:
            swap(order, i, sure)
            swap_weights(weights, i, sure)
            held += load_f32(weights + 4 * sure)
            sure += 1
    if held >= target or sure == count:
        return select_mass(order, weights, 0, count, target)
    return select_mass(order, weights, sure, count, target - held)


@inlined
def keep_above(row, order, n, gap):
    """Keep the candidates whose logit is at most `gap` below the greatest; return how many."""
    bound = greatest_of(row, order, n) - gap
    kept = 0
    for i in range(n):
        candidate = load_i64(order + 8 * i)
        if load_f32(row + 4 * token_of(candidate)) >= bound:
            store_i64(order + 8 * kept, candidate)
            kept += 1
    return kept


@inlined
def find_candidates(row, n, top, order, weights, maxima, bins, top_k, typical_p, top_p, gap):
    """Run top_k, typical, top_p and min_p; return how many candidates are left at the front of `order`, or
    `_EVERYTHING` where no filter is on."""
    if 0 < top_k < n:
        count = gather_top(row, n, maxima, top_k, order)
    elif typical_p < 1:
        count = gather(row, n, maxima, -_INFINITY, order)
    elif top_p < 1:
        count = gather_nucleus(row, n, maxima, top, top_p, order, weights, bins)
        top_p = _ONE
    elif gap < _INFINITY:
        count = gather(row, n, maxima, top - gap, order)
    else:
        return _EVERYTHING
    if typical_p < 1:
        count = keep_typical(row, order, count, typical_p, weights, bins)
    if top_p < 1:
        total = weigh(row, order, count, _ONE, weights)
        count = select_mass(order, weights, 0, count, top_p * total)
    if gap < _INFINITY:
        count = keep_above(row, order, count, gap)
    return count


@inlined
def find_point(weights, n, target):
    """The index at which the running sum of the weights passes `target`: vectors first, then within the vector."""
    running, vector = 0.0, 0
    while vector < n // 16:
        held = sum_lanes(vload(weights + 64 * vector))
        if running + held > target:
            break
        running += held
        vector += 1
    last = 0
    for i in range(max(0, min(16 * vector, n - 16)), n):  # rounding may leave the point behind all of them
        weight = load_f32(weights + 4 * i)
        if i < 16 * vector:
            last = i if weight > 0 else last
            continue
        if weight > 0:
            last = i
            running += weight
            if running > target:
                return i
    return last


# Kernels


@kernel
def adjust(
    row: Int,
    n: Int,
    work: Int,
    bias_ids: Int,
    bias_values: Int,
    n_bias: Int,
    mask: Int,
    seen_ids: Int,
    seen_counts: Int,
    n_seen: Int,
    repetition: Float,
    presence: Float,
    frequency: Float,
    thread,
    n_threads,
):
    """Copy the row into `work` with bias, mask (int32 words of one bit a token; 0 for none) and penalties applied.

    `seen_ids` (int32) are the distinct tokens of prompt and answer, `seen_counts` how often each stands in the answer.
    """
    for i in range(n // 16):
        vstore(work + 64 * i, vload(row + 64 * i))
    for i in range(n // 16 * 16, n):
        store_f32(work + 4 * i, load_f32(row + 4 * i))
    for i in range(n_bias):
        at = work + 4 * load_i32(bias_ids + 4 * i)
        store_f32(at, load_f32(at) + load_f32(bias_values + 4 * i))
    if mask != 0:
        for first in range(0, n, 32):
            word = load_i32(mask + first // 8)
            if word != -1:
                for i in range(first, min(first + 32, n)):
                    if (word >> (i - first)) & 1 == 0:
                        store_f32(work + 4 * i, -_INFINITY)
    for i in range(n_seen):
        at = work + 4 * load_i32(seen_ids + 4 * i)
        value = load_f32(at)
        value = value / repetition if value > 0 else value * repetition
        count = load_i32(seen_counts + 4 * i)
        if count > 0:
            value -= presence + frequency * np.float32(count)
        store_f32(at, value)


@kernel
def draw(
    result: Int,
    row: Int,
    n: Int,
    order: Int,
    weights: Int,
    maxima: Int,
    bins: Int,
    scale: Float,
    top_k: Int,
    typical_p: Float,
    top_p: Float,
    gap: Float,
    point: Int,
    thread,
    n_threads,
):
    """Put the token drawn (int64), or -1 where none can be, at `result`.

    `scale` is 1 / temperature, 0 to take the greatest; `gap` is -ln min_p, infinite for none; `point` is where in the
    remaining probability the draw falls, in units of 2^-53.
    """
    best = find_maxima(row, n, maxima)
    if best == -_INFINITY:
        store_i64(result, _NO_TOKEN)
        return
    greatest = find_first(row, n, maxima, best)
    if scale <= 0 or best == _INFINITY or top_k == 1:
        store_i64(result, greatest)
        return
    count = find_candidates(row, n, best, order, weights, maxima, bins, top_k, typical_p, top_p, gap)
    share = np.float64(point) / 9007199254740992.0
    if count == _EVERYTHING:
        total = exponentials(row, n, best, scale, weights)
        store_i64(result, find_point(weights, n, share * total))
        return
    if count <= _MAX_SORTED:
        sort_descending(order, count)
    total = weigh(row, order, count, scale, weights)
    store_i64(result, token_of(load_i64(order + 8 * find_point(weights, count, share * total))))


@kernel
def read_top(
    result: Int,
    row: Int,
    n: Int,
    order: Int,
    weights: Int,
    maxima: Int,
    top_ids: Int,
    n_top: Int,
    thread,
    n_threads,
):
    """Put the greatest logit and the sum of exp(logit - greatest) of the raw row (two float32) at `result`, and the ids
    (int32) of the `n_top` most probable tokens at `top_ids`, best first, -1 where fewer can be drawn.

    The sum is 0 where the row is no distribution.
    """
    best = find_maxima(row, n, maxima)
    store_f32(result, best)
    store_f32(result + 4, np.float32(0))
    for i in range(n_top):
        store_i32(top_ids + 4 * i, np.int32(_NO_TOKEN))
    if best == -_INFINITY or best == _INFINITY:
        return
    store_f32(result + 4, np.float32(exponentials(row, n, best, _ONE, weights)))
    if n_top > 0:
        count = gather_top(row, n, maxima, n_top, order)
        sort_descending(order, count)
        for i in range(count):
            store_i32(top_ids + 4 * i, np.int32(token_of(load_i64(order + 8 * i))))
