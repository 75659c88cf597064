"""A tile of attention: four queries against a block of keys, for each format of the cache.

Keys and values of a head lie in tiles of `KEY_TILE` positions. As halves (`f16`): keys [k_dim][16], so that a vector
holds one dimension of 16 keys; values [16][v_dim]. As codes (`q8_0`): 32 neighbouring dimensions of a position share a
half-precision scale; keys are codes + 128 [k_dim / 4][16][4], then scales [k_dim / 32][16]; values are codes
[16][v_dim], then scales [v_dim / 32][16]. Coded keys meet queries coded in the same blocks, but in 16 bits, kept as two
bytes: a block's product is one exact integer, and queries add no error to that of the keys. Coded values have their
scales multiplied into the weights.

A tile's state lies in scratch, see the offsets below.
"""

from __future__ import annotations

import numpy as np

from phobos.kernels.cpu.code.access import (
    load_f32,
    load_i32,
    load_i64,
    store_f32,
    store_i32,
    vload,
    vload_f16,
    vload_i8_f32,
    vload_u8,
    vstore,
)
from phobos.kernels.cpu.code.elementary import exponential, hyperbolic_tangent
from phobos.kernels.cpu.code.norm import quantize_values
from phobos.kernels.cpu.code.simd import (
    F32,
    I32,
    dot4,
    fma,
    inlined,
    lane_numbers,
    make_tile,
    max_lanes,
    maximum,
    shift_left,
    shift_right,
    splat,
    splat_bytes,
    splat_i32,
    store_narrow_i8,
    sum_lanes,
    sum_lanes_i32,
    to_float,
    where_less,
    zeros,
    zeros_i32,
)
from phobos.kernels.cpu.layout import BLOCK, CACHE_TILE_BYTES, KEY_BLOCK, KEY_TILE

QUERIES = 4  # of a tile
K_DIM_MAX = V_DIM_MAX = 576
_CODED = CACHE_TILE_BYTES["q8_0"]  # bytes of a tile for each dimension
_MASKED = np.float32(-np.inf)

new_scores, get_score, put_score = make_tile(F32, 2 * QUERIES)
new_sums, get_sum, put_sum = make_tile(F32, 2 * QUERIES)
new_dots, get_dot, put_dot = make_tile(I32, 2 * QUERIES)

# A tile's state: per query its address, first and last key (8 bytes each of 32); then scores, maxima, sums, outputs;
# then scores times the scales of values, and per query its codes (high bytes, then low bytes), their scales and -128
# times their sums.
QUERY = 0
SCORES = 32 * QUERIES
MAXIMA = SCORES + 4 * KEY_BLOCK * QUERIES
TOTALS = MAXIMA + 64 * QUERIES
OUTPUTS = TOTALS + 64 * QUERIES
_SCALED = OUTPUTS + 4 * V_DIM_MAX * QUERIES
_CODES = _SCALED + 4 * KEY_BLOCK * QUERIES
_LOW = K_DIM_MAX  # where a query's low bytes begin, its scales, its sums
_SCALES = _LOW + K_DIM_MAX
_SUMS = _SCALES + 4 * (K_DIM_MAX // BLOCK)
_CODE_BYTES = _SUMS + 4 * (K_DIM_MAX // BLOCK)
_QUERY_MAX = np.float32(127 * 256)  # the high byte stays within its range
TILE_BYTES = _CODES + _CODE_BYTES * QUERIES


# Scores


@inlined
def _keep_queries(tile, k_dim):
    """Halves are met by the queries as they are."""


@inlined
def _store_code_bytes(codes, at, values):
    """16 codes as signed bytes: code = 256 * high + low."""
    high = shift_right(values + splat_i32(np.int32(128 + (1 << 15))), np.int32(8)) - splat_i32(np.int32(128))
    store_narrow_i8(codes + at, high)
    store_narrow_i8(codes + _LOW + at, values - shift_left(high, np.int32(8)))


@inlined
def _code_queries(tile, k_dim):
    """Quantize the tile's queries to 16 bits."""
    for n in range(QUERIES):
        query, codes = load_i64(tile + QUERY + 32 * n), tile + _CODES + _CODE_BYTES * n
        for b in range(k_dim // BLOCK):
            scale, first, second = quantize_values(vload(query + 128 * b), vload(query + 128 * b + 64), _QUERY_MAX)
            _store_code_bytes(codes, BLOCK * b, first)
            _store_code_bytes(codes, BLOCK * b + 16, second)
            store_f32(codes + _SCALES + 4 * b, scale)
            store_i32(codes + _SUMS + 4 * b, np.int32(-128) * sum_lanes_i32(first + second))


@inlined
def _score_halves(tile, keys, k_dim, out):
    """Products of the queries with the 32 keys of two tiles at `keys`, to `out` for the first query."""
    scores = new_scores()
    for i in range(2 * QUERIES):
        put_score(scores, i, zeros())
    for d in range(k_dim):
        low, high = vload_f16(keys + 32 * d), vload_f16(keys + 32 * (k_dim + d))
        for n in range(QUERIES):
            value = splat(load_f32(load_i64(tile + QUERY + 32 * n) + 4 * d))
            put_score(scores, 2 * n, fma(low, value, get_score(scores, 2 * n)))
            put_score(scores, 2 * n + 1, fma(high, value, get_score(scores, 2 * n + 1)))
    for n in range(QUERIES):
        vstore(out + 4 * KEY_BLOCK * n, get_score(scores, 2 * n))
        vstore(out + 4 * KEY_BLOCK * n + 64, get_score(scores, 2 * n + 1))


@inlined
def _add_dots(tile, dots, first, second, codes):
    """Products of a block's codes, of the keys of two tiles, with the bytes of the queries at `codes`."""
    for j in range(BLOCK // 4):
        low, high = vload_u8(first + 64 * j), vload_u8(second + 64 * j)
        for n in range(QUERIES):
            value = splat_bytes(codes + _CODE_BYTES * n + 4 * j)
            put_dot(dots, 2 * n, dot4(get_dot(dots, 2 * n), low, value))
            put_dot(dots, 2 * n + 1, dot4(get_dot(dots, 2 * n + 1), high, value))


@inlined
def _score_codes(tile, keys, k_dim, out):
    """The same of coded keys."""
    scores = new_scores()
    dots = new_dots()
    for i in range(2 * QUERIES):
        put_score(scores, i, zeros())
    second = keys + _CODED * k_dim
    for b in range(k_dim // BLOCK):
        codes = tile + _CODES + BLOCK * b
        for i in range(2 * QUERIES):
            put_dot(dots, i, zeros_i32())
        _add_dots(tile, dots, keys + 512 * b, second + 512 * b, codes)
        for n in range(QUERIES):
            correction = splat_i32(load_i32(tile + _CODES + _CODE_BYTES * n + _SUMS + 4 * b))
            put_dot(dots, 2 * n, shift_left(get_dot(dots, 2 * n), np.int32(8)) + correction)
            put_dot(dots, 2 * n + 1, shift_left(get_dot(dots, 2 * n + 1), np.int32(8)) + correction)
        _add_dots(tile, dots, keys + 512 * b, second + 512 * b, codes + _LOW)
        scale_at = KEY_TILE * k_dim + 32 * b
        low_scale, high_scale = vload_f16(keys + scale_at), vload_f16(second + scale_at)
        for n in range(QUERIES):
            scale = splat(load_f32(tile + _CODES + _CODE_BYTES * n + _SCALES + 4 * b))
            low_dot, high_dot = to_float(get_dot(dots, 2 * n)), to_float(get_dot(dots, 2 * n + 1))
            put_score(scores, 2 * n, fma(low_dot, low_scale * scale, get_score(scores, 2 * n)))
            put_score(scores, 2 * n + 1, fma(high_dot, high_scale * scale, get_score(scores, 2 * n + 1)))
    for n in range(QUERIES):
        vstore(out + 4 * KEY_BLOCK * n, get_score(scores, 2 * n))
        vstore(out + 4 * KEY_BLOCK * n + 64, get_score(scores, 2 * n + 1))


def _make_score_block(score_keys, tile_bytes: int):
    @inlined
    def score_block(tile, keys, k_dim, first_key, scale, soft_cap):
        """Scores of `KEY_BLOCK` keys for the tile's queries, masked to each query's range."""
        for half in range(KEY_BLOCK // 32):
            tile_of_keys = keys + (first_key + 32 * half) // KEY_TILE * tile_bytes * k_dim
            score_keys(tile, tile_of_keys, k_dim, tile + SCORES + 128 * half)
            for n in range(QUERIES):
                first, last = load_i64(tile + QUERY + 32 * n + 8), load_i64(tile + QUERY + 32 * n + 16)
                for part in range(2):
                    at = tile + SCORES + 4 * (KEY_BLOCK * n + 32 * half + 16 * part)
                    score = vload(at) * splat(scale)
                    if soft_cap > np.float32(0):
                        score = splat(soft_cap) * hyperbolic_tangent(score / splat(soft_cap))
                    key = splat_i32(np.int32(first_key + 32 * half + 16 * part)) + lane_numbers()
                    score = where_less(key, splat_i32(np.int32(first)), splat(_MASKED), score)
                    score = where_less(splat_i32(np.int32(last)), key, splat(_MASKED), score)
                    vstore(at, score)

    return score_block


@inlined
def soften_block(tile, n):
    """Turn query n's scores into weights against the new maximum; returns the factor for what was summed before."""
    scores = tile + SCORES + 4 * KEY_BLOCK * n
    s0, s1, s2, s3 = vload(scores), vload(scores + 64), vload(scores + 128), vload(scores + 192)
    old = load_f32(tile + MAXIMA + 64 * n)
    new = max(old, max_lanes(maximum(maximum(s0, s1), maximum(s2, s3))))
    factor = exponential(splat(old - new))
    w0, w1 = exponential(s0 - splat(new)), exponential(s1 - splat(new))
    w2, w3 = exponential(s2 - splat(new)), exponential(s3 - splat(new))
    vstore(scores, w0)
    vstore(scores + 64, w1)
    vstore(scores + 128, w2)
    vstore(scores + 192, w3)
    store_f32(tile + MAXIMA + 64 * n, new)
    total = tile + TOTALS + 64 * n
    vstore(total, fma(vload(total), factor, splat(sum_lanes((w0 + w1) + (w2 + w3)))))
    return factor


# Values


@inlined
def _begin_sums(tile, sums, factors, first, second):
    """Vectors `first` and `second` of the outputs, times their queries' factors."""
    for n in range(QUERIES):
        outputs = tile + OUTPUTS + 4 * V_DIM_MAX * n
        factor = vload(factors + 64 * n)
        put_sum(sums, 2 * n, vload(outputs + 64 * first) * factor)
        put_sum(sums, 2 * n + 1, vload(outputs + 64 * second) * factor)


@inlined
def _end_sums(tile, sums, first, second):
    for n in range(QUERIES):
        outputs = tile + OUTPUTS + 4 * V_DIM_MAX * n
        vstore(outputs + 64 * second, get_sum(sums, 2 * n + 1))
        vstore(outputs + 64 * first, get_sum(sums, 2 * n))


@inlined
def _add_halves(tile, values, v_dim, first_key, n_keys, factors):
    """outputs = outputs * factor + weights @ values, two vectors of dimensions at a time (the last may be alone)."""
    n_vectors = v_dim // 16
    sums = new_sums()
    for i in range(0, n_vectors, 2):
        second = min(i + 1, n_vectors - 1)
        _begin_sums(tile, sums, factors, i, second)
        base = values + 2 * v_dim * first_key
        for t in range(n_keys):
            low, high = vload_f16(base + 32 * i), vload_f16(base + 32 * second)
            base += 2 * v_dim
            for n in range(QUERIES):
                weight = splat(load_f32(tile + SCORES + 4 * (KEY_BLOCK * n + t)))
                put_sum(sums, 2 * n, fma(weight, low, get_sum(sums, 2 * n)))
                put_sum(sums, 2 * n + 1, fma(weight, high, get_sum(sums, 2 * n + 1)))
        _end_sums(tile, sums, i, second)


@inlined
def _add_codes(tile, values, v_dim, first_key, n_keys, factors):
    """The same of coded values, whose scales go into the weights."""
    sums = new_sums()
    first_tile = values + first_key // KEY_TILE * _CODED * v_dim
    for b in range(v_dim // BLOCK):
        for part in range((n_keys + KEY_TILE - 1) // KEY_TILE):
            scales = vload_f16(first_tile + (_CODED * part + KEY_TILE) * v_dim + 32 * b)
            for n in range(QUERIES):
                at = 4 * (KEY_BLOCK * n + KEY_TILE * part)
                vstore(tile + _SCALED + at, vload(tile + SCORES + at) * scales)
        _begin_sums(tile, sums, factors, 2 * b, 2 * b + 1)
        for t in range(n_keys):
            at = first_tile + (_CODED * (t // KEY_TILE) + t % KEY_TILE) * v_dim + BLOCK * b
            low, high = vload_i8_f32(at), vload_i8_f32(at + 16)
            for n in range(QUERIES):
                weight = splat(load_f32(tile + _SCALED + 4 * (KEY_BLOCK * n + t)))
                put_sum(sums, 2 * n, fma(weight, low, get_sum(sums, 2 * n)))
                put_sum(sums, 2 * n + 1, fma(weight, high, get_sum(sums, 2 * n + 1)))
        _end_sums(tile, sums, 2 * b, 2 * b + 1)


# By format: how queries are prepared and keys scored; how values are added.
KEY_FORMATS = {
    "f16": (_keep_queries, _make_score_block(_score_halves, CACHE_TILE_BYTES["f16"])),
    "q8_0": (_code_queries, _make_score_block(_score_codes, CACHE_TILE_BYTES["q8_0"])),
}
VALUE_FORMATS = {"f16": _add_halves, "q8_0": _add_codes}
