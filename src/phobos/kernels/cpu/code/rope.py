"""Rotary positions, per-head norms, and the store of keys and values into the cache (laid out as `attention_tile.py`
says), as halves or as codes.
"""

from __future__ import annotations

import numpy as np

from phobos.kernels.cpu.code.access import (
    load_f32,
    load_i32,
    load_i64,
    load_u32,
    store_f16,
    store_f32,
    store_u32,
    vload,
    vscatter_f16,
    vstore,
    vstore_f16,
)
from phobos.kernels.cpu.code.elementary import cosine_sine
from phobos.kernels.cpu.code.norm import CODE_MAX, inverse_rms, quantize_values
from phobos.kernels.cpu.code.simd import inlined, splat, store_narrow_i8
from phobos.kernels.cpu.declaration import Float, Int, Kernel, kernel
from phobos.kernels.cpu.layout import BLOCK, CACHE_TILE_BYTES, KEY_TILE, Header

_POSITIONS, _SLOTS, _PLACES = 8 * Header.POSITIONS, 8 * Header.SLOTS, 8 * Header.PLACES
_SCRATCH, _SCRATCH_BYTES = 8 * Header.SCRATCH, 8 * Header.SCRATCH_BYTES
_CODED = CACHE_TILE_BYTES["q8_0"]


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


@inlined
def _store_key_halves(head, x, dim, place, spare):
    """A key into its head's part of the cache."""
    at = head + 2 * (place // KEY_TILE * KEY_TILE * dim + place % KEY_TILE)
    for i in range(dim // 16):
        vscatter_f16(at + i * 32 * KEY_TILE, 2 * KEY_TILE, vload(x + 64 * i))


@inlined
def _store_key_codes(head, x, dim, place, spare):
    """The same quantized; `spare` is 32 bytes to work in."""
    tile, lane = head + place // KEY_TILE * _CODED * dim, place % KEY_TILE
    for b in range(dim // BLOCK):
        scale, low, high = quantize_values(vload(x + 128 * b), vload(x + 128 * b + 64), CODE_MAX)
        store_narrow_i8(spare, low)
        store_narrow_i8(spare + 16, high)
        for j in range(BLOCK // 4):  # + 128 is a flip of the top bit
            store_u32(tile + 64 * (8 * b + j) + 4 * lane, load_u32(spare + 4 * j) ^ 0x80808080)
        store_f16(tile + KEY_TILE * dim + 32 * b + 2 * lane, scale)


@inlined
def _store_value_halves(head, v, dim, place):
    """A value into its head's part of the cache."""
    for i in range(dim // 16):
        vstore_f16(head + 2 * dim * place + 32 * i, vload(v + 64 * i))


@inlined
def _store_value_codes(head, v, dim, place):
    """The same quantized."""
    tile, row = head + place // KEY_TILE * _CODED * dim, place % KEY_TILE
    for b in range(dim // BLOCK):
        scale, low, high = quantize_values(vload(v + 128 * b), vload(v + 128 * b + 64), CODE_MAX)
        store_narrow_i8(tile + row * dim + BLOCK * b, low)
        store_narrow_i8(tile + row * dim + BLOCK * b + 16, high)
        store_f16(tile + KEY_TILE * dim + 32 * b + 2 * row, scale)


_STORE_KEY = {"f16": _store_key_halves, "q8_0": _store_key_codes}
_STORE_VALUE = {"f16": _store_value_halves, "q8_0": _store_value_codes}


def _make_rotate_store(k_format: str, v_format: str) -> Kernel:
    store_key, store_value = _STORE_KEY[k_format], _STORE_VALUE[v_format]

    def rotate_store(
        q: Int, k: Int, v: Int, table: Int, keys: Int, values: Int, key_slot_bytes: Int, value_slot_bytes: Int,
        batch: Int, n_rows_at: Int, n_heads: Int, n_kv_heads: Int, k_dim: Int, v_dim: Int, n_pairs: Int, is_neox: Int,
        q_norm: Int, k_norm: Int, eps: Float, thread, n_threads,
    ):  # fmt: skip
        """One head of one row at a time: norm, rotate, and for key heads store key and value."""
        n_rows = load_i64(n_rows_at)
        places, slots = load_i64(batch + _PLACES), load_i64(batch + _SLOTS)
        spare = load_i64(batch + _SCRATCH) + thread * load_i64(batch + _SCRATCH_BYTES)
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
                store_key(at, x, k_dim, place, spare)
                source = v + 4 * v_dim * (n_kv_heads * row + head)
                at = values + slot * value_slot_bytes + head * (value_slot_bytes // n_kv_heads)
                store_value(at, source, v_dim, place)

    rotate_store.__name__ = f"rotate_store_{k_format}_{v_format}"
    return kernel(rotate_store)


rotate_store_f16_f16 = _make_rotate_store("f16", "f16")
rotate_store_f16_q8_0 = _make_rotate_store("f16", "q8_0")
rotate_store_q8_0_f16 = _make_rotate_store("q8_0", "f16")
rotate_store_q8_0_q8_0 = _make_rotate_store("q8_0", "q8_0")
