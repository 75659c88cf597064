"""The types of 256 values with a scale for each 16 or 32 of them: Q2_K, Q4_K, Q5_K, Q6_K; for Q3_K see `levels.py`.

Scales of 256 values. Q4_K and Q5_K: super-scale and super-minimum, then a scale and a minimum for each block. Q6_K: 16
scales, then the super-scale.
"""

from __future__ import annotations

import numpy as np

from phobos.gguf.quants import GGMLType
from phobos.kernels.cuda.code.intrinsics import (
    device,
    half_to_float,
    load_i8,
    load_u16,
    load_u32,
    read_two_words,
    read_words,
)
from phobos.kernels.cuda.code.types.words import (
    FOUR,
    LOW,
    ONES,
    Format,
    five_bit_pair,
    five_bit_words,
    nibble_pair,
    nibble_words,
    two_bit_pair,
    two_bit_words,
)
from phobos.kernels.cuda.packed_types import PACKED

_HIGH = np.uint32(0x30303030)
_TOP = np.uint32(0x80808080)
_THIRTY_TWO = np.uint32(0x20202020)
_K_BYTES, _PAIRS = PACKED[GGMLType.Q4_K].scale_bytes, 4
_Q6_K_BYTES, _Q6_K_SUPER = PACKED[GGMLType.Q6_K].scale_bytes, 16
_Q2_K_BYTES = PACKED[GGMLType.Q2_K].scale_bytes


@device
def _q2_k_factors(high, index):
    """The two small scales of a block."""
    both = load_u16(high + 2 * index)
    return both & np.uint32(15), (both >> np.uint32(8)) & np.uint32(15)


@device
def _q2_k_words(codes, high, index):
    """Codes times the small scale of their 16 inputs: 45 at most, so bytes stay apart."""
    a, b, c, d, e, f, g, h = two_bit_words(codes, high, index)
    first, second = _q2_k_factors(high, index)
    return a * first, b * first, c * first, d * first, e * second, f * second, g * second, h * second


@device
def _q2_k_pair(codes, high, index, t):
    a, b = two_bit_pair(codes, high, index, t)
    first, second = _q2_k_factors(high, index)
    return a * first, b * second


@device
def _q2_k_minima(high, index):
    both = load_u16(high + 2 * index)
    return ((both >> FOUR) & np.uint32(15)) * ONES, (both >> np.uint32(12)) * ONES


@device
def _q2_k_scales(scales, index):
    both = load_u32(scales + _Q2_K_BYTES * (index >> 3))
    return half_to_float(both), np.float32(-1) * half_to_float(both >> np.uint32(16))


@device
def _k_scales(scales, index):
    at = scales + _K_BYTES * (index >> 3)
    both = load_u32(at)
    pair = load_u16(at + _PAIRS + 2 * (index & 7))
    d = half_to_float(both) * np.float32(pair & np.uint32(0xFF))
    return d, np.float32(-1) * half_to_float(both >> np.uint32(16)) * np.float32(pair >> np.uint32(8))


@device
def _minus_32(code):
    """Each byte, below 64, less 32, as a signed byte."""
    return ((code | _TOP) - _THIRTY_TWO) ^ _TOP


@device
def _q6_words(codes, high, index):
    a, b, c, d = read_words(codes + 16 * index)
    h, g = read_two_words(high + 8 * index)
    return (
        _minus_32((a & LOW) | ((h << FOUR) & _HIGH)),
        _minus_32((b & LOW) | ((h << np.uint32(2)) & _HIGH)),
        _minus_32((c & LOW) | (h & _HIGH)),
        _minus_32((d & LOW) | ((h >> np.uint32(2)) & _HIGH)),
        _minus_32(((a >> FOUR) & LOW) | ((g << FOUR) & _HIGH)),
        _minus_32(((b >> FOUR) & LOW) | ((g << np.uint32(2)) & _HIGH)),
        _minus_32(((c >> FOUR) & LOW) | (g & _HIGH)),
        _minus_32(((d >> FOUR) & LOW) | ((g >> np.uint32(2)) & _HIGH)),
    )


@device
def _q6_pair(codes, high, index, t):
    word = load_u32(codes + 16 * index + 4 * t)
    h = (load_u32(high + 8 * index) >> np.uint32(2 * t)) << FOUR
    g = (load_u32(high + 8 * index + 4) >> np.uint32(2 * t)) << FOUR
    return _minus_32((word & LOW) | (h & _HIGH)), _minus_32(((word >> FOUR) & LOW) | (g & _HIGH))


@device
def _q6_scales(scales, index):
    at = scales + _Q6_K_BYTES * (index >> 3)
    d = half_to_float(load_u16(at + _Q6_K_SUPER))
    return d * np.float32(load_i8(at + 2 * (index & 7))), d * np.float32(load_i8(at + 2 * (index & 7) + 1))


FORMATS = {
    "q2_k": Format(
        PACKED[GGMLType.Q2_K], _q2_k_words, _q2_k_pair, _q2_k_scales, has_minimum=False, minima=_q2_k_minima
    ),
    "q4_k": Format(PACKED[GGMLType.Q4_K], nibble_words, nibble_pair, _k_scales),
    "q5_k": Format(PACKED[GGMLType.Q5_K], five_bit_words, five_bit_pair, _k_scales),
    "q6_k": Format(PACKED[GGMLType.Q6_K], _q6_words, _q6_pair, _q6_scales, signed=True, has_minimum=False, halves=True),
}
