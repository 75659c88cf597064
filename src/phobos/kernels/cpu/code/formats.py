"""How each packed weight type is read: unsigned codes, a scale and a minimum; weight = scale * code + minimum.

For a record at `w` of a group (see `layout.py`): `codes(w, b, j)` are the 64 codes of inputs 4j..4j+3 of block b, four
a lane; `scale(w, b)` and `minimum(w, b)` the block's, one a lane. Every function is the packed twin of
`gguf/quants.py`'s `dequantize`; the block indices are constants once loops are unrolled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from phobos.gguf.quants import GGMLType
from phobos.kernels.cpu.code.access import (
    vload,
    vload_bf16,
    vload_f16,
    vload_i8_f32,
    vload_u8,
    vload_u8_f32,
    vload_u8_i32,
)
from phobos.kernels.cpu.code.simd import (
    as_float,
    inlined,
    low_bits,
    make_lookup,
    shift_left,
    shift_right,
    shift_words_left,
    shift_words_right,
    splat,
    splat_i32,
    spread_bit,
    to_float,
)
from phobos.kernels.cpu.declaration import Kernel
from phobos.kernels.cpu.layout import PACKED, PackedType


class Format(NamedTuple):
    """The three readers of a packed type."""

    kind: PackedType
    codes: Any
    scale: Any
    minimum: Any


class FloatFormat(NamedTuple):
    """How 16 weights that are floats in memory are loaded, and the bytes of each."""

    load: Any
    bytes_each: int


@inlined
def _bits_at(v, source, target, mask):
    """The bits of every byte that `mask` covers once bit `source` has been moved to bit `target`."""
    if source > target:
        v = shift_words_right(v, source - target)
    elif source < target:
        v = shift_words_left(v, target - source)
    return low_bits(v, mask)


@inlined
def _nibbles(w, j):
    """Codes of a 32-value block: inputs 0..15 in the low halves of four vectors, 16..31 in the high halves."""
    return low_bits(shift_words_right(vload_u8(w + (j % 4) * 64), 4 * (j // 4)), 15)


@inlined
def _fifth_bit(h, j):
    """Bit 4 of inputs 4j..4j+3: bit j of each byte of the rearranged high-bit word."""
    return _bits_at(vload_u8(h), j, 4, 16)


@inlined
def _q4_codes(w, b, j):
    return _nibbles(w, j)


@inlined
def _q5_codes(w, b, j):
    return _nibbles(w, j) | _fifth_bit(w + 256, j)


@inlined
def _q8_0_codes(w, b, j):
    return vload_u8(w + j * 64)


@inlined
def _q4_scale(w, b):
    return vload_f16(w + 256)


@inlined
def _q5_scale(w, b):
    return vload_f16(w + 320)


@inlined
def _q8_0_scale(w, b):
    return vload_f16(w + 512)


@inlined
def _q4_0_minimum(w, b):
    return splat(np.float32(-8)) * vload_f16(w + 256)


@inlined
def _q4_1_minimum(w, b):
    return vload_f16(w + 288)


@inlined
def _q5_0_minimum(w, b):
    return splat(np.float32(-16)) * vload_f16(w + 320)


@inlined
def _q5_1_minimum(w, b):
    return vload_f16(w + 352)


@inlined
def _q8_0_minimum(w, b):
    return splat(np.float32(-128)) * vload_f16(w + 512)


@inlined
def _q4_k_codes(w, b, j):
    return low_bits(shift_words_right(vload_u8(w + (b // 2) * 512 + j * 64), 4 * (b % 2)), 15)


@inlined
def _q4_k_scale(w, b):
    return vload_f16(w + 2048) * vload_u8_f32(w + 2112 + b * 16)


@inlined
def _q4_k_minimum(w, b):
    return splat(np.float32(-1)) * vload_f16(w + 2080) * vload_u8_f32(w + 2240 + b * 16)


@inlined
def _q5_k_codes(w, b, j):
    return _q4_k_codes(w, b, j) | _bits_at(vload_u8(w + 2048 + j * 64), b, 4, 16)


@inlined
def _q5_k_scale(w, b):
    return vload_f16(w + 2560) * vload_u8_f32(w + 2624 + b * 16)


@inlined
def _q5_k_minimum(w, b):
    return splat(np.float32(-1)) * vload_f16(w + 2592) * vload_u8_f32(w + 2752 + b * 16)


@inlined
def _q6_k_codes(w, b, j):
    """Block b of 16: half b//8, quarter (b%8)//2 of it; quarters 0 and 1 are low nibbles, 2 and 3 high ones."""
    half, quarter, place = b // 8, (b % 8) // 2, (b % 2) * 4 + j
    low = vload_u8(w + half * 1024 + ((quarter % 2) * 8 + place) * 64)
    high = vload_u8(w + 2048 + half * 512 + place * 64)
    return _bits_at(low, 4 * (quarter // 2), 0, 15) | _bits_at(high, 2 * quarter, 4, 48)


@inlined
def _q6_k_scale(w, b):
    return vload_f16(w + 3328) * vload_i8_f32(w + 3072 + b * 16)


@inlined
def _q6_k_minimum(w, b):
    return splat(np.float32(-32)) * _q6_k_scale(w, b)


# Two bits a value, and three: blocks of 16, of which eight lie in 32 bytes, two bits apart.


@inlined
def _two_bits(w, b, j):
    """Block b of 16: half b//8, quarter (b%8)//2 of it, which is where its bits stand in a byte."""
    return low_bits(shift_words_right(vload_u8(w + (b // 8 * 8 + b % 2 * 4 + j) * 64), 2 * (b % 8 // 2)), 3)


@inlined
def _third_bit(w, b, j):
    """Bit 2 of block b of 16: bit b//2 of 32 bytes."""
    return _bits_at(vload_u8(w + (b % 2 * 4 + j) * 64), b // 2, 2, 4)


@inlined
def _q2_k_codes(w, b, j):
    return _two_bits(w, b, j)


@inlined
def _q2_k_scale(w, b):
    return vload_f16(w + 1280) * to_float(vload_u8_i32(w + 1024 + b * 16) & splat_i32(np.int32(15)))


@inlined
def _q2_k_minimum(w, b):
    steps = to_float(shift_right(vload_u8_i32(w + 1024 + b * 16), np.int32(4)))
    return splat(np.float32(-1)) * vload_f16(w + 1312) * steps


@inlined
def _q3_k_codes(w, b, j):
    return _two_bits(w, b, j) | _third_bit(w + 1024, b, j)


@inlined
def _q3_k_scale(w, b):
    return vload_f16(w + 1792) * vload_i8_f32(w + 1536 + b * 16)


@inlined
def _q3_k_minimum(w, b):
    return splat(np.float32(-4)) * _q3_k_scale(w, b)


@inlined
def _tq2_0_codes(w, b, j):
    return _two_bits(w, 2 * b + j // 4, j % 4)


@inlined
def _tq2_0_scale(w, b):
    return vload_f16(w + 1024)


@inlined
def _tq2_0_minimum(w, b):
    return splat(np.float32(-1)) * vload_f16(w + 1024)


@inlined
def _q2_0_codes(w, b, j):
    return low_bits(shift_words_right(vload_u8(w + (2 * b + j // 4) * 64), 2 * (j % 4)), 3)


@inlined
def _q2_0_scale(w, b):
    return vload_f16(w + 256)


@inlined
def _q2_0_minimum(w, b):
    return splat(np.float32(-1)) * vload_f16(w + 256)


@inlined
def _q1_0_codes(w, b, j):
    return low_bits(shift_words_right(vload_u8(w + 64 * b), j), 1)


@inlined
def _q1_0_scale(w, b):
    """A bit stands for -1 or 1, two apart."""
    return splat(np.float32(2)) * vload_f16(w + 256)


# Types whose codes stand for entries of a table, shifted here so that the least is not below zero.
_IQ4_NL_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
_iq4_nl_entry = make_lookup(tuple(value + 128 for value in _IQ4_NL_VALUES))
_mxfp4_entry = make_lookup(tuple(value + 12 for value in _MXFP4_VALUES))


@inlined
def _iq4_nl_codes(w, b, j):
    return _iq4_nl_entry(_nibbles(w, j))


@inlined
def _iq4_nl_minimum(w, b):
    return splat(np.float32(-128)) * vload_f16(w + 256)


@inlined
def _mxfp4_codes(w, b, j):
    return _mxfp4_entry(_nibbles(w, j))


@inlined
def _mxfp4_scale(w, b):
    """2 ** (byte - 128): the byte is a float's exponent."""
    return as_float(shift_left(vload_u8_i32(w + 256), np.int32(23))) * splat(np.float32(0.5))


@inlined
def _mxfp4_minimum(w, b):
    return splat(np.float32(-12)) * _mxfp4_scale(w, b)


@inlined
def _nvfp4_codes(w, b, j):
    return _mxfp4_entry(low_bits(shift_words_right(vload_u8(w + (2 * b + j % 2) * 64), 4 * (j // 2)), 15))


@inlined
def _nvfp4_scale(w, b):
    """Exponent and mantissa (four bits, three) put where a float has them, rebased, halved: values are doubled."""
    return as_float(shift_left(vload_u8_i32(w + 512 + 16 * b), np.int32(20))) * splat(np.float32(2.0**119))


@inlined
def _nvfp4_minimum(w, b):
    return splat(np.float32(-12)) * _nvfp4_scale(w, b)


@inlined
def _iq4_xs_codes(w, b, j):
    return _iq4_nl_entry(_nibbles(w + b * 256, j))


@inlined
def _iq4_xs_scale(w, b):
    return vload_f16(w + 2176) * vload_i8_f32(w + 2048 + b * 16)


@inlined
def _iq4_xs_minimum(w, b):
    return splat(np.float32(-128)) * _iq4_xs_scale(w, b)


# Levels of codebooks: the magnitude's number, above it the sign.
_IQ2_LEVELS = (8, 25, 43)
_IQ3_LEVELS = (4, 12, 20, 28, 36, 44, 52, 62)
_iq2_entry = make_lookup((*(43 + v for v in _IQ2_LEVELS), 0, *(43 - v for v in _IQ2_LEVELS), *(0,) * 9))
_iq3_entry = make_lookup((*(62 + v for v in _IQ3_LEVELS), *(62 - v for v in _IQ3_LEVELS)))


@inlined
def _iq2_xs_codes(w, b, j):
    return _iq2_entry(_q3_k_codes(w, b, j))


@inlined
def _iq2_xs_scale(w, b):
    return vload_f16(w + 1792) * vload_u8_f32(w + 1536 + b * 16) * splat(np.float32(0.125))


@inlined
def _iq2_xs_minimum(w, b):
    return splat(np.float32(-43)) * _iq2_xs_scale(w, b)


@inlined
def _iq2_xxs_codes(w, b, j):
    return _iq2_xs_codes(w, 2 * b + j // 4, j % 4)


@inlined
def _iq2_xxs_scale(w, b):
    return vload_f16(w + 1664) * vload_u8_f32(w + 1536 + b * 16) * splat(np.float32(0.125))


@inlined
def _iq2_xxs_minimum(w, b):
    return splat(np.float32(-43)) * _iq2_xxs_scale(w, b)


@inlined
def _iq3_xxs_codes(w, b, j):
    return _iq3_entry(_q4_k_codes(w, b, j))


@inlined
def _iq3_xxs_scale(w, b):
    return vload_f16(w + 2176) * vload_u8_f32(w + 2048 + b * 16) * splat(np.float32(0.25))


@inlined
def _iq3_xxs_minimum(w, b):
    return splat(np.float32(-62)) * _iq3_xxs_scale(w, b)


@inlined
def _iq3_s_scale(w, b):
    """Levels are odd numbers from -15 to 15, two apart."""
    return vload_f16(w + 2176) * vload_u8_f32(w + 2048 + b * 16) * splat(np.float32(2))


@inlined
def _iq3_s_minimum(w, b):
    return splat(np.float32(-7.5)) * _iq3_s_scale(w, b)


@inlined
def _iq1_s_scale(w, b):
    return vload_f16(w + 1152) * to_float(vload_u8_i32(w + 1024 + b * 16) & splat_i32(np.int32(15)))


@inlined
def _iq1_s_minimum(w, b):
    """Points are moved by an eighth: up, or down where bit 4 of the scale's byte is set."""
    down = to_float(shift_right(vload_u8_i32(w + 1024 + b * 16), np.int32(4)))
    return _iq1_s_scale(w, b) * (splat(np.float32(-0.875)) - splat(np.float32(0.25)) * down)


@inlined
def _iq1_m_codes(w, b, j):
    """In eighths, from the least: 8 a level, and 2 where the eight values are moved up."""
    up = low_bits(spread_bit(vload_u8(w + 1024), 2 * b + j // 2), 2)
    return shift_words_left(_two_bits(w, b, j), 3) | up


@inlined
def _iq1_m_scale(w, b):
    return vload_f16(w + 1344) * vload_u8_f32(w + 1088 + b * 16) * splat(np.float32(0.125))


@inlined
def _iq1_m_minimum(w, b):
    return splat(np.float32(-9)) * _iq1_m_scale(w, b)


FORMATS: dict[GGMLType, Format] = {
    GGMLType.Q8_0: Format(PACKED[GGMLType.Q8_0], _q8_0_codes, _q8_0_scale, _q8_0_minimum),
    GGMLType.Q4_0: Format(PACKED[GGMLType.Q4_0], _q4_codes, _q4_scale, _q4_0_minimum),
    GGMLType.Q4_1: Format(PACKED[GGMLType.Q4_1], _q4_codes, _q4_scale, _q4_1_minimum),
    GGMLType.Q5_0: Format(PACKED[GGMLType.Q5_0], _q5_codes, _q5_scale, _q5_0_minimum),
    GGMLType.Q5_1: Format(PACKED[GGMLType.Q5_1], _q5_codes, _q5_scale, _q5_1_minimum),
    GGMLType.Q2_K: Format(PACKED[GGMLType.Q2_K], _q2_k_codes, _q2_k_scale, _q2_k_minimum),
    GGMLType.Q3_K: Format(PACKED[GGMLType.Q3_K], _q3_k_codes, _q3_k_scale, _q3_k_minimum),
    GGMLType.Q4_K: Format(PACKED[GGMLType.Q4_K], _q4_k_codes, _q4_k_scale, _q4_k_minimum),
    GGMLType.Q5_K: Format(PACKED[GGMLType.Q5_K], _q5_k_codes, _q5_k_scale, _q5_k_minimum),
    GGMLType.Q6_K: Format(PACKED[GGMLType.Q6_K], _q6_k_codes, _q6_k_scale, _q6_k_minimum),
    GGMLType.IQ4_NL: Format(PACKED[GGMLType.IQ4_NL], _iq4_nl_codes, _q4_scale, _iq4_nl_minimum),
    GGMLType.IQ4_XS: Format(PACKED[GGMLType.IQ4_XS], _iq4_xs_codes, _iq4_xs_scale, _iq4_xs_minimum),
    GGMLType.MXFP4: Format(PACKED[GGMLType.MXFP4], _mxfp4_codes, _mxfp4_scale, _mxfp4_minimum),
    GGMLType.NVFP4: Format(PACKED[GGMLType.NVFP4], _nvfp4_codes, _nvfp4_scale, _nvfp4_minimum),
    GGMLType.Q1_0: Format(PACKED[GGMLType.Q1_0], _q1_0_codes, _q1_0_scale, _q2_0_minimum),
    GGMLType.Q2_0: Format(PACKED[GGMLType.Q2_0], _q2_0_codes, _q2_0_scale, _q2_0_minimum),
    GGMLType.TQ2_0: Format(PACKED[GGMLType.TQ2_0], _tq2_0_codes, _tq2_0_scale, _tq2_0_minimum),
    GGMLType.IQ1_S: Format(PACKED[GGMLType.IQ1_S], _tq2_0_codes, _iq1_s_scale, _iq1_s_minimum),
    GGMLType.IQ1_M: Format(PACKED[GGMLType.IQ1_M], _iq1_m_codes, _iq1_m_scale, _iq1_m_minimum),
    GGMLType.IQ2_XXS: Format(PACKED[GGMLType.IQ2_XXS], _iq2_xxs_codes, _iq2_xxs_scale, _iq2_xxs_minimum),
    GGMLType.IQ2_XS: Format(PACKED[GGMLType.IQ2_XS], _iq2_xs_codes, _iq2_xs_scale, _iq2_xs_minimum),
    GGMLType.IQ3_XXS: Format(PACKED[GGMLType.IQ3_XXS], _iq3_xxs_codes, _iq3_xxs_scale, _iq3_xxs_minimum),
    GGMLType.IQ3_S: Format(PACKED[GGMLType.IQ3_S], _q4_k_codes, _iq3_s_scale, _iq3_s_minimum),
}

FLOAT_FORMATS: dict[str, FloatFormat] = {
    "f32": FloatFormat(vload, 4),
    "f16": FloatFormat(vload_f16, 2),
    "bf16": FloatFormat(vload_bf16, 2),
}


def make_lookup_of_kernels(
    head: str, of_packed: Callable[[Format], Kernel], of_floats: Callable[[str, FloatFormat], Kernel]
) -> Callable[[str], Kernel]:
    """A module's `__getattr__`: its kernel `head_TYPE` is made when asked for, since there are as many as types."""

    @cache
    def find(name: str) -> Kernel:
        for form in FORMATS.values():
            if name == f"{head}_{form.kind.name}":
                return of_packed(form)
        for kind, floats in FLOAT_FORMATS.items():
            if name == f"{head}_{kind}":
                return of_floats(kind, floats)
        raise AttributeError(f"no kernel {name}")

    return find
