"""Queries of a warp against a tile of keys, for each format of the cache (laid out as `layout.py` says).

A key a lane; a query's score is summed over the dimensions in order, so that it is the same whichever queries come with
it. Coded keys meet queries coded in the same blocks of 32 dimensions, but in 16 bits, kept as two bytes: a block's
product is one exact integer, and queries add no error to that of the keys. Coded values have their scales multiplied
into the softmax's weights.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import cuda, int32, uint32

from phobos.kernels.cuda.code.intrinsics import (
    device,
    dot4_signed,
    half_to_float,
    load_shared_word,
    load_shared_words,
    load_u16,
    load_u32,
    make_shared_memory,
    read_floats,
    read_shared_words,
    round_to_int,
    store_shared_two_floats,
    store_shared_word,
    word_as_float,
)
from phobos.kernels.cuda.layout import BLOCK, CODED_K_DIM_MAX, KEY_TILE, QUERIES, WARP

_EVERYONE = 0xFFFFFFFF
_ZERO = np.float32(0)
_S = np.uint32(16)
_QUERY_MAX = np.float32(127 * 256)  # of a query's code: its high byte stays within the range of a byte
_CODE_BYTES = 2 * BLOCK  # of a block of a coded query: high bytes, then low ones
_ONE_BYTE = np.int64(255)


class Keys(NamedTuple):
    """How keys of a format are met by a warp's queries, `n_queries` of them.

    `new_queries()` gives shared memory for what `prepare(memory, q, k_dim)` makes of the queries at the addresses `q`;
    `score(scores, memory, q, tile, k_dim)` sets their products with a lane's key of the tile at that address.
    """

    new_queries: Any
    prepare: Any
    score: Any


def make_half_keys(n_queries: int) -> Keys:
    """Halves are met by queries as they are."""

    @device
    def new_queries():
        return 0

    @device
    def prepare(memory, q, k_dim):
        pass

    @device
    def score(scores, memory, q, tile, k_dim):
        key = tile + 16 * (cuda.threadIdx.x & 31)
        for m in range(n_queries):
            scores[m] = _ZERO
        for d in range(0, k_dim, 8):
            w0, w1, w2, w3 = read_shared_words(key + 2 * KEY_TILE * d)
            k0, k1, k2, k3 = half_to_float(w0), half_to_float(w0 >> _S), half_to_float(w1), half_to_float(w1 >> _S)
            k4, k5, k6, k7 = half_to_float(w2), half_to_float(w2 >> _S), half_to_float(w3), half_to_float(w3 >> _S)
            for m in range(n_queries):
                a, b, c, e = read_floats(q[m] + 4 * d)
                total = cuda.fma(k3, e, cuda.fma(k2, c, cuda.fma(k1, b, cuda.fma(k0, a, scores[m]))))
                a, b, c, e = read_floats(q[m] + 4 * d + 16)
                scores[m] = cuda.fma(k7, e, cuda.fma(k6, c, cuda.fma(k5, b, cuda.fma(k4, a, total))))

    return Keys(new_queries, prepare, score)


@device
def _high_byte(code):
    return (code + 128) >> 8


@device
def _pack(a, b, c, d):
    """Four bytes as a word."""
    return uint32((a & _ONE_BYTE) | (b & _ONE_BYTE) << 8 | (c & _ONE_BYTE) << 16 | (d & _ONE_BYTE) << 24)


def make_coded_keys(n_queries: int) -> Keys:
    """Queries are quantized too; a code is 256 times its high byte plus its low one."""
    n_blocks = CODED_K_DIM_MAX // BLOCK
    scales_at = _CODE_BYTES * n_blocks  # behind a query's codes
    query_bytes = scales_at + 16 * (n_blocks // 2)
    new_queries = make_shared_memory(QUERIES * n_queries * query_bytes)

    @device
    def prepare(memory, q, k_dim):
        """Four dimensions a lane, so that eight lanes have a block."""
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        for m in range(n_queries):
            query = memory + query_bytes * (n_queries * warp + m)
            for first in range(0, k_dim, 4 * WARP):
                d = first + 4 * lane
                a, b, c, e = _ZERO, _ZERO, _ZERO, _ZERO
                if d < k_dim:
                    a, b, c, e = read_floats(q[m] + 4 * d)
                largest = max(abs(a), abs(b), abs(c), abs(e))
                for step in (4, 2, 1):
                    largest = max(largest, cuda.shfl_xor_sync(_EVERYONE, largest, step))
                inverse = _QUERY_MAX / largest if largest > _ZERO else _ZERO
                if d < k_dim:
                    w, x = np.int64(round_to_int(a * inverse)), np.int64(round_to_int(b * inverse))
                    y, z = np.int64(round_to_int(c * inverse)), np.int64(round_to_int(e * inverse))
                    at = query + _CODE_BYTES * (d // BLOCK) + d % BLOCK
                    store_shared_word(at, _pack(_high_byte(w), _high_byte(x), _high_byte(y), _high_byte(z)))
                    store_shared_word(at + BLOCK, _pack(w, x, y, z))
                    if d % BLOCK == 0:
                        store_shared_two_floats(query + scales_at + 8 * (d // BLOCK), largest / _QUERY_MAX, _ZERO)
        cuda.syncwarp()

    @device
    def score(scores, memory, q, tile, k_dim):
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        for m in range(n_queries):
            scores[m] = _ZERO
        for b in range(k_dim // BLOCK):
            key = tile + KEY_TILE * BLOCK * b + 16 * lane
            w0, w1, w2, w3 = read_shared_words(key)
            w4, w5, w6, w7 = read_shared_words(key + 16 * KEY_TILE)
            scale = half_to_float(load_u16(tile + KEY_TILE * k_dim + 2 * (KEY_TILE * b + lane)))
            for m in range(n_queries):
                query = memory + query_bytes * (n_queries * warp + m)
                at = query + _CODE_BYTES * b
                a, c, e, f = load_shared_words(at)
                dot = dot4_signed(dot4_signed(dot4_signed(dot4_signed(int32(0), w0, a), w1, c), w2, e), w3, f)
                a, c, e, f = load_shared_words(at + 16)
                dot = dot4_signed(dot4_signed(dot4_signed(dot4_signed(dot, w4, a), w5, c), w6, e), w7, f)
                dot = int32(dot * 256)
                a, c, e, f = load_shared_words(at + BLOCK)
                dot = dot4_signed(dot4_signed(dot4_signed(dot4_signed(dot, w0, a), w1, c), w2, e), w3, f)
                a, c, e, f = load_shared_words(at + BLOCK + 16)
                dot = dot4_signed(dot4_signed(dot4_signed(dot4_signed(dot, w4, a), w5, c), w6, e), w7, f)
                query_scale = word_as_float(load_shared_word(query + scales_at + 8 * b))
                scores[m] = cuda.fma(np.float32(dot), scale * query_scale, scores[m])

    return Keys(new_queries, prepare, score)


# Values: `load(tile, v_dim, t, d)` gives the scale of position t of a tile for dimensions d and d + 1, and what it is
# multiplied with.


@device
def _load_halves(tile, v_dim, t, d):
    both = load_u32(tile + 2 * (v_dim * t + d))
    return np.float32(1), half_to_float(both), half_to_float(both >> _S)


@device
def _load_codes(tile, v_dim, t, d):
    scale = half_to_float(load_u16(tile + KEY_TILE * v_dim + 2 * (KEY_TILE * (d // BLOCK) + t)))
    both = load_u16(tile + v_dim * t + d)
    a, b = int32(((both & _ONE_BYTE) ^ 128) - 128), int32(((both >> np.uint32(8)) ^ 128) - 128)
    return scale, np.float32(a), np.float32(b)


# By format: makers of `Keys`; how values are loaded.
KEY_FORMATS = {"f16": make_half_keys, "q8_0": make_coded_keys}
VALUE_FORMATS = {"f16": _load_halves, "q8_0": _load_codes}
