"""The types whose codes name points of four values of eight magnitudes, beside their signs: IQ3_XXS, IQ3_S."""

from __future__ import annotations

import numpy as np

from phobos.gguf.quants import GGMLType
from phobos.kernels.cpu.code.access import load_u8, load_u32, store_u8, vload_f16, vload_u8_f32
from phobos.kernels.cpu.code.simd import inlined, make_lookup, splat
from phobos.kernels.cpu.code.types.levels import make_four_bits, put_odd_scales, spread_signs, with_even_sign
from phobos.kernels.cpu.code.types.record import Format, paired_nibbles, put_half
from phobos.kernels.cpu.packed_types import PACKED

_IQ3_XXS = PACKED[GGMLType.IQ3_XXS]
_IQ3_XXS_SCALES, _IQ3_XXS_SCALE, _IQ3_XXS_CODES = _IQ3_XXS.places("scales", "scale", "codes")
_IQ3_S = PACKED[GGMLType.IQ3_S]
_IQ3_S_SCALES, _IQ3_S_SCALE, _IQ3_S_CODES = _IQ3_S.places("scales", "scale", "codes")

_LEVELS = (4, 12, 20, 28, 36, 44, 52, 62)  # of IQ3_XXS: a code is a magnitude's number, above it the sign
_entry = make_lookup((*(62 + v for v in _LEVELS), *(62 - v for v in _LEVELS)))


@inlined
def _iq3_xxs_levels(source, table, n):
    signs = with_even_sign(load_u32(source + 66 + 4 * (n // 8)) >> (7 * (n % 8 // 2)) & 127)
    return load_u32(table + 4 * load_u8(source + 2 + n)) | spread_signs(signs, n) << 3


_put_iq3_xxs = make_four_bits(_iq3_xxs_levels)


@inlined
def _pack_iq3_xxs(out, source, table, lane):
    _put_iq3_xxs(out + _IQ3_XXS_CODES, source, table, lane)
    for b in range(8):
        store_u8(out + _IQ3_XXS_SCALES + 16 * b + lane, 2 * (load_u8(source + 69 + 4 * b) >> 4) + 1)
    put_half(out + _IQ3_XXS_SCALE, source, lane)


@inlined
def _iq3_xxs_codes(w, b, j):
    return _entry(paired_nibbles(w + _IQ3_XXS_CODES, b, j))


@inlined
def _iq3_xxs_scale(w, b):
    return vload_f16(w + _IQ3_XXS_SCALE) * vload_u8_f32(w + _IQ3_XXS_SCALES + b * 16) * splat(np.float32(0.25))


@inlined
def _iq3_xxs_minimum(w, b):
    return splat(np.float32(-62)) * _iq3_xxs_scale(w, b)


@inlined
def _iq3_s_levels(source, table, n):
    """Magnitude m and its sign as one number: 8 + m, or 7 - m, which is all its bits turned."""
    high = load_u8(source + 66 + n // 8) >> (n % 8) & 1
    point = load_u32(table + 4 * (load_u8(source + 2 + n) | high << 8))
    return (point | 0x08080808) ^ 15 * spread_signs(load_u8(source + 74 + n // 2), n)


_put_iq3_s = make_four_bits(_iq3_s_levels)


@inlined
def _pack_iq3_s(out, source, table, lane):
    _put_iq3_s(out + _IQ3_S_CODES, source, table, lane)
    put_odd_scales(out + _IQ3_S_SCALES, source + 106, lane, 8)
    put_half(out + _IQ3_S_SCALE, source, lane)


@inlined
def _iq3_s_codes(w, b, j):
    return paired_nibbles(w + _IQ3_S_CODES, b, j)


@inlined
def _iq3_s_scale(w, b):
    """Levels are odd numbers from -15 to 15, two apart."""
    return vload_f16(w + _IQ3_S_SCALE) * vload_u8_f32(w + _IQ3_S_SCALES + b * 16) * splat(np.float32(2))


@inlined
def _iq3_s_minimum(w, b):
    return splat(np.float32(-7.5)) * _iq3_s_scale(w, b)


FORMATS = {
    "iq3_xxs": Format(_IQ3_XXS, _iq3_xxs_codes, _iq3_xxs_scale, _iq3_xxs_minimum),
    "iq3_s": Format(_IQ3_S, _iq3_s_codes, _iq3_s_scale, _iq3_s_minimum),
}
PACKERS = {"iq3_xxs": _pack_iq3_xxs, "iq3_s": _pack_iq3_s}
