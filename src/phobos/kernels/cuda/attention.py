"""Attention over the cache with an online softmax, in a fixed order of keys.

Theory. Keys are walked in spans, within a span 32 at a time, a key a lane: its score is summed over the dimensions in
order, the 32 scores' maximum rescales what was summed before (Milakov and Gimelshein 2018; Dao et al. 2022), and each
lane sums its dimensions of the values. Each span starts afresh and spans are merged in order, so the arithmetic of a
row is the same whether one warp walks all spans (prompts) or each span has a warp (`attention_split`, few rows). A key
outside a query's range has weight exactly 0. A warp answers one query; a block's queries are heads that share keys,
then neighbouring rows, so that the first cache serves keys and values to all of them. Rows of a fork (see `Batch`) read
the tiles of keys behind its beginning elsewhere; they are the same keys in the same tiles.
"""

from __future__ import annotations

import numpy as np
from numba import cuda, float32

from phobos.kernels.cuda.compiler import Float, Int, kernel
from phobos.kernels.cuda.elementary import exponential, hyperbolic_tangent
from phobos.kernels.cuda.intrinsics import (
    device,
    half_to_float,
    load_f32,
    load_i32,
    load_u32,
    read_floats,
    read_shared_words,
    store_f32,
)
from phobos.kernels.cuda.layout import BLOCK, KEY_TILE, NORM_THREADS, QUERIES, WARP
from phobos.kernels.cuda.norm import max_warp, quantize_warp, record_stride, sum_warp

VALUE_PAIRS = (
    1,
    2,
    4,
    9,
)  # pairs of value dimensions a lane, that attention is compiled for: v_dim up to 64 times that
_EVERYONE = 0xFFFFFFFF
_LOWEST = np.float32(-1e30)
_ZERO = np.float32(0)
_S = np.uint32(16)


@device
def _key_score(q, key, k_dim):
    """q · k of one key, whose 8-dimension pieces lie `KEY_TILE` apart."""
    score = _ZERO
    for d in range(0, k_dim, 8):
        a, b, c, e = read_floats(q + 4 * d)
        f, g, h, i = read_floats(q + 4 * d + 16)
        w0, w1, w2, w3 = read_shared_words(key + 2 * KEY_TILE * d)
        score = cuda.fma(half_to_float(w0), a, score)
        score = cuda.fma(half_to_float(w0 >> _S), b, score)
        score = cuda.fma(half_to_float(w1), c, score)
        score = cuda.fma(half_to_float(w1 >> _S), e, score)
        score = cuda.fma(half_to_float(w2), f, score)
        score = cuda.fma(half_to_float(w2 >> _S), g, score)
        score = cuda.fma(half_to_float(w3), h, score)
        score = cuda.fma(half_to_float(w3 >> _S), i, score)
    return score


@device
def query_of(n_rows, group):
    """(row, head within the group of heads that share keys) of this warp; row < 0: none."""
    number = cuda.blockIdx.x * QUERIES + (cuda.threadIdx.x >> 5)
    row = number // group
    return (row if row < n_rows else -1), number % group


@device
def first_key(position, window):
    """The first position a query sees."""
    return max(position - window + 1, 0) if window > 0 else 0


def _make_walk(n_pairs: int):
    """`walk(out, q, keys, values, k_dim, v_dim, first, last, start, stop, shared, shift, scale, soft_cap)`: a span's
    keys, those from `shared` on lying `shift` positions further on; returns the greatest score and the sum of weights,
    and leaves the weighted values, two a lane and pair, in `out`."""

    @device
    def walk(out, q, keys, values, k_dim, v_dim, first, last, start, stop, shared, shift, scale, soft_cap):
        lane = cuda.threadIdx.x & 31
        for i in range(2 * n_pairs):
            out[i] = _ZERO
        top, total = _LOWEST, _ZERO
        for tile in range(max(start, first // KEY_TILE * KEY_TILE), min(stop, last + 1), KEY_TILE):
            key = tile + lane
            place = tile + shift if tile >= shared else tile
            score = _LOWEST
            if first <= key and key <= last:
                score = _key_score(q, keys + 2 * k_dim * place + 16 * lane, k_dim) * scale
                if soft_cap > _ZERO:
                    score = soft_cap * hyperbolic_tangent(score / soft_cap)
            cuda.syncwarp()
            new_top = max(top, max_warp(score))
            weight = exponential(score - new_top) if first <= key and key <= last else _ZERO
            shrink = exponential(top - new_top)
            top = new_top
            total = total * shrink + sum_warp(weight)
            for i in range(2 * n_pairs):
                out[i] = out[i] * shrink
            n_keys = min(last + 1 - tile, KEY_TILE)
            for t in range(n_keys):
                w = cuda.shfl_sync(_EVERYONE, weight, t)
                row = values + 2 * v_dim * (place + t) + 4 * lane
                for i in range(n_pairs):
                    if 2 * (WARP * i + lane) < v_dim:
                        both = load_u32(row + 4 * WARP * i)
                        out[2 * i] = cuda.fma(w, half_to_float(both), out[2 * i])
                        out[2 * i + 1] = cuda.fma(w, half_to_float(both >> _S), out[2 * i + 1])
        return top, total

    return walk


def _make_attention(n_pairs: int):
    walk = _make_walk(n_pairs)
    n_values = 2 * n_pairs

    def attention(
        out: Int, q: Int, keys: Int, values: Int, key_slot: Int, value_slot: Int, key_head: Int, value_head: Int,
        positions: Int, places: Int, shared: Int, slots: Int, n_rows_at: Int, n_heads: Int, group: Int, k_dim: Int,
        v_dim: Int, window: Int,
        span: Int, sinks: Int, scale: Float, soft_cap: Float,
    ):  # fmt: skip
        """All spans of a query by its warp. Grid: x by 8 queries, y by head of keys."""
        row, g = query_of(load_i32(n_rows_at), group)
        if row < 0:
            return
        lane = cuda.threadIdx.x & 31
        head = cuda.blockIdx.y * group + g
        position, slot = load_i32(positions + 4 * row), load_i32(slots + 4 * row)
        begin, shift = load_i32(shared + 4 * row), load_i32(places + 4 * row) - position
        query = q + 4 * k_dim * (row * n_heads + head)
        head_keys = keys + key_slot * slot + key_head * cuda.blockIdx.y
        head_values = values + value_slot * slot + value_head * cuda.blockIdx.y
        first = first_key(position, window)
        part = cuda.local.array(n_values, float32)
        whole = cuda.local.array(n_values, float32)
        for i in range(2 * n_pairs):
            whole[i] = _ZERO
        top = load_f32(sinks + 4 * head) if sinks != 0 else _LOWEST
        total = np.float32(1) if sinks != 0 else _ZERO
        for start in range(first // span * span, position + 1, span):
            part_top, part_total = walk(
                part,
                query,
                head_keys,
                head_values,
                k_dim,
                v_dim,
                first,
                position,
                start,
                start + span,
                begin,
                shift,
                scale,
                soft_cap,
            )
            new_top = max(top, part_top)
            shrink, grow = exponential(top - new_top), exponential(part_top - new_top)
            top = new_top
            total = total * shrink + part_total * grow
            for i in range(2 * n_pairs):
                whole[i] = whole[i] * shrink + part[i] * grow
        target = out + 4 * v_dim * (row * n_heads + head)
        for i in range(n_pairs):
            d = 2 * (WARP * i + lane)
            if d < v_dim:
                store_f32(target + 4 * d, whole[2 * i] / total)
                store_f32(target + 4 * d + 4, whole[2 * i + 1] / total)

    def attention_split(
        parts: Int, q: Int, keys: Int, values: Int, key_slot: Int, value_slot: Int, key_head: Int, value_head: Int,
        positions: Int, places: Int, shared: Int, slots: Int, n_rows_at: Int, n_heads: Int, group: Int, k_dim: Int,
        v_dim: Int, window: Int,
        span: Int, n_spans: Int, scale: Float, soft_cap: Float,
    ):  # fmt: skip
        """One span of a query by a warp; `parts` holds for each row, head and span the greatest score, the sum of
        weights, and the weighted values. Grid: x by 8 queries, y by head of keys, z by span."""
        row, g = query_of(load_i32(n_rows_at), group)
        if row < 0:
            return
        position, slot = load_i32(positions + 4 * row), load_i32(slots + 4 * row)
        begin, shift = load_i32(shared + 4 * row), load_i32(places + 4 * row) - position
        first = first_key(position, window)
        start = cuda.blockIdx.z * span
        if start > position or start + span <= first:
            return
        lane = cuda.threadIdx.x & 31
        head = cuda.blockIdx.y * group + g
        part = cuda.local.array(n_values, float32)
        top, total = walk(
            part, q + 4 * k_dim * (row * n_heads + head), keys + key_slot * slot + key_head * cuda.blockIdx.y,
            values + value_slot * slot + value_head * cuda.blockIdx.y, k_dim, v_dim, first, position, start,
            start + span, begin, shift, scale, soft_cap,
        )  # fmt: skip
        target = parts + 4 * (v_dim + 2) * ((row * n_heads + head) * n_spans + cuda.blockIdx.z)
        if lane == 0:
            store_f32(target, top)
            store_f32(target + 4, total)
        for i in range(n_pairs):
            d = 2 * (WARP * i + lane)
            if d < v_dim:
                store_f32(target + 8 + 4 * d, part[2 * i])
                store_f32(target + 12 + 4 * d, part[2 * i + 1])

    attention.__name__ = f"attention_{n_pairs}"
    attention_split.__name__ = f"attention_split_{n_pairs}"
    return kernel(QUERIES * WARP)(attention), kernel(QUERIES * WARP)(attention_split)


for _n in VALUE_PAIRS:
    globals()[f"attention_{_n}"], globals()[f"attention_split_{_n}"] = _make_attention(_n)


@kernel(NORM_THREADS)
def attention_merge(
    out: Int, codes: Int, parts: Int, positions: Int, n_rows_at: Int, n_heads: Int, v_dim: Int, window: Int, span: Int,
    n_spans: Int, sinks: Int,
):  # fmt: skip
    """Merges the spans of `attention_split` in order, as `attention` does; a thread a value. `out` and `codes`: 0 for
    none. Grid: x along a row, y by row."""
    row, i = cuda.blockIdx.y, cuda.blockIdx.x * NORM_THREADS + cuda.threadIdx.x
    width = n_heads * v_dim
    if row >= load_i32(n_rows_at) or i >= width:
        return
    head, d = i // v_dim, i % v_dim
    position = load_i32(positions + 4 * row)
    first = first_key(position, window)
    top = load_f32(sinks + 4 * head) if sinks != 0 else _LOWEST
    total = np.float32(1) if sinks != 0 else _ZERO
    whole = _ZERO
    for s in range(first // span, position // span + 1):
        part = parts + 4 * (v_dim + 2) * ((row * n_heads + head) * n_spans + s)
        part_top = load_f32(part)
        new_top = max(top, part_top)
        shrink, grow = exponential(top - new_top), exponential(part_top - new_top)
        top = new_top
        total = total * shrink + load_f32(part + 4) * grow
        whole = whole * shrink + load_f32(part + 8 + 4 * d) * grow
    value = whole / total
    if out != 0:
        store_f32(out + 4 * (width * row + i), value)
    if codes != 0:
        quantize_warp(codes + record_stride(width) * row, width, i // BLOCK, value)
