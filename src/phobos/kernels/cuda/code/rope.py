"""Rotary positions, and keys and values into the cache (laid out as `layout.py` says), as halves or as codes."""

from __future__ import annotations

import numpy as np
from numba import cuda

from phobos.kernels.cuda.code.elementary import cosine_sine
from phobos.kernels.cuda.code.intrinsics import device, load_f32, load_i32, store_f16, store_f32, store_i8
from phobos.kernels.cuda.code.norm import code_warp, inverse_rms_of_head
from phobos.kernels.cuda.declaration import Float, Int, kernel
from phobos.kernels.cuda.layout import BLOCK, CACHE_TILE_BYTES, KEY_TILE, THREADS, WARP
from phobos.kernels.cuda.records import Rotation

_CODED = CACHE_TILE_BYTES["q8_0"]


@kernel(THREADS)
def rope_table(out: Int, frequencies: Int, positions: Int, n_rows_at: Int, n: Int, magnitude: Float):
    """`n` cosines, then sines a row. A frequency is two float32 whose sum is the float64. Grid: x by pair, y by row."""
    row, i = cuda.blockIdx.y, cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if row >= load_i32(n_rows_at) or i >= n:
        return
    frequency = np.float64(load_f32(frequencies + 8 * i)) + np.float64(load_f32(frequencies + 8 * i + 4))
    cosine, sine = cosine_sine(np.float64(load_i32(positions + 4 * row)) * frequency)
    at = out + 8 * n * row + 4 * i
    store_f32(at, np.float32(cosine) * magnitude)
    store_f32(at + 4 * n, np.float32(sine) * magnitude)


@device
def _store_key_halves(head_keys, source, k_dim, place):
    """A key, whose floats the warp has written to `source`, into its head's part of the cache."""
    at = head_keys + 2 * (place // KEY_TILE * KEY_TILE * k_dim + place % KEY_TILE * 8)
    for d in range(cuda.threadIdx.x & 31, k_dim, WARP):
        store_f16(at + 2 * (KEY_TILE * (d // 8 * 8) + d % 8), load_f32(source + 4 * d))


@device
def _store_key_codes(head_keys, source, k_dim, place):
    """The same quantized."""
    lane, row = cuda.threadIdx.x & 31, place % KEY_TILE
    tile = head_keys + place // KEY_TILE * _CODED * k_dim
    for b in range(k_dim // BLOCK):
        code, scale = code_warp(load_f32(source + 4 * (BLOCK * b + lane)))
        store_i8(tile + KEY_TILE * (BLOCK * b + lane // 16 * 16) + 16 * row + lane % 16, code)
        if lane == 0:
            store_f16(tile + KEY_TILE * k_dim + 2 * (KEY_TILE * b + row), scale)


@device
def _store_value_halves(head_values, source, v_dim, place):
    """A value into its head's part of the cache."""
    for d in range(cuda.threadIdx.x & 31, v_dim, WARP):
        store_f16(head_values + 2 * (v_dim * place + d), load_f32(source + 4 * d))


@device
def _store_value_codes(head_values, source, v_dim, place):
    """The same quantized."""
    lane, row = cuda.threadIdx.x & 31, place % KEY_TILE
    tile = head_values + place // KEY_TILE * _CODED * v_dim
    for b in range(v_dim // BLOCK):
        code, scale = code_warp(load_f32(source + 4 * (BLOCK * b + lane)))
        store_i8(tile + v_dim * row + BLOCK * b + lane, code)
        if lane == 0:
            store_f16(tile + KEY_TILE * v_dim + 2 * (KEY_TILE * b + row), scale)


@device
def _ready(at, i, factor, norm):
    """A head's value, normed where there is a norm."""
    value = load_f32(at + 4 * i)
    return value * factor * load_f32(norm + 4 * i) if norm != 0 else value


STORE_KEY = {"f16": _store_key_halves, "q8_0": _store_key_codes}
STORE_VALUE = {"f16": _store_value_halves, "q8_0": _store_value_codes}


def make_rotate_head(k_format: str, v_format: str):
    """`rotate_head(head, row, ...)`: what a warp does with one head of a row, see `rotate_store`."""
    store_key, store_value = STORE_KEY[k_format], STORE_VALUE[v_format]

    @device
    def rotate_head(head, row, q, k, v, rotation):
        n_heads, n_kv_heads, k_dim, v_dim = rotation.n_heads, rotation.n_kv_heads, rotation.k_dim, rotation.v_dim
        n_pairs, is_neox = rotation.n_pairs, rotation.is_neox
        lane = cuda.threadIdx.x & 31
        place, slot = load_i32(rotation.places + 4 * row), load_i32(rotation.slots + 4 * row)
        if head >= n_heads + n_kv_heads:
            h = head - n_heads - n_kv_heads
            head_values = rotation.values + rotation.value_slot * slot + rotation.value_head * h
            store_value(head_values, v + 4 * v_dim * (row * n_kv_heads + h), v_dim, place)
            return
        is_key = head >= n_heads
        h = head - n_heads if is_key else head
        at = k + 4 * k_dim * (row * n_kv_heads + h) if is_key else q + 4 * k_dim * (row * n_heads + h)
        norm = rotation.k_norm if is_key else rotation.q_norm
        factor = np.float32(1)
        if norm != 0:
            factor = inverse_rms_of_head(at, k_dim, rotation.eps)
        cuda.syncwarp()
        turns = rotation.table + 8 * n_pairs * row
        for i in range(lane, n_pairs, WARP):
            first = i if is_neox != 0 else 2 * i
            second = i + n_pairs if is_neox != 0 else 2 * i + 1
            a, b = _ready(at, first, factor, norm), _ready(at, second, factor, norm)
            cosine, sine = load_f32(turns + 4 * i), load_f32(turns + 4 * (n_pairs + i))
            store_f32(at + 4 * first, a * cosine - b * sine)
            store_f32(at + 4 * second, a * sine + b * cosine)
        for i in range(2 * n_pairs + lane, k_dim, WARP):
            store_f32(at + 4 * i, _ready(at, i, factor, norm))
        if is_key:
            cuda.syncwarp()
            store_key(rotation.keys + rotation.key_slot * slot + rotation.key_head * h, at, k_dim, place)

    return rotate_head


def _make_rotate_store(k_format, v_format):
    rotate_head = make_rotate_head(k_format, v_format)

    def rotate_store(q: Int, k: Int, v: Int, n_rows_at: Int, rotation: Rotation):
        """A warp a head: heads of queries, then of keys, then of values. Grid: x by 4 heads, y by row."""
        head, row = cuda.blockIdx.x * (THREADS // WARP) + (cuda.threadIdx.x >> 5), cuda.blockIdx.y
        if row < load_i32(n_rows_at) and head < rotation.n_heads + 2 * rotation.n_kv_heads:
            rotate_head(head, row, q, k, v, rotation)

    rotate_store.__name__ = f"rotate_store_{k_format}_{v_format}"
    return kernel(THREADS)(rotate_store)


for _k in STORE_KEY:
    for _v in STORE_VALUE:
        globals()[f"rotate_store_{_k}_{_v}"] = _make_rotate_store(_k, _v)
