"""Rotary positions, and keys and values into the cache."""

from __future__ import annotations

import numpy as np
from numba import cuda

from phobos.kernels.cuda.compiler import Float, Int, kernel
from phobos.kernels.cuda.elementary import cosine_sine
from phobos.kernels.cuda.intrinsics import device, load_f32, load_i32, store_f16, store_f32
from phobos.kernels.cuda.layout import KEY_TILE, THREADS, WARP
from phobos.kernels.cuda.norm import inverse_rms_of_head


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
def key_address(head_keys, k_dim, position, d):
    """Where dimension d of a cached key lies; see `layout.py`."""
    tile = (position // KEY_TILE) * (k_dim // 8) + d // 8
    return head_keys + 2 * (8 * (KEY_TILE * tile + position % KEY_TILE) + d % 8)


@device
def _ready(at, i, factor, norm):
    """A head's value, normed where there is a norm."""
    value = load_f32(at + 4 * i)
    return value * factor * load_f32(norm + 4 * i) if norm != 0 else value


@device
def _put(at, keys, k_dim, position, d, value):
    store_f32(at + 4 * d, value)
    if keys != 0:
        store_f16(key_address(keys, k_dim, position, d), value)


@kernel(THREADS)
def rotate_store(
    q: Int, k: Int, v: Int, table: Int, keys: Int, values: Int, key_slot: Int, value_slot: Int, key_head: Int,
    value_head: Int, places: Int, slots: Int, n_rows_at: Int, n_heads: Int, n_kv_heads: Int, k_dim: Int, v_dim: Int,
    n_pairs: Int, is_neox: Int, q_norm: Int, k_norm: Int, eps: Float,
):  # fmt: skip
    """A warp a head: heads of queries, then of keys, then of values. Grid: x by 4 heads, y by row. `keys` and `values`
    are slot 0's; from slot to slot and head to head there are so many bytes. `places` are where
    keys and values go."""
    head, row = cuda.blockIdx.x * (THREADS // WARP) + (cuda.threadIdx.x >> 5), cuda.blockIdx.y
    if row >= load_i32(n_rows_at) or head >= n_heads + 2 * n_kv_heads:
        return
    lane = cuda.threadIdx.x & 31
    place, slot = load_i32(places + 4 * row), load_i32(slots + 4 * row)
    if head >= n_heads + n_kv_heads:
        h = head - n_heads - n_kv_heads
        source = v + 4 * v_dim * (row * n_kv_heads + h)
        target = values + value_slot * slot + value_head * h + 2 * v_dim * place
        for i in range(lane, v_dim, WARP):
            store_f16(target + 2 * i, load_f32(source + 4 * i))
        return
    if head < n_heads:
        at, norm, head_keys = q + 4 * k_dim * (row * n_heads + head), q_norm, 0
    else:
        h = head - n_heads
        at, norm = k + 4 * k_dim * (row * n_kv_heads + h), k_norm
        head_keys = keys + key_slot * slot + key_head * h
    factor = np.float32(1)
    if norm != 0:
        factor = inverse_rms_of_head(at, k_dim, eps)
    cuda.syncwarp()
    turns = table + 8 * n_pairs * row
    for i in range(lane, n_pairs, WARP):
        first = i if is_neox != 0 else 2 * i
        second = i + n_pairs if is_neox != 0 else 2 * i + 1
        a, b = _ready(at, first, factor, norm), _ready(at, second, factor, norm)
        cosine, sine = load_f32(turns + 4 * i), load_f32(turns + 4 * (n_pairs + i))
        _put(at, head_keys, k_dim, place, first, a * cosine - b * sine)
        _put(at, head_keys, k_dim, place, second, a * sine + b * cosine)
    for i in range(2 * n_pairs + lane, k_dim, WARP):
        _put(at, head_keys, k_dim, place, i, _ready(at, i, factor, norm))
