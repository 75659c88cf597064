"""Attention over the cache with an online softmax, in a fixed order of keys.

Theory. Keys are walked in spans of `SPAN`; within a span in blocks of `KEY_BLOCK`, whose maximum rescales what was
summed before (Milakov and Gimelshein 2018; Dao et al. 2022). Each span starts afresh and spans are merged in order, so
the arithmetic of a row is the same whether one thread walks all spans or each span has a thread. Four queries (heads
that share keys, or neighbouring rows) share each load of keys and values. Keys outside a query's range are given weight
exactly 0, so which queries share a tile leaves no trace. Rows of a fork (see `Batch`) read the blocks of keys behind
its beginning elsewhere; they are the same keys in the same blocks.
"""

from __future__ import annotations

import numpy as np

from phobos.kernels.cpu.access import load_f32, load_i32, load_i64, store_f32, store_i64, vload, vload_f16, vstore
from phobos.kernels.cpu.compiler import Float, Int, kernel
from phobos.kernels.cpu.elementary import exponential, hyperbolic_tangent
from phobos.kernels.cpu.layout import BLOCK, KEY_BLOCK, SPAN, SPLIT_ROWS, Header
from phobos.kernels.cpu.norm import quantize_block
from phobos.kernels.cpu.simd import (
    F32,
    fma,
    inlined,
    lane_numbers,
    make_tile,
    max_lanes,
    maximum,
    splat,
    splat_i32,
    sum_lanes,
    where_less,
    zeros,
)
from phobos.kernels.cpu.sync import take_work

QUERIES = 4  # of a tile
TILE_ROWS = 8  # rows of one work item otherwise
V_DIM_MAX = 576

_POSITIONS, _SLOTS = 8 * Header.POSITIONS, 8 * Header.SLOTS
_PLACES, _SHARED = 8 * Header.PLACES, 8 * Header.SHARED
_PASS, _SCRATCH, _SCRATCH_BYTES = 8 * Header.PASS, 8 * Header.SCRATCH, 8 * Header.SCRATCH_BYTES
_LOWEST = np.float32(-1e30)
_MASKED = np.float32(-np.inf)

new_scores, get_score, put_score = make_tile(F32, 2 * QUERIES)
new_sums, get_sum, put_sum = make_tile(F32, 2 * QUERIES)

# A tile's state in scratch: per query 2 words of address, first and last key; then scores, maxima, sums, outputs.
_QUERY = 0
_SCORES = 32 * QUERIES
_MAXIMA = _SCORES + 4 * KEY_BLOCK * QUERIES
_TOTALS = _MAXIMA + 64 * QUERIES
_OUTPUTS = _TOTALS + 64 * QUERIES
TILE_BYTES = _OUTPUTS + 4 * V_DIM_MAX * QUERIES


@inlined
def _score_block(tile, keys, k_dim, first_key, scale, soft_cap):
    """Scores of `KEY_BLOCK` keys for the tile's queries, masked to each query's range."""
    for half in range(KEY_BLOCK // 32):
        base = keys + (first_key + 32 * half) * k_dim * 2
        scores = new_scores()
        for i in range(2 * QUERIES):
            put_score(scores, i, zeros())
        for d in range(k_dim):
            low, high = vload_f16(base + 32 * d), vload_f16(base + 32 * (k_dim + d))
            for n in range(QUERIES):
                value = splat(load_f32(load_i64(tile + _QUERY + 32 * n) + 4 * d))
                put_score(scores, 2 * n, fma(low, value, get_score(scores, 2 * n)))
                put_score(scores, 2 * n + 1, fma(high, value, get_score(scores, 2 * n + 1)))
        for n in range(QUERIES):
            first, last = load_i64(tile + _QUERY + 32 * n + 8), load_i64(tile + _QUERY + 32 * n + 16)
            for part in range(2):
                score = get_score(scores, 2 * n + part) * splat(scale)
                if soft_cap > np.float32(0):
                    score = splat(soft_cap) * hyperbolic_tangent(score / splat(soft_cap))
                key = splat_i32(np.int32(first_key + 32 * half + 16 * part)) + lane_numbers()
                score = where_less(key, splat_i32(np.int32(first)), splat(_MASKED), score)
                score = where_less(splat_i32(np.int32(last)), key, splat(_MASKED), score)
                vstore(tile + _SCORES + 4 * (KEY_BLOCK * n + 32 * half + 16 * part), score)


@inlined
def _soften_block(tile, n):
    """Turn query n's scores into weights against the new maximum; returns the factor for what was summed before."""
    scores = tile + _SCORES + 4 * KEY_BLOCK * n
    s0, s1, s2, s3 = vload(scores), vload(scores + 64), vload(scores + 128), vload(scores + 192)
    old = load_f32(tile + _MAXIMA + 64 * n)
    new = max(old, max_lanes(maximum(maximum(s0, s1), maximum(s2, s3))))
    factor = exponential(splat(old - new))
    w0, w1 = exponential(s0 - splat(new)), exponential(s1 - splat(new))
    w2, w3 = exponential(s2 - splat(new)), exponential(s3 - splat(new))
    vstore(scores, w0)
    vstore(scores + 64, w1)
    vstore(scores + 128, w2)
    vstore(scores + 192, w3)
    store_f32(tile + _MAXIMA + 64 * n, new)
    total = tile + _TOTALS + 64 * n
    vstore(total, fma(vload(total), factor, splat(sum_lanes((w0 + w1) + (w2 + w3)))))
    return factor


@inlined
def _add_values(tile, values, v_dim, first_key, n_keys, factors):
    """outputs = outputs * factor + weights @ values, two vectors of dimensions at a time (the last may be alone)."""
    n_vectors = v_dim // 16
    for i in range(0, n_vectors, 2):
        second = min(i + 1, n_vectors - 1)
        sums = new_sums()
        for n in range(QUERIES):
            outputs = tile + _OUTPUTS + 4 * V_DIM_MAX * n
            factor = vload(factors + 64 * n)
            put_sum(sums, 2 * n, vload(outputs + 64 * i) * factor)
            put_sum(sums, 2 * n + 1, vload(outputs + 64 * second) * factor)
        base = values + 2 * v_dim * first_key
        for t in range(n_keys):
            low, high = vload_f16(base + 32 * i), vload_f16(base + 32 * second)
            base += 2 * v_dim
            for n in range(QUERIES):
                weight = splat(load_f32(tile + _SCORES + 4 * (KEY_BLOCK * n + t)))
                put_sum(sums, 2 * n, fma(weight, low, get_sum(sums, 2 * n)))
                put_sum(sums, 2 * n + 1, fma(weight, high, get_sum(sums, 2 * n + 1)))
        for n in range(QUERIES):
            outputs = tile + _OUTPUTS + 4 * V_DIM_MAX * n
            vstore(outputs + 64 * second, get_sum(sums, 2 * n + 1))
            vstore(outputs + 64 * i, get_sum(sums, 2 * n))


@inlined
def _walk_span(tile, keys, values, k_dim, v_dim, first_key, last_key, shared, shift, scale, soft_cap, factors):
    """One span of keys, from a fresh state: leaves maxima, totals and unnormalized outputs in the tile. Keys from
    `shared` on lie `shift` positions further on."""
    for n in range(QUERIES):
        store_f32(tile + _MAXIMA + 64 * n, _LOWEST)
        vstore(tile + _TOTALS + 64 * n, zeros())
        for i in range(v_dim // 16):
            vstore(tile + _OUTPUTS + 4 * V_DIM_MAX * n + 64 * i, zeros())
    for key in range(first_key // KEY_BLOCK * KEY_BLOCK, last_key + 1, KEY_BLOCK):
        moved = shift if key >= shared else 0
        _score_block(tile, keys + 2 * k_dim * moved, k_dim, key, scale, soft_cap)
        for n in range(QUERIES):
            vstore(factors + 64 * n, _soften_block(tile, n))
        _add_values(tile, values + 2 * v_dim * moved, v_dim, key, min(KEY_BLOCK, last_key + 1 - key), factors)


@inlined
def _merge_span(merged, outputs, maximum_at, totals, v_dim):
    """Fold one span's state into `merged`: 64 bytes of maximum, 64 of total, then outputs."""
    old, span = load_f32(merged), load_f32(maximum_at)
    new = max(old, span)
    keep, add = exponential(splat(old - new)), exponential(splat(span - new))
    store_f32(merged, new)
    vstore(merged + 64, fma(vload(merged + 64), keep, vload(totals) * add))
    for i in range(v_dim // 16):
        at = merged + 128 + 64 * i
        vstore(at, fma(vload(at), keep, vload(outputs + 64 * i) * add))


@inlined
def _clear(merged, v_dim):
    store_f32(merged, _LOWEST)
    for i in range(1 + v_dim // 16):
        vstore(merged + 64 + 64 * i, zeros())


@inlined
def _begin(merged, v_dim, sinks, head):
    """A fresh state, or that of having seen the head's sink: a score without a value. `sinks` is an address or 0."""
    _clear(merged, v_dim)
    if sinks != 0:
        store_f32(merged, load_f32(sinks + 4 * head))
        vstore(merged + 64, splat(np.float32(1)))


@inlined
def _write(out, merged, v_dim):
    for i in range(v_dim // 16):
        vstore(out + 64 * i, vload(merged + 128 + 64 * i) / vload(merged + 64))


@inlined
def _set_queries(tile, q, row, n_rows, head, first_query, n_queries, group, n_heads, k_dim, window, positions):
    """Fill the tile's queries; those past `n_queries` repeat the last. Returns the tile's first and last key."""
    lowest, highest = 1 << 40, 0
    for n in range(QUERIES):
        query = min(first_query + n, n_queries - 1)
        at = row + query // group
        position = np.int64(load_i32(positions + 4 * at))
        first = max(0, position - window + 1) if window > 0 else 0
        store_i64(tile + _QUERY + 32 * n, q + 4 * k_dim * (n_heads * at + head * group + query % group))
        store_i64(tile + _QUERY + 32 * n + 8, first)
        store_i64(tile + _QUERY + 32 * n + 16, position)
        lowest, highest = min(lowest, first), max(highest, position)
    return lowest, highest


@inlined
def _shift(places, positions, row):
    return np.int64(load_i32(places + 4 * row) - load_i32(positions + 4 * row))


@kernel
def attention(
    out: Int, parts: Int, q: Int, keys: Int, values: Int, key_slot_bytes: Int, value_slot_bytes: Int, batch: Int,
    n_rows_at: Int, work: Int, n_heads: Int, n_kv_heads: Int, k_dim: Int, v_dim: Int, window: Int, n_spans: Int,
    scale: Float, soft_cap: Float, sinks: Int, thread, n_threads,
):  # fmt: skip
    """Up to `SPLIT_ROWS` rows: each (row, key head, span) is a work item whose state goes to `parts`, for
    `attention_merge`. More rows: each (tile of rows, key head) is one, finished here."""
    n_rows = load_i64(n_rows_at)
    positions, slots = load_i64(batch + _POSITIONS), load_i64(batch + _SLOTS)
    places, shared = load_i64(batch + _PLACES), load_i64(batch + _SHARED)
    tile = load_i64(batch + _SCRATCH) + thread * load_i64(batch + _SCRATCH_BYTES)
    factors = tile + TILE_BYTES
    merged = factors + 64 * QUERIES
    pass_number = load_i64(batch + _PASS)
    group = n_heads // n_kv_heads
    state_bytes = 128 + 4 * v_dim
    split = n_rows <= SPLIT_ROWS
    used_spans, tile_rows = 1, TILE_ROWS
    if split:
        tile_rows = 1
        for row in range(n_rows):
            used_spans = max(used_spans, load_i32(positions + 4 * row) // SPAN + 1)
    n_tiles = (n_rows + tile_rows - 1) // tile_rows
    while True:
        item = take_work(work, pass_number, n_tiles * n_kv_heads * used_spans)
        if item < 0:
            return
        head, item = item % n_kv_heads, item // n_kv_heads
        tile_number, chosen_span = item // used_spans, item % used_spans
        row, last_row = tile_number * tile_rows, min((tile_number + 1) * tile_rows, n_rows)
        while row < last_row:
            slot = load_i32(slots + 4 * row)
            begin, shift = load_i32(shared + 4 * row), _shift(places, positions, row)
            n_same = 1
            while row + n_same < last_row and (
                load_i32(slots + 4 * (row + n_same)) == slot
                and load_i32(shared + 4 * (row + n_same)) == begin
                and _shift(places, positions, row + n_same) == shift
            ):
                n_same += 1
            head_keys = keys + slot * key_slot_bytes + head * (key_slot_bytes // n_kv_heads)
            head_values = values + slot * value_slot_bytes + head * (value_slot_bytes // n_kv_heads)
            n_queries = n_same * group
            for first_query in range(0, n_queries, QUERIES):
                lowest, highest = _set_queries(
                    tile, q, row, n_rows, head, first_query, n_queries, group, n_heads, k_dim, window, positions
                )
                n_tile = min(QUERIES, n_queries - first_query)
                first_span, last_span = lowest // SPAN, highest // SPAN
                if split:
                    first_span, last_span = max(first_span, chosen_span), min(last_span, chosen_span)
                else:
                    for n in range(n_tile):
                        _begin(merged + n * state_bytes, v_dim, sinks, head * group + (first_query + n) % group)
                for span in range(first_span, last_span + 1):
                    _walk_span(
                        tile, head_keys, head_values, k_dim, v_dim, max(lowest, span * SPAN),
                        min(highest, (span + 1) * SPAN - 1), begin, shift, scale, soft_cap, factors,
                    )  # fmt: skip
                    for n in range(n_tile):
                        query = head * group + (first_query + n) % group
                        state = merged + n * state_bytes
                        if split:
                            state = parts + state_bytes * ((row * n_heads + query) * n_spans + span)
                            _clear(state, v_dim)
                        outputs = tile + _OUTPUTS + 4 * V_DIM_MAX * n
                        _merge_span(state, outputs, tile + _MAXIMA + 64 * n, tile + _TOTALS + 64 * n, v_dim)
                if not split:
                    for n in range(n_tile):
                        query = first_query + n
                        target = (row + query // group) * n_heads + head * group + query % group
                        _write(out + 4 * v_dim * target, merged + n * state_bytes, v_dim)
            row += n_same


@inlined
def _merge_item(merged, parts, position, item, n_heads, v_dim, window, n_spans, sinks):
    """Merge one row's head into `merged`, span by span."""
    state_bytes = 128 + 4 * v_dim
    first = max(0, position - window + 1) if window > 0 else 0
    _begin(merged, v_dim, sinks, item % n_heads)
    for span in range(first // SPAN, position // SPAN + 1):
        state = parts + state_bytes * (item * n_spans + span)
        _merge_span(merged, state + 128, state, state + 64, v_dim)


@kernel
def attention_merge(
    out: Int, parts: Int, batch: Int, n_rows_at: Int, n_heads: Int, v_dim: Int, window: Int, n_spans: Int, sinks: Int,
    thread, n_threads,
):  # fmt: skip
    """Merge the spans that `attention` left in `parts`, in order."""
    n_rows = load_i64(n_rows_at)
    if n_rows > SPLIT_ROWS:
        return
    positions = load_i64(batch + _POSITIONS)
    merged = load_i64(batch + _SCRATCH) + thread * load_i64(batch + _SCRATCH_BYTES)
    for item in range(n_rows * n_heads * thread // n_threads, n_rows * n_heads * (thread + 1) // n_threads):
        position = np.int64(load_i32(positions + 4 * (item // n_heads)))
        _merge_item(merged, parts, position, item, n_heads, v_dim, window, n_spans, sinks)
        _write(out + 4 * v_dim * item, merged, v_dim)


@kernel
def attention_merge_quantize(
    out: Int, floats: Int, parts: Int, batch: Int, n_rows_at: Int, n_heads: Int, v_dim: Int, window: Int, n_spans: Int,
    sinks: Int, thread, n_threads,
):  # fmt: skip
    """The same, quantized; rows that `attention` finished itself are read from `floats`. `v_dim` is whole blocks."""
    n_rows = load_i64(n_rows_at)
    positions = load_i64(batch + _POSITIONS)
    merged = load_i64(batch + _SCRATCH) + thread * load_i64(batch + _SCRATCH_BYTES)
    width = n_heads * v_dim
    stride = (width + 16 * (width // BLOCK) + 63) // 64 * 64
    for item in range(n_rows * n_heads * thread // n_threads, n_rows * n_heads * (thread + 1) // n_threads):
        row, head = item // n_heads, item % n_heads
        source = floats + 4 * v_dim * item
        if n_rows <= SPLIT_ROWS:
            position = np.int64(load_i32(positions + 4 * row))
            _merge_item(merged, parts, position, item, n_heads, v_dim, window, n_spans, sinks)
            source = merged + 128
            for i in range(v_dim // 16):
                vstore(source + 64 * i, vload(source + 64 * i) / vload(merged + 64))
        for b in range(v_dim // BLOCK):
            low, high = vload(source + 128 * b), vload(source + 128 * b + 64)
            quantize_block(out + stride * row, width, head * (v_dim // BLOCK) + b, low, high)
