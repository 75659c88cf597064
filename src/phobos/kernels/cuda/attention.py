"""Attention over the cache with an online softmax, in a fixed order of keys.

Theory. Keys are walked in spans, within a span 32 at a time, a key a lane: its score is summed over the dimensions in
order, the 32 scores' maximum rescales what was summed before (Milakov and Gimelshein 2018; Dao et al. 2022), and each
lane sums its dimensions of the values. Each span starts afresh and spans are merged in order, so the arithmetic of a
row is the same whether one warp walks all spans (prompts) or each span has a warp (`attention_split`, few rows). A key
outside a query's range has weight exactly 0. A warp answers one query; a block's queries are heads that share keys,
then neighbouring rows, so that the first cache serves keys and values to all of them. Rows of a fork (see `Batch`) read
the tiles of keys behind its beginning elsewhere; they are the same keys in the same tiles.

Coded keys meet queries coded in the same blocks of 32 dimensions, but in 16 bits, kept as two bytes: a block's product
is one exact integer, and queries add no error to that of the keys. Coded values have their scales multiplied into the
softmax's weights.
"""

from __future__ import annotations

import numpy as np
from numba import cuda, float32, int32, uint32

from phobos.kernels.cuda.compiler import Float, Int, kernel
from phobos.kernels.cuda.elementary import exponential, hyperbolic_tangent
from phobos.kernels.cuda.intrinsics import (
    device,
    dot4_signed,
    half_to_float,
    load_f32,
    load_i32,
    load_u16,
    load_u32,
    read_floats,
    read_shared_words,
    round_to_int,
    store_f32,
)
from phobos.kernels.cuda.layout import (
    BLOCK,
    CACHE_TILE_BYTES,
    CODED_K_DIM_MAX,
    KEY_TILE,
    NORM_THREADS,
    QUERIES,
    WARP,
)
from phobos.kernels.cuda.norm import max_warp, quantize_warp, record_stride, sum_warp

# Pairs of value dimensions a lane that attention is compiled for: v_dim up to 64 times that.
VALUE_PAIRS = (1, 2, 4, 9)
_EVERYONE = 0xFFFFFFFF
_LOWEST = np.float32(-1e30)
_ZERO = np.float32(0)
_S = np.uint32(16)
_QUERY_MAX = np.float32(127 * 256)  # of a query's code: its high byte stays within the range of a byte
_N_BLOCKS = CODED_K_DIM_MAX // BLOCK
_BLOCK_WORDS = 2 * BLOCK // 4  # of a block of a coded query: high bytes, then low ones
_ONE_BYTE = np.int64(255)


# Keys: `prepare(codes, scales, q, k_dim)` makes a warp's query ready in shared memory; `score(codes, scales, q, tile,
# k_dim)` is its product with a lane's key.


@device
def _keep_query(codes, scales, q, k_dim):
    """Halves are met by the query as it is."""


@device
def _score_halves(codes, scales, q, tile, k_dim):
    key, score = tile + 16 * (cuda.threadIdx.x & 31), _ZERO
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
def _high_byte(code):
    return (code + 128) >> 8


@device
def _pack(a, b, c, d):
    """Four bytes as a word."""
    return uint32((a & _ONE_BYTE) | (b & _ONE_BYTE) << 8 | (c & _ONE_BYTE) << 16 | (d & _ONE_BYTE) << 24)


@device
def _code_query(codes, scales, q, k_dim):
    """Four dimensions a lane, so that eight lanes have a block; a code is 256 times its high byte plus its low one."""
    lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
    for first in range(0, k_dim, 4 * WARP):
        d = first + 4 * lane
        a, b, c, e = _ZERO, _ZERO, _ZERO, _ZERO
        if d < k_dim:
            a, b, c, e = read_floats(q + 4 * d)
        largest = max(abs(a), abs(b), abs(c), abs(e))
        for step in (4, 2, 1):
            largest = max(largest, cuda.shfl_xor_sync(_EVERYONE, largest, step))
        inverse = _QUERY_MAX / largest if largest > _ZERO else _ZERO
        if d < k_dim:
            w, x = np.int64(round_to_int(a * inverse)), np.int64(round_to_int(b * inverse))
            y, z = np.int64(round_to_int(c * inverse)), np.int64(round_to_int(e * inverse))
            at = _BLOCK_WORDS * (_N_BLOCKS * warp + d // BLOCK) + d % BLOCK // 4
            codes[at] = _pack(_high_byte(w), _high_byte(x), _high_byte(y), _high_byte(z))
            codes[at + BLOCK // 4] = _pack(w, x, y, z)
            if d % BLOCK == 0:
                scales[_N_BLOCKS * warp + d // BLOCK] = largest / _QUERY_MAX
    cuda.syncwarp()


@device
def _score_codes(codes, scales, q, tile, k_dim):
    lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
    score = _ZERO
    for b in range(k_dim // BLOCK):
        key = tile + KEY_TILE * BLOCK * b + 16 * lane
        w0, w1, w2, w3 = read_shared_words(key)
        w4, w5, w6, w7 = read_shared_words(key + 16 * KEY_TILE)
        at = _BLOCK_WORDS * (_N_BLOCKS * warp + b)
        dot = dot4_signed(dot4_signed(int32(0), w0, codes[at]), w1, codes[at + 1])
        dot = dot4_signed(dot4_signed(dot, w2, codes[at + 2]), w3, codes[at + 3])
        dot = dot4_signed(dot4_signed(dot, w4, codes[at + 4]), w5, codes[at + 5])
        dot = dot4_signed(dot4_signed(dot, w6, codes[at + 6]), w7, codes[at + 7])
        dot = int32(dot * 256)
        dot = dot4_signed(dot4_signed(dot, w0, codes[at + 8]), w1, codes[at + 9])
        dot = dot4_signed(dot4_signed(dot, w2, codes[at + 10]), w3, codes[at + 11])
        dot = dot4_signed(dot4_signed(dot, w4, codes[at + 12]), w5, codes[at + 13])
        dot = dot4_signed(dot4_signed(dot, w6, codes[at + 14]), w7, codes[at + 15])
        scale = half_to_float(load_u16(tile + KEY_TILE * k_dim + 2 * (KEY_TILE * b + lane)))
        score = cuda.fma(np.float32(dot), scale * scales[_N_BLOCKS * warp + b], score)
    return score


# Values: `load(tile, v_dim, t, weight, d)` gives the weight of position t of a tile and dimensions d and d + 1 of its
# value.


@device
def _load_halves(tile, v_dim, t, weight, d):
    both = load_u32(tile + 2 * (v_dim * t + d))
    return weight, half_to_float(both), half_to_float(both >> _S)


@device
def _load_codes(tile, v_dim, t, weight, d):
    scale = half_to_float(load_u16(tile + KEY_TILE * v_dim + 2 * (KEY_TILE * (d // BLOCK) + t)))
    both = load_u16(tile + v_dim * t + d)
    a, b = int32(((both & _ONE_BYTE) ^ 128) - 128), int32(((both >> np.uint32(8)) ^ 128) - 128)
    return weight * scale, np.float32(a), np.float32(b)


# By format: words of shared memory for coded queries, how queries are prepared, keys scored, and values loaded.
KEY_FORMATS = {
    "f16": (1, _keep_query, _score_halves),
    "q8_0": (QUERIES * _N_BLOCKS * _BLOCK_WORDS, _code_query, _score_codes),
}
VALUE_FORMATS = {"f16": _load_halves, "q8_0": _load_codes}


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


def _make_walk(k_format: str, v_format: str, n_pairs: int):
    """`walk(out, codes, scales, q, keys, values, k_dim, v_dim, first, last, start, stop, shared, shift, scale,
    soft_cap)`: a span's keys, those from `shared` on lying `shift` positions further on; returns the greatest score and
    the sum of weights, and leaves the weighted values, two a lane and pair, in `out`."""
    score_key, load_value = KEY_FORMATS[k_format][2], VALUE_FORMATS[v_format]
    key_tile, value_tile = CACHE_TILE_BYTES[k_format], CACHE_TILE_BYTES[v_format]

    @device
    def walk(
        out, codes, scales, q, keys, values, k_dim, v_dim, first, last, start, stop, shared, shift, scale, soft_cap
    ):
        lane = cuda.threadIdx.x & 31
        for i in range(2 * n_pairs):
            out[i] = _ZERO
        top, total = _LOWEST, _ZERO
        for tile in range(max(start, first // KEY_TILE * KEY_TILE), min(stop, last + 1), KEY_TILE):
            key = tile + lane
            place = (tile + shift if tile >= shared else tile) // KEY_TILE
            score = _LOWEST
            if first <= key and key <= last:
                score = score_key(codes, scales, q, keys + key_tile * k_dim * place, k_dim) * scale
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
                for i in range(n_pairs):
                    d = 2 * (WARP * i + lane)
                    if d < v_dim:
                        share, a, b = load_value(values + value_tile * v_dim * place, v_dim, t, w, d)
                        out[2 * i] = cuda.fma(share, a, out[2 * i])
                        out[2 * i + 1] = cuda.fma(share, b, out[2 * i + 1])
        return top, total

    return walk


def _make_attention(k_format: str, v_format: str, n_pairs: int):
    walk = _make_walk(k_format, v_format, n_pairs)
    n_words, prepare, _ = KEY_FORMATS[k_format]
    n_scales = max(1, n_words // _BLOCK_WORDS)
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
        codes, scales = cuda.shared.array(n_words, uint32), cuda.shared.array(n_scales, float32)
        prepare(codes, scales, query, k_dim)
        part = cuda.local.array(n_values, float32)
        whole = cuda.local.array(n_values, float32)
        for i in range(2 * n_pairs):
            whole[i] = _ZERO
        top = load_f32(sinks + 4 * head) if sinks != 0 else _LOWEST
        total = np.float32(1) if sinks != 0 else _ZERO
        for start in range(first // span * span, position + 1, span):
            part_top, part_total = walk(
                part, codes, scales, query, head_keys, head_values, k_dim, v_dim, first, position, start, start + span,
                begin, shift, scale, soft_cap,
            )  # fmt: skip
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
        query = q + 4 * k_dim * (row * n_heads + head)
        codes, scales = cuda.shared.array(n_words, uint32), cuda.shared.array(n_scales, float32)
        prepare(codes, scales, query, k_dim)
        part = cuda.local.array(n_values, float32)
        top, total = walk(
            part, codes, scales, query, keys + key_slot * slot + key_head * cuda.blockIdx.y,
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

    attention.__name__ = f"attention_{k_format}_{v_format}_{n_pairs}"
    attention_split.__name__ = f"attention_split_{k_format}_{v_format}_{n_pairs}"
    return kernel(QUERIES * WARP)(attention), kernel(QUERIES * WARP)(attention_split)


for _k in KEY_FORMATS:
    for _v in VALUE_FORMATS:
        for _n in VALUE_PAIRS:
            for _kernel in _make_attention(_k, _v, _n):
                globals()[_kernel.function.__name__] = _kernel


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
