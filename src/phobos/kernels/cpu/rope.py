"""Rotary positions, per-head norms, and the store of keys and values into the cache.

Cache of a layer and slot: keys [n_kv_heads][n_ctx / 16][k_dim][16] halves, so that a vector holds one dimension of 16
keys; values [n_kv_heads][n_ctx][v_dim] halves.
"""

from __future__ import annotations

import numpy as np

from phobos.kernels.cpu.access import load_f32, load_i32, load_i64, store_f32, vload, vscatter_f16, vstore, vstore_f16
from phobos.kernels.cpu.compiler import Float, Int, kernel
from phobos.kernels.cpu.elementary import cosine_sine
from phobos.kernels.cpu.layout import KEY_TILE, Header
from phobos.kernels.cpu.norm import inverse_rms
from phobos.kernels.cpu.simd import inlined, splat

_POSITIONS, _SLOTS, _PLACES = 8 * Header.POSITIONS, 8 * Header.SLOTS, 8 * Header.PLACES


@kernel
def rope_table(
    out: Int, frequencies: Int, batch: Int, n_rows_at: Int, n_pairs: Int, magnitude: Float, thread, n_threads
):
    """Cosines, then sines, of position times frequency (float64 [n_pairs])."""
    n_rows = load_i64(n_rows_at)
    positions = load_i64(batch + _POSITIONS)
    stride = (8 * n_pairs + 63) // 64 * 64
    for item in range(n_rows * n_pairs * thread // n_threads, n_rows * n_pairs * (thread + 1) // n_threads):
        row, i = item // n_pairs, item % n_pairs
        frequency = np.float64(load_f32(frequencies + 8 * i)) + np.float64(load_f32(frequencies + 8 * i + 4))
        angle = load_i32(positions + 4 * row) * frequency
        cosine, sine = cosine_sine(angle)
        store_f32(out + stride * row + 4 * i, np.float32(cosine) * magnitude)
        store_f32(out + stride * row + 4 * (n_pairs + i), np.float32(sine) * magnitude)


@inlined
def _normalize(x, dim, weight, eps):
    """RMS norm of one head, in place."""
    factor = splat(inverse_rms(x, dim // 16, dim, eps))
    for i in range(dim // 16):
        vstore(x + 64 * i, vload(x + 64 * i) * factor * vload(weight + 64 * i))


@inlined
def _rotate(x, table, n_pairs, step, span):
    """Rotate pairs (x[step * i], x[step * i + span]) in place."""
    for i in range(n_pairs):
        cosine, sine = load_f32(table + 4 * i), load_f32(table + 4 * (n_pairs + i))
        low, high = x + 4 * step * i, x + 4 * (step * i + span)
        a, b = load_f32(low), load_f32(high)
        store_f32(low, a * cosine - b * sine)
        store_f32(high, a * sine + b * cosine)


@kernel
def rotate_store(
    q: Int, k: Int, v: Int, table: Int, keys: Int, values: Int, key_slot_bytes: Int, value_slot_bytes: Int, batch: Int,
    n_rows_at: Int, n_heads: Int, n_kv_heads: Int, k_dim: Int, v_dim: Int, n_pairs: Int, is_neox: Int, q_norm: Int,
    k_norm: Int, eps: Float, thread, n_threads,
):  # fmt: skip
    """One head of one row at a time: norm, rotate, and for key heads store key and value."""
    n_rows = load_i64(n_rows_at)
    places, slots = load_i64(batch + _PLACES), load_i64(batch + _SLOTS)
    table_stride = (8 * n_pairs + 63) // 64 * 64
    step, span = (1, n_pairs) if is_neox != 0 else (2, 1)
    n_items = n_rows * (n_heads + n_kv_heads)
    for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
        row, head = item // (n_heads + n_kv_heads), item % (n_heads + n_kv_heads)
        angles = table + table_stride * row
        if head < n_heads:
            x = q + 4 * k_dim * (n_heads * row + head)
            if q_norm != 0:
                _normalize(x, k_dim, q_norm, eps)
            if n_pairs > 0:
                _rotate(x, angles, n_pairs, step, span)
        else:
            head -= n_heads
            x = k + 4 * k_dim * (n_kv_heads * row + head)
            if k_norm != 0:
                _normalize(x, k_dim, k_norm, eps)
            if n_pairs > 0:
                _rotate(x, angles, n_pairs, step, span)
            place, slot = load_i32(places + 4 * row), load_i32(slots + 4 * row)
            at = keys + slot * key_slot_bytes + head * (key_slot_bytes // n_kv_heads)
            at += 2 * (place // KEY_TILE * KEY_TILE * k_dim + place % KEY_TILE)
            for i in range(k_dim // 16):
                vscatter_f16(at + i * 32 * KEY_TILE, 2 * KEY_TILE, vload(x + 64 * i))
            source = v + 4 * v_dim * (n_kv_heads * row + head)
            at = values + slot * value_slot_bytes + head * (value_slot_bytes // n_kv_heads) + 2 * v_dim * place
            for i in range(v_dim // 16):
                vstore_f16(at + 32 * i, vload(source + 64 * i))
