"""Attention over the cache with an online softmax, in a fixed order of keys.

Theory. Keys are walked in spans, within a span 32 at a time, a key a lane: its score is summed over the dimensions in
order, the 32 scores' maximum rescales what was summed before (Milakov and Gimelshein 2018; Dao et al. 2022), and each
lane sums its dimensions of the values. Each span starts afresh and spans are merged in order, so the arithmetic of a
row is the same whether one warp walks all spans (prompts) or each span has a warp (`attention_split`, few rows). A key
outside a query's range has weight exactly 0, and what has weight 0 is not added. Queries are heads that share keys,
then neighbouring rows. In prompts a warp answers several of one slot at once, so that each key and value is read and
unpacked once for all of them; that leaves no trace, since a tile of keys that a query sees none of changes nothing of
its sums. Rows of a fork (see `Batch`) read the tiles of keys behind its beginning elsewhere; they are the same keys in
the same tiles.
"""

from __future__ import annotations

import numpy as np
from numba import boolean, cuda, float32, int32

from phobos.kernels.cuda.code.attention_tile import KEY_FORMATS, VALUE_FORMATS
from phobos.kernels.cuda.code.elementary import exponential, hyperbolic_tangent
from phobos.kernels.cuda.code.intrinsics import arrives_last, device, load_f32, load_i32, store_f32
from phobos.kernels.cuda.code.norm import max_warp, put_value, sum_warp
from phobos.kernels.cuda.declaration import Float, Int, kernel
from phobos.kernels.cuda.layout import (
    CACHE_TILE_BYTES,
    KEY_TILE,
    QUERIES,
    VALUE_PAIRS,
    WARP,
    WARP_QUERIES,
)

_MERGED = 4  # values of a lane, where spans are merged
_EVERYONE = 0xFFFFFFFF
_LOWEST = np.float32(-1e30)
_ZERO, _ONE = np.float32(0), np.float32(1)


@device
def first_key(position, window):
    """The first position a query sees."""
    return max(position - window + 1, 0) if window > 0 else 0


def _make_walk(k_format: str, v_format: str, n_pairs: int, n_queries: int):
    """`walk(out, tops, totals, memory, q, first, last, lowest, highest, keys, values, k_dim, v_dim, start, stop,
    shared, shift, scale, soft_cap)`: a span's keys, those from `shared` on lying `shift` positions further on. Query m
    sees those from `first[m]` to `last[m]`, all queries together from `lowest` to `highest`. Sets for each the greatest
    score and the sum of weights, and leaves the weighted values, two a lane and pair, in `out`."""
    score_keys, load_value = KEY_FORMATS[k_format](n_queries).score, VALUE_FORMATS[v_format]
    key_tile, value_tile = CACHE_TILE_BYTES[k_format], CACHE_TILE_BYTES[v_format]
    n_values = 2 * n_pairs
    has_scales = v_format != "f16"

    @device
    def add_values(out, weights, tile, v_dim, first, last):
        """Positions `first` to `last` - 1 of a tile of values."""
        lane = cuda.threadIdx.x & 31
        shares = cuda.local.array(n_queries, float32)
        for t in range(first, last):
            for m in range(n_queries):
                shares[m] = cuda.shfl_sync(_EVERYONE, weights[m], t)
            for i in range(n_pairs):
                d = 2 * (WARP * i + lane)
                if d < v_dim:
                    scale, a, b = load_value(tile, v_dim, t, d)
                    for m in range(n_queries):
                        share = shares[m] * scale if has_scales else shares[m]
                        at = n_values * m + 2 * i
                        if shares[m] != _ZERO:
                            out[at] = cuda.fma(share, a, out[at])
                            out[at + 1] = cuda.fma(share, b, out[at + 1])

    @device
    def walk(
        out, tops, totals, memory, q, first, last, lowest, highest, keys, values, k_dim, v_dim, start, stop, shared,
        shift, scale, soft_cap,
    ):  # fmt: skip
        lane = cuda.threadIdx.x & 31
        scores = cuda.local.array(n_queries, float32)
        for m in range(n_queries):
            tops[m], totals[m] = _LOWEST, _ZERO
            for i in range(n_values):
                out[n_values * m + i] = _ZERO
        for tile in range(max(start, lowest // KEY_TILE * KEY_TILE), min(stop, highest + 1), KEY_TILE):
            key = tile + lane
            place = (tile + shift if tile >= shared else tile) // KEY_TILE
            if lowest <= key and key <= highest:
                score_keys(scores, memory, q, keys + key_tile * k_dim * place, k_dim)
            cuda.syncwarp()
            number = int32(key)
            for m in range(n_queries):
                is_seen = first[m] <= number and number <= last[m]
                score = scores[m] * scale
                if soft_cap > _ZERO:
                    score = soft_cap * hyperbolic_tangent(score / soft_cap)
                top = max(tops[m], max_warp(score if is_seen else _LOWEST))
                weight = exponential(score - top) if is_seen else _ZERO
                shrink = exponential(tops[m] - top)
                tops[m] = top
                totals[m] = totals[m] * shrink + sum_warp(weight)
                for i in range(n_values):
                    out[n_values * m + i] = out[n_values * m + i] * shrink
                scores[m] = weight
            first_seen, n_keys = max(lowest - tile, 0), min(highest + 1 - tile, KEY_TILE)
            add_values(out, scores, values + value_tile * v_dim * place, v_dim, first_seen, n_keys)

    return walk


def _make_prompt(k_format: str, v_format: str, n_pairs: int):
    n_queries, n_values = WARP_QUERIES[n_pairs], 2 * n_pairs
    n_sums = n_queries * n_values
    keys_of = KEY_FORMATS[k_format](n_queries)
    new_queries, prepare = keys_of.new_queries, keys_of.prepare
    walk = _make_walk(k_format, v_format, n_pairs, n_queries)

    @device
    def count_alike(number, end, group, slot, begin, shift, positions, places, shared, slots):
        """How many queries from `number` on, of those before `end`, read the same keys."""
        n = 1
        for i in range(1, n_queries):
            row = min(number + i, end - 1) // group
            position = load_i32(positions + 4 * row)
            if (
                n == i
                and number + i < end
                and load_i32(slots + 4 * row) == slot
                and load_i32(shared + 4 * row) == begin
                and load_i32(places + 4 * row) - position == shift
            ):
                n += 1
        return n

    @device
    def merge(whole, tops, totals, part, part_tops, part_totals):
        """Fold a span into what was summed before."""
        for m in range(n_queries):
            top = max(tops[m], part_tops[m])
            shrink, grow = exponential(tops[m] - top), exponential(part_tops[m] - top)
            tops[m] = top
            totals[m] = totals[m] * shrink + part_totals[m] * grow
            for i in range(n_values):
                at = n_values * m + i
                whole[at] = whole[at] * shrink + part[at] * grow

    def attention(
        out: Int, q: Int, keys: Int, values: Int, key_slot: Int, value_slot: Int, key_head: Int, value_head: Int,
        positions: Int, places: Int, shared: Int, slots: Int, n_rows_at: Int, n_heads: Int, group: Int, k_dim: Int,
        v_dim: Int, window: Int,
        span: Int, sinks: Int, scale: Float, soft_cap: Float,
    ):  # fmt: skip
        """All spans of `WARP_QUERIES` queries by their warp, those of one slot at a time. Grid: x by queries of 8
        warps, y by head of keys."""
        number = (np.int64(cuda.blockIdx.x) * QUERIES + (cuda.threadIdx.x >> 5)) * n_queries
        end = min(number + n_queries, load_i32(n_rows_at) * group)
        lane = cuda.threadIdx.x & 31
        memory = new_queries()
        q_at = cuda.local.array(n_queries, np.int64)
        first, last = cuda.local.array(n_queries, int32), cuda.local.array(n_queries, int32)
        part, whole = cuda.local.array(n_sums, float32), cuda.local.array(n_sums, float32)
        part_tops, part_totals = cuda.local.array(n_queries, float32), cuda.local.array(n_queries, float32)
        tops, totals = cuda.local.array(n_queries, float32), cuda.local.array(n_queries, float32)
        while number < end:
            row = number // group
            slot, begin = load_i32(slots + 4 * row), load_i32(shared + 4 * row)
            shift = load_i32(places + 4 * row) - load_i32(positions + 4 * row)
            n_alike = count_alike(number, end, group, slot, begin, shift, positions, places, shared, slots)
            for m in range(n_queries):
                query = min(number + m, number + n_alike - 1)
                row, head = query // group, cuda.blockIdx.y * group + query % group
                q_at[m] = q + 4 * k_dim * (row * n_heads + head)
                last[m] = int32(load_i32(positions + 4 * row))
                first[m] = int32(first_key(load_i32(positions + 4 * row), window))
                tops[m] = load_f32(sinks + 4 * head) if sinks != 0 else _LOWEST
                totals[m] = _ONE if sinks != 0 else _ZERO
                for i in range(n_values):
                    whole[n_values * m + i] = _ZERO
            prepare(memory, q_at, k_dim)
            lowest, highest = np.int64(first[0]), np.int64(last[n_queries - 1])
            for start in range(lowest // span * span, highest + 1, span):
                walk(
                    part, part_tops, part_totals, memory, q_at, first, last, lowest, highest,
                    keys + key_slot * slot + key_head * cuda.blockIdx.y,
                    values + value_slot * slot + value_head * cuda.blockIdx.y, k_dim, v_dim, start, start + span, begin,
                    shift, scale, soft_cap,
                )  # fmt: skip
                merge(whole, tops, totals, part, part_tops, part_totals)
            for m in range(n_queries):
                query = number + m
                target = out + 4 * v_dim * (query // group * n_heads + cuda.blockIdx.y * group + query % group)
                for i in range(n_pairs):
                    d = 2 * (WARP * i + lane)
                    if d < v_dim and m < n_alike:
                        store_f32(target + 4 * d, whole[n_values * m + 2 * i] / totals[m])
                        store_f32(target + 4 * d + 4, whole[n_values * m + 2 * i + 1] / totals[m])
            number += n_alike
            cuda.syncwarp()

    attention.__name__ = f"attention_{k_format}_{v_format}_{n_pairs}"
    return kernel(QUERIES * WARP, min_blocks=2)(attention)


@device
def _merge(out, codes, parts, sinks, row, head, n_heads, v_dim, first_span, last_span):
    """Merges the spans of a query, which begin at `parts`, in order, as `attention` does; a lane has every 32nd value,
    `_MERGED` at a time. `out` and `codes`: 0 for none; codes where a head's values are whole blocks."""
    whole = cuda.local.array(_MERGED, float32)
    for start in range(cuda.threadIdx.x & 31, v_dim, WARP * _MERGED):
        for i in range(_MERGED):
            whole[i] = _ZERO
        top = load_f32(sinks + 4 * head) if sinks != 0 else _LOWEST
        total = np.float32(1) if sinks != 0 else _ZERO
        for s in range(first_span, last_span + 1):
            part = parts + 4 * (v_dim + 2) * s
            part_top = load_f32(part)
            new_top = max(top, part_top)
            shrink, grow = exponential(top - new_top), exponential(part_top - new_top)
            top = new_top
            total = total * shrink + load_f32(part + 4) * grow
            for i in range(_MERGED):
                d = start + WARP * i
                value = load_f32(part + 8 + 4 * d) if d < v_dim else _ZERO
                whole[i] = whole[i] * shrink + value * grow
        for i in range(_MERGED):
            d = start + WARP * i
            if d < v_dim:
                put_value(out, codes, n_heads * v_dim, row, head * v_dim + d, whole[i] / total)


def _make_split(k_format: str, v_format: str, n_pairs: int):
    n_values = 2 * n_pairs
    keys_of = KEY_FORMATS[k_format](1)
    new_queries, prepare = keys_of.new_queries, keys_of.prepare
    walk = _make_walk(k_format, v_format, n_pairs, 1)

    def attention_split(
        parts: Int, q: Int, keys: Int, values: Int, key_slot: Int, value_slot: Int, key_head: Int, value_head: Int,
        positions: Int, places: Int, shared: Int, slots: Int, n_rows_at: Int, n_heads: Int, group: Int, k_dim: Int,
        v_dim: Int, window: Int, span: Int, n_spans: Int, out: Int, out_codes: Int, sinks: Int, counters: Int,
        scale: Float, soft_cap: Float,
    ):  # fmt: skip
        """One span of a query by a warp; `parts` holds for each row, head and span the greatest score, the sum of
        weights, and the weighted values. The last block of a query's spans merges them. Grid: x by 8 queries, y by
        head of keys, z by span."""
        number = cuda.blockIdx.x * QUERIES + (cuda.threadIdx.x >> 5)
        row, head = number // group, cuda.blockIdx.y * group + number % group
        flag, memory = cuda.shared.array(1, boolean), new_queries()
        position, start = np.int64(-1), cuda.blockIdx.z * span
        if row < load_i32(n_rows_at):
            position = load_i32(positions + 4 * row)
        begins = first_key(position, window)
        if start <= position and start + span > begins:
            slot = load_i32(slots + 4 * row)
            begin, shift = load_i32(shared + 4 * row), load_i32(places + 4 * row) - position
            lane = cuda.threadIdx.x & 31
            q_at = cuda.local.array(1, np.int64)
            first, last = cuda.local.array(1, int32), cuda.local.array(1, int32)
            q_at[0] = q + 4 * k_dim * (row * n_heads + head)
            first[0], last[0] = int32(begins), int32(position)
            prepare(memory, q_at, k_dim)
            part = cuda.local.array(n_values, float32)
            tops, totals = cuda.local.array(1, float32), cuda.local.array(1, float32)
            walk(
                part, tops, totals, memory, q_at, first, last, np.int64(first[0]), position,
                keys + key_slot * slot + key_head * cuda.blockIdx.y,
                values + value_slot * slot + value_head * cuda.blockIdx.y, k_dim, v_dim, start, start + span, begin,
                shift, scale, soft_cap,
            )  # fmt: skip
            target = parts + 4 * (v_dim + 2) * ((row * n_heads + head) * n_spans + cuda.blockIdx.z)
            if lane == 0:
                store_f32(target, tops[0])
                store_f32(target + 4, totals[0])
            for i in range(n_pairs):
                d = 2 * (WARP * i + lane)
                if d < v_dim:
                    store_f32(target + 8 + 4 * d, part[2 * i])
                    store_f32(target + 12 + 4 * d, part[2 * i + 1])
        counter = counters + 4 * (cuda.gridDim.x * cuda.blockIdx.y + cuda.blockIdx.x)
        if arrives_last(counter, n_spans, flag) and position >= 0:
            source = parts + 4 * (v_dim + 2) * (row * n_heads + head) * n_spans
            _merge(out, out_codes, source, sinks, row, head, n_heads, v_dim, begins // span, position // span)

    attention_split.__name__ = f"attention_split_{k_format}_{v_format}_{n_pairs}"
    return kernel(QUERIES * WARP)(attention_split)


for _k in KEY_FORMATS:
    for _v in VALUE_FORMATS:
        for _n in VALUE_PAIRS:
            globals()[f"attention_{_k}_{_v}_{_n}"] = _make_prompt(_k, _v, _n)
            globals()[f"attention_split_{_k}_{_v}_{_n}"] = _make_split(_k, _v, _n)
