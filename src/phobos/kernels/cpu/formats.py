"""How each packed weight type is read: unsigned codes, a scale and a minimum; weight = scale * code + minimum.

For a record at `w` of a group (see `layout.py`): `codes(w, b, j)` are the 64 codes of inputs 4j..4j+3 of block b, four
a lane; `scale(w, b)` and `minimum(w, b)` the block's, one a lane. Every function is the packed twin of
`gguf/quants.py`'s `dequantize`; the block indices are constants once loops are unrolled.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from phobos.gguf.quants import GGMLType
from phobos.kernels.cpu.access import vload_f16, vload_i8_f32, vload_u8, vload_u8_f32, vload_u8_i32
from phobos.kernels.cpu.layout import PACKED, PackedType
from phobos.kernels.cpu.simd import (
    as_float,
    inlined,
    low_bits,
    make_lookup,
    shift_left,
    shift_words_left,
    shift_words_right,
    splat,
)


class Format(NamedTuple):
    """The three readers of a packed type."""

    kind: PackedType
    codes: Any
    scale: Any
    minimum: Any


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


FORMATS: dict[GGMLType, Format] = {
    GGMLType.Q8_0: Format(PACKED[GGMLType.Q8_0], _q8_0_codes, _q8_0_scale, _q8_0_minimum),
    GGMLType.Q4_0: Format(PACKED[GGMLType.Q4_0], _q4_codes, _q4_scale, _q4_0_minimum),
    GGMLType.Q4_1: Format(PACKED[GGMLType.Q4_1], _q4_codes, _q4_scale, _q4_1_minimum),
    GGMLType.Q5_0: Format(PACKED[GGMLType.Q5_0], _q5_codes, _q5_scale, _q5_0_minimum),
    GGMLType.Q5_1: Format(PACKED[GGMLType.Q5_1], _q5_codes, _q5_scale, _q5_1_minimum),
    GGMLType.Q4_K: Format(PACKED[GGMLType.Q4_K], _q4_k_codes, _q4_k_scale, _q4_k_minimum),
    GGMLType.Q5_K: Format(PACKED[GGMLType.Q5_K], _q5_k_codes, _q5_k_scale, _q5_k_minimum),
    GGMLType.Q6_K: Format(PACKED[GGMLType.Q6_K], _q6_k_codes, _q6_k_scale, _q6_k_minimum),
    GGMLType.IQ4_NL: Format(PACKED[GGMLType.IQ4_NL], _iq4_nl_codes, _q4_scale, _iq4_nl_minimum),
    GGMLType.MXFP4: Format(PACKED[GGMLType.MXFP4], _mxfp4_codes, _mxfp4_scale, _mxfp4_minimum),
}
