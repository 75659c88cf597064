"""The types whose codes stand for entries of a table, shifted here so that the least is not below zero: IQ4_NL, IQ4_XS,
MXFP4, NVFP4."""

from __future__ import annotations

import numpy as np

from phobos.gguf.quants import GGMLType
from phobos.kernels.cpu.code.access import load_u8, load_u16, store_u8, vload_f16, vload_i8_f32, vload_u8, vload_u8_i32
from phobos.kernels.cpu.code.simd import as_float, inlined, low_bits, make_lookup, shift_left, shift_words_right, splat
from phobos.kernels.cpu.code.types.record import Format, nibbles, put_half, put_words
from phobos.kernels.cpu.packed_types import PACKED

_IQ4_NL = PACKED[GGMLType.IQ4_NL]
(_IQ4_NL_SCALE,) = _IQ4_NL.places("scale")
_IQ4_XS = PACKED[GGMLType.IQ4_XS]
_IQ4_XS_SCALES, _IQ4_XS_SCALE, _IQ4_XS_CODES = _IQ4_XS.places("scales", "scale", "codes")
_MXFP4 = PACKED[GGMLType.MXFP4]
(_MXFP4_EXPONENT,) = _MXFP4.places("exponent")
_NVFP4 = PACKED[GGMLType.NVFP4]
(_NVFP4_SCALES,) = _NVFP4.places("scales")

_IQ4_NL_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
_iq4_nl_entry = make_lookup(tuple(value + 128 for value in _IQ4_NL_VALUES))
_mxfp4_entry = make_lookup(tuple(value + 12 for value in _MXFP4_VALUES))


@inlined
def _pack_iq4_nl(out, source, table, lane):
    put_words(out, source + 2, lane, 4)
    put_half(out + _IQ4_NL_SCALE, source, lane)


@inlined
def _iq4_nl_codes(w, b, j):
    return _iq4_nl_entry(nibbles(w, j))


@inlined
def _iq4_nl_scale(w, b):
    return vload_f16(w + _IQ4_NL_SCALE)


@inlined
def _iq4_nl_minimum(w, b):
    return splat(np.float32(-128)) * vload_f16(w + _IQ4_NL_SCALE)


@inlined
def _pack_iq4_xs(out, source, table, lane):
    put_words(out + _IQ4_XS_CODES, source + 8, lane, 32)
    for b in range(8):
        low = load_u8(source + 4 + b // 2) >> (4 * (b % 2)) & 15
        high = load_u16(source + 2) >> (2 * b) & 3
        store_u8(out + _IQ4_XS_SCALES + 16 * b + lane, (low | high << 4) - 32)
    put_half(out + _IQ4_XS_SCALE, source, lane)


@inlined
def _iq4_xs_codes(w, b, j):
    return _iq4_nl_entry(nibbles(w + _IQ4_XS_CODES + b * 256, j))


@inlined
def _iq4_xs_scale(w, b):
    return vload_f16(w + _IQ4_XS_SCALE) * vload_i8_f32(w + _IQ4_XS_SCALES + b * 16)


@inlined
def _iq4_xs_minimum(w, b):
    return splat(np.float32(-128)) * _iq4_xs_scale(w, b)


@inlined
def _pack_mxfp4(out, source, table, lane):
    put_words(out, source + 1, lane, 4)
    store_u8(out + _MXFP4_EXPONENT + lane, load_u8(source))


@inlined
def _mxfp4_codes(w, b, j):
    return _mxfp4_entry(nibbles(w, j))


@inlined
def _mxfp4_scale(w, b):
    """2 ** (byte - 128): the byte is a float's exponent."""
    return as_float(shift_left(vload_u8_i32(w + _MXFP4_EXPONENT), np.int32(23))) * splat(np.float32(0.5))


@inlined
def _mxfp4_minimum(w, b):
    return splat(np.float32(-12)) * _mxfp4_scale(w, b)


@inlined
def _pack_nvfp4(out, source, table, lane):
    put_words(out, source + 4, lane, 8)
    for b in range(4):  # the sign is ignored, and the code of NaN counts as zero
        scale = load_u8(source + b)
        store_u8(out + _NVFP4_SCALES + 16 * b + lane, scale & 127 if scale != 127 else 0)


@inlined
def _nvfp4_codes(w, b, j):
    return _mxfp4_entry(low_bits(shift_words_right(vload_u8(w + (2 * b + j % 2) * 64), 4 * (j // 2)), 15))


@inlined
def _nvfp4_scale(w, b):
    """Exponent and mantissa (four bits, three) put where a float has them, rebased, halved: values are doubled."""
    return as_float(shift_left(vload_u8_i32(w + _NVFP4_SCALES + 16 * b), np.int32(20))) * splat(np.float32(2.0**119))


@inlined
def _nvfp4_minimum(w, b):
    return splat(np.float32(-12)) * _nvfp4_scale(w, b)


FORMATS = {
    "iq4_nl": Format(_IQ4_NL, _iq4_nl_codes, _iq4_nl_scale, _iq4_nl_minimum),
    "iq4_xs": Format(_IQ4_XS, _iq4_xs_codes, _iq4_xs_scale, _iq4_xs_minimum),
    "mxfp4": Format(_MXFP4, _mxfp4_codes, _mxfp4_scale, _mxfp4_minimum),
    "nvfp4": Format(_NVFP4, _nvfp4_codes, _nvfp4_scale, _nvfp4_minimum),
}
PACKERS = {"iq4_nl": _pack_iq4_nl, "iq4_xs": _pack_iq4_xs, "mxfp4": _pack_mxfp4, "nvfp4": _pack_nvfp4}
