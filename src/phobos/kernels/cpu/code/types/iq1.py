"""The types whose codes name points of eight values -1, 0 or 1, moved by an eighth: IQ1_S, IQ1_M."""

from __future__ import annotations

import numpy as np

from phobos.gguf.quants import GGMLType
from phobos.kernels.cpu.code.access import (
    load_u8,
    load_u16,
    load_u32,
    store_u8,
    store_u32,
    vload_f16,
    vload_u8,
    vload_u8_f32,
    vload_u8_i32,
)
from phobos.kernels.cpu.code.simd import (
    inlined,
    low_bits,
    shift_right,
    shift_words_left,
    splat,
    splat_i32,
    spread_bit,
    to_float,
)
from phobos.kernels.cpu.code.types.levels import make_two_bits
from phobos.kernels.cpu.code.types.record import Format, put_half, two_bits
from phobos.kernels.cpu.packed_types import PACKED

_IQ1_S = PACKED[GGMLType.IQ1_S]
_IQ1_S_SCALES, _IQ1_S_SCALE, _IQ1_S_CODES = _IQ1_S.places("scales", "scale", "codes")
_IQ1_M = PACKED[GGMLType.IQ1_M]
_IQ1_M_UP, _IQ1_M_SCALES, _IQ1_M_SCALE, _IQ1_M_CODES = _IQ1_M.places("up", "scales", "scale", "codes")


@inlined
def _iq1_s_levels(source, table, n):
    g = n // 2
    high = load_u16(source + 34 + 2 * (g // 4)) >> (3 * (g % 4)) & 7
    return load_u32(table + 8 * (load_u8(source + 2 + g) | high << 8) + 4 * (n % 2))


_put_iq1_s = make_two_bits(_iq1_s_levels)


@inlined
def _pack_iq1_s(out, source, table, lane):
    _put_iq1_s(out + _IQ1_S_CODES, source, table, lane)
    for b in range(8):
        high = load_u16(source + 34 + 2 * b)
        store_u8(out + _IQ1_S_SCALES + 16 * b + lane, 2 * (high >> 12 & 7) + 1 | high >> 15 << 4)
    put_half(out + _IQ1_S_SCALE, source, lane)


@inlined
def _iq1_s_codes(w, b, j):
    return two_bits(w + _IQ1_S_CODES, 2 * b + j // 4, j % 4)


@inlined
def _iq1_s_scale(w, b):
    return vload_f16(w + _IQ1_S_SCALE) * to_float(vload_u8_i32(w + _IQ1_S_SCALES + b * 16) & splat_i32(np.int32(15)))


@inlined
def _iq1_s_minimum(w, b):
    """Points are moved by an eighth: up, or down where bit 4 of the scale's byte is set."""
    down = to_float(shift_right(vload_u8_i32(w + _IQ1_S_SCALES + b * 16), np.int32(4)))
    return _iq1_s_scale(w, b) * (splat(np.float32(-0.875)) - splat(np.float32(0.25)) * down)


@inlined
def _iq1_m_levels(source, table, n):
    g = n // 2
    high = load_u8(source + 32 + g // 2) >> (4 * (g % 2)) & 7
    return load_u32(table + 8 * (load_u8(source + g) | high << 8) + 4 * (n % 2))


_put_iq1_m = make_two_bits(_iq1_m_levels)


@inlined
def _pack_iq1_m(out, source, table, lane):
    _put_iq1_m(out + _IQ1_M_CODES, source, table, lane)
    up = 0
    for g in range(32):
        up |= (load_u8(source + 32 + g // 2) >> (4 * (g % 2) + 3) & 1 ^ 1) << g
    store_u32(out + _IQ1_M_UP + 4 * lane, up)
    scale = 0
    for word in range(4):
        scales = load_u16(source + 48 + 2 * word)
        scale |= scales >> 12 << (4 * word)
        for b in range(4):
            store_u8(out + _IQ1_M_SCALES + 16 * (4 * word + b) + lane, 2 * (scales >> (3 * b) & 7) + 1)
    store_u8(out + _IQ1_M_SCALE + 2 * lane, scale & 255)
    store_u8(out + _IQ1_M_SCALE + 1 + 2 * lane, scale >> 8)


@inlined
def _iq1_m_codes(w, b, j):
    """In eighths, from the least: 8 a level, and 2 where the eight values are moved up."""
    up = low_bits(spread_bit(vload_u8(w + _IQ1_M_UP), 2 * b + j // 2), 2)
    return shift_words_left(two_bits(w + _IQ1_M_CODES, b, j), 3) | up


@inlined
def _iq1_m_scale(w, b):
    return vload_f16(w + _IQ1_M_SCALE) * vload_u8_f32(w + _IQ1_M_SCALES + b * 16) * splat(np.float32(0.125))


@inlined
def _iq1_m_minimum(w, b):
    return splat(np.float32(-9)) * _iq1_m_scale(w, b)


FORMATS = {
    "iq1_s": Format(_IQ1_S, _iq1_s_codes, _iq1_s_scale, _iq1_s_minimum),
    "iq1_m": Format(_IQ1_M, _iq1_m_codes, _iq1_m_scale, _iq1_m_minimum),
}
PACKERS = {"iq1_s": _pack_iq1_s, "iq1_m": _pack_iq1_m}
