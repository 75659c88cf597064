"""The types whose codes name points of eight values of three magnitudes, beside their signs: IQ2_XXS, IQ2_XS, IQ2_S.

A code is a magnitude's number, above it the sign; IQ2_S is read as IQ2_XS.
"""

from __future__ import annotations

import numpy as np

from phobos.gguf.quants import GGMLType
from phobos.kernels.cpu.code.access import load_u8, load_u16, load_u32, store_u8, vload_f16, vload_u8_f32
from phobos.kernels.cpu.code.simd import inlined, make_lookup, splat
from phobos.kernels.cpu.code.types.levels import (
    make_third_bit,
    make_two_bits,
    put_odd_scales,
    spread_signs,
    with_even_sign,
)
from phobos.kernels.cpu.code.types.record import Format, put_half, third_bit, two_bits
from phobos.kernels.cpu.packed_types import PACKED

_IQ2_XXS = PACKED[GGMLType.IQ2_XXS]
_IQ2_XXS_HIGH, _IQ2_XXS_SCALES, _IQ2_XXS_SCALE, _IQ2_XXS_CODES = _IQ2_XXS.places("high", "scales", "scale", "codes")
_IQ2_XS = PACKED[GGMLType.IQ2_XS]
_IQ2_XS_HIGH, _IQ2_XS_SCALES, _IQ2_XS_SCALE, _IQ2_XS_CODES = _IQ2_XS.places("high", "scales", "scale", "codes")

_LEVELS = (8, 25, 43)
_entry = make_lookup((*(43 + v for v in _LEVELS), 0, *(43 - v for v in _LEVELS), *(0,) * 9))


@inlined
def _iq2_xxs_levels(source, table, n):
    block, g = source + 2 + 8 * (n // 8), n % 8 // 2
    signs = with_even_sign(load_u32(block + 4) >> (7 * g) & 127)
    return load_u32(table + 8 * load_u8(block + g) + 4 * (n % 2)) | spread_signs(signs, n) << 2


_put_iq2_xxs, _third_iq2_xxs = make_two_bits(_iq2_xxs_levels), make_third_bit(_iq2_xxs_levels)


@inlined
def _pack_iq2_xxs(out, source, table, lane):
    _put_iq2_xxs(out + _IQ2_XXS_CODES, source, table, lane)
    _third_iq2_xxs(out + _IQ2_XXS_HIGH, source, table, lane)
    for b in range(8):
        store_u8(out + _IQ2_XXS_SCALES + 16 * b + lane, 2 * (load_u8(source + 9 + 8 * b) >> 4) + 1)
    put_half(out + _IQ2_XXS_SCALE, source, lane)


@inlined
def _iq2_xxs_codes(w, b, j):
    block, word = 2 * b + j // 4, j % 4
    return _entry(two_bits(w + _IQ2_XXS_CODES, block, word) | third_bit(w + _IQ2_XXS_HIGH, block, word))


@inlined
def _iq2_xxs_scale(w, b):
    return vload_f16(w + _IQ2_XXS_SCALE) * vload_u8_f32(w + _IQ2_XXS_SCALES + b * 16) * splat(np.float32(0.125))


@inlined
def _iq2_xxs_minimum(w, b):
    return splat(np.float32(-43)) * _iq2_xxs_scale(w, b)


@inlined
def _iq2_xs_levels(source, table, n):
    point = load_u16(source + 2 + 2 * (n // 2))
    return load_u32(table + 8 * (point & 511) + 4 * (n % 2)) | spread_signs(with_even_sign(point >> 9), n) << 2


_put_iq2_xs, _third_iq2_xs = make_two_bits(_iq2_xs_levels), make_third_bit(_iq2_xs_levels)


@inlined
def _pack_iq2_xs(out, source, table, lane):
    _put_iq2_xs(out + _IQ2_XS_CODES, source, table, lane)
    _third_iq2_xs(out + _IQ2_XS_HIGH, source, table, lane)
    put_odd_scales(out + _IQ2_XS_SCALES, source + 66, lane, 16)
    put_half(out + _IQ2_XS_SCALE, source, lane)


@inlined
def _iq2_xs_codes(w, b, j):
    return _entry(two_bits(w + _IQ2_XS_CODES, b, j) | third_bit(w + _IQ2_XS_HIGH, b, j))


@inlined
def _iq2_xs_scale(w, b):
    return vload_f16(w + _IQ2_XS_SCALE) * vload_u8_f32(w + _IQ2_XS_SCALES + b * 16) * splat(np.float32(0.125))


@inlined
def _iq2_xs_minimum(w, b):
    return splat(np.float32(-43)) * _iq2_xs_scale(w, b)


@inlined
def _iq2_s_levels(source, table, n):
    g = n // 2
    high = load_u8(source + 66 + g // 4) >> (2 * (g % 4)) & 3
    point = load_u32(table + 8 * (load_u8(source + 2 + g) | high << 8) + 4 * (n % 2))
    return point | spread_signs(load_u8(source + 34 + g), n) << 2


_put_iq2_s, _third_iq2_s = make_two_bits(_iq2_s_levels), make_third_bit(_iq2_s_levels)


@inlined
def _pack_iq2_s(out, source, table, lane):
    _put_iq2_s(out + _IQ2_XS_CODES, source, table, lane)
    _third_iq2_s(out + _IQ2_XS_HIGH, source, table, lane)
    put_odd_scales(out + _IQ2_XS_SCALES, source + 74, lane, 16)
    put_half(out + _IQ2_XS_SCALE, source, lane)


FORMATS = {
    "iq2_xxs": Format(_IQ2_XXS, _iq2_xxs_codes, _iq2_xxs_scale, _iq2_xxs_minimum),
    "iq2_xs": Format(_IQ2_XS, _iq2_xs_codes, _iq2_xs_scale, _iq2_xs_minimum),
}
PACKERS = {"iq2_xxs": _pack_iq2_xxs, "iq2_xs": _pack_iq2_xs, "iq2_s": _pack_iq2_s}
