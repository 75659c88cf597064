"""Drawing a token from one row of logits, and its log-probabilities, as compiled functions on NumPy arrays.

Contract. A row is float32 [n_vocab] and is never changed; `-inf` (and NaN, which counts as `-inf`) is a token that
cannot be drawn. The caller owns the scratch: `work` float32 [n_vocab], `order` int64 [n_vocab], `weights` float32
[n_vocab], `maxima` int32 [n_blocks(n_vocab)]; their contents mean nothing between calls.

The chain is fixed: bias, mask, repetition, presence and frequency, temperature <= 0 takes the greatest (lowest id
on ties), then top_k, typical, top_p, min_p, temperature, draw. The filters before the temperature see the
probabilities at temperature 1 of what the filter before them left.

How it stays cheap. A float's bits, with the lower 31 flipped when it is negative, compare as an integer exactly as
the float does; so the greatest of each block of 64 logits is an integer reduction that vectorises. The k-th
greatest of those block maxima bounds the k-th greatest logit from below, and only blocks that reach the bound are
looked at again. A candidate is one int64: the integer of its logit above, the complement of its id below, so one
comparison orders by logit, then by lowest id. Nothing is ever sorted but the few candidates that are drawn from.
"""

import numpy as np
from numba import njit

BLOCK = 64
MAX_SORTED = 1024  # more candidates than this are drawn from in no particular order
N_BINS = 1024
BINS_PER_UNIT = 64.0
NO_TOKEN = -1
LOWEST = np.int32(-0x7F800001)  # the integer of -inf
HIGHEST = np.int32(0x7F800000)  # the integer of +inf
FLIP = np.int32(0x7FFFFFFF)
ID_MASK = 0x7FFFFFFF
LOG2_E = np.float32(1.4426950408889634)
LN2_HIGH = np.float32(0.693359375)
LN2_LOW = np.float32(-2.12194440e-4)
UNDERFLOW = np.float32(-87.0)
MAX_SCALE = 1e30  # of the logits: a temperature under 1e-30 acts like it
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # splitmix64 (Steele, Lea and Flood, 2014), entered at any position
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)


def n_blocks(n_vocab: int) -> int:
    """The length of `maxima` for a row of `n_vocab` logits."""
    return (n_vocab + BLOCK - 1) // BLOCK


@njit(nogil=True, error_model="numpy", cache=True)
def ordered(bits):
    """The integer of a float's bits: compares as the float does; NaN as -inf, both zeros alike."""
    key = np.int32(bits ^ np.int32(np.int32(bits >> 31) & FLIP))
    key = np.int32(LOWEST if key > HIGHEST else key)
    return np.int32(0 if key == -1 else key)


@njit(nogil=True, error_model="numpy", cache=True)
def ordered_float(value):
    """`ordered` of one float."""
    cell = np.empty(1, np.float32)
    cell[0] = value
    return ordered(cell.view(np.int32)[0])


@njit(nogil=True, error_model="numpy", cache=True)
def uniform(key, position):
    """A number in [0, 1), 53 bits, that depends on the key and the position only."""
    z = np.uint64(key) + (np.uint64(position) + np.uint64(1)) * GOLDEN
    z = (z ^ (z >> np.uint64(30))) * MIX_1
    z = (z ^ (z >> np.uint64(27))) * MIX_2
    z = z ^ (z >> np.uint64(31))
    return np.float64(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(nogil=True, error_model="numpy", cache=True)
def find_maxima(row, maxima):
    """Put the integer of the greatest logit of each block into `maxima`; return the greatest of all."""
    bits = row.view(np.int32)
    n_whole = bits.shape[0] // BLOCK
    best = LOWEST
    for block in range(n_whole):
        top = LOWEST
        for i in range(BLOCK):
            top = np.int32(max(top, ordered(bits[block * BLOCK + i])))
        maxima[block] = top
        best = np.int32(max(best, top))
    if n_whole < maxima.shape[0]:
        top = LOWEST
        for i in range(n_whole * BLOCK, bits.shape[0]):
            top = np.int32(max(top, ordered(bits[i])))
        maxima[n_whole] = top
        best = np.int32(max(best, top))
    return best


@njit(nogil=True, error_model="numpy", cache=True)
def first_equal(row, maxima, key):
    """The lowest id whose logit has the integer `key`, which must be there."""
    bits = row.view(np.int32)
    n = bits.shape[0]
    for block in range(maxima.shape[0]):
        if maxima[block] == key:
            for i in range(block * BLOCK, min(block * BLOCK + BLOCK, n)):
                if ordered(bits[i]) == key:
                    return i
    return NO_TOKEN


@njit(nogil=True, error_model="numpy", cache=True)
def candidate_id(candidate):
    """The token of a candidate."""
    return ID_MASK - (candidate & ID_MASK)


@njit(nogil=True, error_model="numpy", cache=True)
def gather(row, maxima, bound, order):
    """Collect the tokens whose integer reaches `bound` (never those of -inf) as candidates; return how many."""
    bits = row.view(np.int32)
    n = bits.shape[0]
    bound = np.int32(max(bound, LOWEST + 1))
    count = 0
    for block in range(maxima.shape[0]):
        if maxima[block] >= bound:
            for i in range(block * BLOCK, min(block * BLOCK + BLOCK, n)):
                key = ordered(bits[i])
                if key >= bound:
                    order[count] = (np.int64(key) << 32) + (ID_MASK - i)
                    count += 1
    return count


@njit(nogil=True, error_model="numpy", cache=True)
def select_top(order, n, k):
    """Move the `k` greatest of the first `n` to the front, in no particular order (Hoare's selection)."""
    low, high = 0, n - 1
    while low < high:
        pivot = order[(low + high) // 2]
        i, j = low - 1, high + 1
        while True:
            i += 1
            while order[i] > pivot:
                i += 1
            j -= 1
            while order[j] < pivot:
                j -= 1
            if i >= j:
                break
            order[i], order[j] = order[j], order[i]
        if k <= j:
            high = j
        elif k > j + 1:
            low = j + 1
        else:
            return


@njit(nogil=True, error_model="numpy", cache=True)
def select_mass(order, weights, start, n, target):
    """Move the shortest run of greatest candidates whose weights reach `target` to `start`; return where it ends.

    The same selection among candidates `start` to `n`, led by the sum of the weights on the greater side.
    """
    low, high = start, n - 1
    before = 0.0
    while low < high:
        pivot = order[(low + high) // 2]
        i, j = low - 1, high + 1
        while True:
            i += 1
            while order[i] > pivot:
                i += 1
            j -= 1
            while order[j] < pivot:
                j -= 1
            if i >= j:
                break
            order[i], order[j] = order[j], order[i]
            weights[i], weights[j] = weights[j], weights[i]
        part = 0.0
        for m in range(low, j + 1):
            part += weights[m]
        if before + part >= target:
            high = j
        else:
            before += part
            low = j + 1
    return low + 1


@njit(nogil=True, error_model="numpy", cache=True)
def sift(order, root, n):
    """Restore the heap (least on top) below `root`."""
    while True:
        child = 2 * root + 1
        if child >= n:
            return
        if child + 1 < n and order[child + 1] < order[child]:
            child += 1
        if order[root] <= order[child]:
            return
        order[root], order[child] = order[child], order[root]
        root = child


@njit(nogil=True, error_model="numpy", cache=True)
def sort_descending(order, n):
    """Heapsort of the first `n`, greatest first."""
    for root in range(n // 2 - 1, -1, -1):
        sift(order, root, n)
    for last in range(n - 1, 0, -1):
        order[0], order[last] = order[last], order[0]
        sift(order, 0, last)


@njit(nogil=True, error_model="numpy", cache=True)
def gather_top(row, maxima, k, order):
    """The `k` greatest tokens (all, where fewer can be drawn) as candidates; return how many."""
    bound = LOWEST
    if k <= maxima.shape[0]:
        for block in range(maxima.shape[0]):
            order[block] = maxima[block]
        select_top(order, maxima.shape[0], k)
        least = order[0]
        for i in range(1, k):
            least = min(least, order[i])
        bound = np.int32(least)
    count = gather(row, maxima, bound, order)
    if count > k:
        select_top(order, count, k)
        count = k
    return count


@njit(nogil=True, error_model="numpy", cache=True, fastmath={"contract", "reassoc", "nsz"})
def exponentials(values, n, top, scale, out):
    """Put exp((value - top) * scale) of the first `n` into `out` (may be `values`); return their sum.

    No value exceeds `top`. Below e^-87 it is 0, as for NaN. Relative error about 2e-7: a polynomial in
    [-ln 2 / 2, ln 2 / 2], times a power of two made of its bits.
    """
    powers = np.empty(BLOCK, np.int32)
    scales = powers.view(np.float32)
    total = 0.0
    n_whole = n // BLOCK * BLOCK
    for first in range(0, n_whole, BLOCK):
        for i in range(BLOCK):
            x = (values[first + i] - top) * scale
            y = x if x > UNDERFLOW else UNDERFLOW
            k = np.int32(y * LOG2_E - np.float32(0.5))
            f = (y - np.float32(k) * LN2_HIGH) - np.float32(k) * LN2_LOW
            p = np.float32(1 / 5040) * f + np.float32(1 / 720)
            p = p * f + np.float32(1 / 120)
            p = p * f + np.float32(1 / 24)
            p = p * f + np.float32(1 / 6)
            p = p * f + np.float32(0.5)
            p = p * f + np.float32(1)
            p = p * f + np.float32(1)
            powers[i] = np.int32(np.int32(k + 127) << 23)
            out[first + i] = p if x > UNDERFLOW else np.float32(0)
        part = np.float32(0)
        for i in range(BLOCK):
            weight = out[first + i] * scales[i]
            out[first + i] = weight
            part += weight
        total += part
    for i in range(n_whole, n):
        x = (values[i] - top) * scale
        out[i] = np.exp(x) if x > UNDERFLOW else np.float32(0)
        total += out[i]
    return total


@njit(nogil=True, error_model="numpy", cache=True)
def weigh(row, order, n, scale, weights):
    """Put the candidates' weights exp((logit - greatest) * scale) into `weights`; return (sum, greatest logit)."""
    top = np.float32(-np.inf)
    for i in range(n):
        value = row[candidate_id(order[i])]
        weights[i] = value
        top = max(top, value)
    return exponentials(weights, n, top, scale, weights), top


@njit(nogil=True, error_model="numpy", cache=True)
def keep_typical(row, order, n, typical_p, weights):
    """Locally typical sampling (Meister et al., 2022): keep the candidates whose surprise is nearest the entropy."""
    total, top = weigh(row, order, n, np.float32(1), weights)
    log_total = np.log(total)
    entropy = 0.0
    for i in range(n):
        if weights[i] > 0:
            entropy -= weights[i] / total * (row[candidate_id(order[i])] - top - log_total)
    for i in range(n):
        token = candidate_id(order[i])
        distance = np.float32(abs(top + log_total - row[token] - entropy))
        order[i] = (np.int64(-ordered_float(distance)) << 32) + (ID_MASK - token)
    n = select_mass(order, weights, 0, n, typical_p * total)
    bits = row.view(np.int32)
    for i in range(n):
        token = candidate_id(order[i])
        order[i] = (np.int64(ordered(bits[token])) << 32) + (ID_MASK - token)
    return n


@njit(nogil=True, error_model="numpy", cache=True)
def gather_nucleus(row, maxima, top, top_p, order, weights):
    """Collect the shortest run of most probable tokens that holds `top_p` of everything; return its length.

    The probabilities are summed in `N_BINS` bins of logits below the greatest. Only the bin in which the sum
    passes `top_p` has to be ordered.
    """
    n = row.shape[0]
    target = exponentials(row, n, top, np.float32(1), weights) * top_p
    bins = np.empty(N_BINS, np.float64)
    for i in range(N_BINS):
        bins[i] = 0.0
    bound = ordered_float(np.float32(top - N_BINS / BINS_PER_UNIT))
    for block in range(maxima.shape[0]):
        if maxima[block] > bound:
            for i in range(block * BLOCK, min(block * BLOCK + BLOCK, n)):
                distance = (top - row[i]) * np.float32(BINS_PER_UNIT)
                if distance < N_BINS:
                    bins[int(distance)] += weights[i]
    held, last = 0.0, 0
    while last < N_BINS and held + bins[last] < target:
        held += bins[last]
        last += 1
    bound = LOWEST  # one bin further, because of rounding at its edge
    if last < N_BINS:
        bound = ordered_float(np.float32(top - (last + 2) / BINS_PER_UNIT))
    count = gather(row, maxima, bound, order)
    weigh(row, order, count, np.float32(1), weights)
    edge = np.int64(ordered_float(np.float32(top - last / BINS_PER_UNIT))) << 32
    sure, held = 0, 0.0
    for i in range(count):  # those above the bin go to the front
        if order[i] > edge:
            order[i], order[sure] = order[sure], order[i]
            weights[i], weights[sure] = weights[sure], weights[i]
            held += weights[sure]
            sure += 1
    if held >= target or sure == count:
        return select_mass(order, weights, 0, count, target)
    return select_mass(order, weights, sure, count, target - held)


@njit(nogil=True, error_model="numpy", cache=True)
def find_candidates(row, maxima, top, top_k, typical_p, top_p, min_p, order, weights):
    """Run top_k, typical, top_p and min_p; return how many candidates are left at the front of `order`.

    Returns -1 where no filter is on: every token is a candidate.
    """
    n = row.shape[0]
    if 0 < top_k < n:
        count = gather_top(row, maxima, top_k, order)
    elif typical_p < 1:
        count = gather(row, maxima, LOWEST, order)
    elif top_p < 1:
        count = gather_nucleus(row, maxima, top, top_p, order, weights)
        top_p = 1.0
    elif min_p > 0:
        count = gather(row, maxima, ordered_float(np.float32(top + np.log(min_p))), order)
    else:
        return -1
    if typical_p < 1:
        count = keep_typical(row, order, count, typical_p, weights)
    if top_p < 1:
        total, _ = weigh(row, order, count, np.float32(1), weights)
        count = select_mass(order, weights, 0, count, top_p * total)
    if min_p > 0:
        top = np.float32(-np.inf)
        for i in range(count):
            top = max(top, row[candidate_id(order[i])])
        bound = np.int64(ordered_float(np.float32(top + np.log(min_p)))) << 32
        kept = 0
        for i in range(count):
            if order[i] >= bound:
                order[kept] = order[i]
                kept += 1
        count = kept
    return count


@njit(nogil=True, error_model="numpy", cache=True)
def adjust(row, bias_ids, bias_values, mask, seen_ids, seen_counts, repetition, presence, frequency, work):
    """Copy the row into `work` with bias, mask (one bit a token, empty for none) and penalties applied.

    `seen_ids` are the distinct tokens of prompt and answer, `seen_counts` how often each stands in the answer.
    """
    for i in range(row.shape[0]):
        work[i] = row[i]
    for i in range(bias_ids.shape[0]):
        work[bias_ids[i]] += bias_values[i]
    if mask.shape[0] > 0:
        for i in range(work.shape[0]):
            if (mask[i >> 5] >> (i & 31)) & 1 == 0:
                work[i] = -np.inf
    for i in range(seen_ids.shape[0]):
        token = seen_ids[i]
        value = work[token]
        value = value / repetition if value > 0 else value * repetition
        if seen_counts[i] > 0:
            value -= presence + frequency * seen_counts[i]
        work[token] = value


@njit(nogil=True, error_model="numpy", cache=True)
def draw(weights, n, total, point):
    """The index at which the running sum of the weights passes `point` (0 <= point < 1) of `total`."""
    target = point * total
    first, running = 0, 0.0
    while first < n:  # whole blocks first, then within the block
        part = 0.0
        for i in range(first, min(first + BLOCK, n)):
            part += weights[i]
        if running + part > target:
            break
        running += part
        first += BLOCK
    last = 0
    for i in range(min(first, (n - 1) // BLOCK * BLOCK), n):
        if weights[i] > 0:
            last = i
            running += weights[i]
            if running > target:
                return i
    return last


@njit(nogil=True, error_model="numpy", cache=True)
def sample(
    logits,
    bias_ids,
    bias_values,
    mask,
    seen_ids,
    seen_counts,
    repetition,
    presence,
    frequency,
    temperature,
    top_k,
    typical_p,
    top_p,
    min_p,
    key,
    position,
    work,
    order,
    weights,
    maxima,
):
    """The whole chain: the token drawn from `logits` [n_vocab], or `NO_TOKEN` where none can be."""
    row = logits
    if bias_ids.shape[0] > 0 or mask.shape[0] > 0 or seen_ids.shape[0] > 0:
        adjust(row, bias_ids, bias_values, mask, seen_ids, seen_counts, repetition, presence, frequency, work)
        row = work
    best = find_maxima(row, maxima)
    if best <= LOWEST:
        return NO_TOKEN
    greatest = first_equal(row, maxima, best)
    if temperature <= 0 or best >= HIGHEST or top_k == 1:
        return greatest
    scale = np.float32(min(1.0 / temperature, MAX_SCALE))
    count = find_candidates(row, maxima, row[greatest], top_k, typical_p, top_p, min_p, order, weights)
    point = uniform(key, position)
    if count < 0:
        total = exponentials(row, row.shape[0], row[greatest], scale, weights)
        return draw(weights, row.shape[0], total, point)
    if count <= MAX_SORTED:
        sort_descending(order, count)
    total, _ = weigh(row, order, count, scale, weights)
    return candidate_id(order[draw(weights, count, total, point)])


@njit(nogil=True, error_model="numpy", cache=True)
def log_probabilities(logits, token, top_ids, top_values, order, weights, maxima):
    """The natural log-probability of `token` under the raw row; fill `top_ids` and `top_values` with the most
    probable tokens, greatest first (id `NO_TOKEN` and -inf where fewer can be drawn)."""
    best = find_maxima(logits, maxima)
    for i in range(top_ids.shape[0]):
        top_ids[i] = NO_TOKEN
        top_values[i] = -np.inf
    if best <= LOWEST or best >= HIGHEST:
        return np.nan
    top = logits[first_equal(logits, maxima, best)]
    log_total = top + np.log(exponentials(logits, logits.shape[0], top, np.float32(1), weights))
    if top_ids.shape[0] > 0:
        count = gather_top(logits, maxima, top_ids.shape[0], order)
        sort_descending(order, count)
        for i in range(count):
            top_ids[i] = candidate_id(order[i])
            top_values[i] = logits[top_ids[i]] - log_total
    return np.float32(logits[token] - log_total)
