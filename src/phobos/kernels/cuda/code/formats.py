"""How each packed weight type is read by a thread: a block of 32 inputs as eight words of codes, and its scales.

Block `index` counts through the whole matrix. `words(codes, high, index)` gives words 0 to 7; code word j times
activation word j is a dot product of four. Then weight = scale * code + minimum, with `scales_of(scales, index)` giving
(scale, minimum), for `halves` formats the scales of inputs 0..15 and 16..31. With `minima(high, index)`, two words of
four equal bytes for inputs 0..15 and 16..31, the minimum is the second scale times such a byte. Codes are unsigned
where `signed` is false. Every function is the packed twin of `gguf/quants.py`'s `dequantize`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from phobos.gguf.quants import GGMLType
from phobos.kernels.cuda.code.intrinsics import (
    device,
    half_to_float,
    load_f32,
    load_i8,
    load_u8,
    load_u16,
    load_u32,
    permute,
    read_shared_words,
    read_two_words,
    read_words,
    word_as_float,
)
from phobos.kernels.cuda.layout import PACKED, PackedType

_LOW = np.uint32(0x0F0F0F0F)
_FIFTH = np.uint32(0x10101010)
_HIGH = np.uint32(0x30303030)
_TOP = np.uint32(0x80808080)
_THIRTY_TWO = np.uint32(0x20202020)
_FOUR = np.uint32(4)
_ONES = np.uint32(0x01010101)
_TWOS = np.uint32(0x03030303)


class Format(NamedTuple):
    """The readers of a packed type. `pair(codes, high, index, t)`: words t and 4 + t alone."""

    kind: PackedType
    words: Any
    pair: Any
    scales_of: Any
    signed: bool
    has_minimum: bool
    halves: bool
    minima: Any


@device
def _nibble_words(codes, high, index):
    a, b, c, d = read_words(codes + 16 * index)
    return (
        a & _LOW, b & _LOW, c & _LOW, d & _LOW, (a >> _FOUR) & _LOW, (b >> _FOUR) & _LOW, (c >> _FOUR) & _LOW,
        (d >> _FOUR) & _LOW,
    )  # fmt: skip


@device
def _five_bit_words(codes, high, index):
    a, b, c, d = read_words(codes + 16 * index)
    h = load_u32(high + 4 * index)
    return (
        (a & _LOW) | ((h << _FOUR) & _FIFTH),
        (b & _LOW) | ((h << np.uint32(3)) & _FIFTH),
        (c & _LOW) | ((h << np.uint32(2)) & _FIFTH),
        (d & _LOW) | ((h << np.uint32(1)) & _FIFTH),
        ((a >> _FOUR) & _LOW) | (h & _FIFTH),
        ((b >> _FOUR) & _LOW) | ((h >> np.uint32(1)) & _FIFTH),
        ((c >> _FOUR) & _LOW) | ((h >> np.uint32(2)) & _FIFTH),
        ((d >> _FOUR) & _LOW) | ((h >> np.uint32(3)) & _FIFTH),
    )


@device
def _nibble_pair(codes, high, index, t):
    word = load_u32(codes + 16 * index + 4 * t)
    return word & _LOW, (word >> _FOUR) & _LOW


@device
def _five_bit_pair(codes, high, index, t):
    word = load_u32(codes + 16 * index + 4 * t)
    h = load_u32(high + 4 * index) >> np.uint32(t)
    return (word & _LOW) | ((h << _FOUR) & _FIFTH), ((word >> _FOUR) & _LOW) | (h & _FIFTH)


@device
def _minus_32(code):
    """Each byte, below 64, less 32, as a signed byte."""
    return ((code | _TOP) - _THIRTY_TWO) ^ _TOP


@device
def _q6_words(codes, high, index):
    a, b, c, d = read_words(codes + 16 * index)
    h, g = read_two_words(high + 8 * index)
    return (
        _minus_32((a & _LOW) | ((h << _FOUR) & _HIGH)),
        _minus_32((b & _LOW) | ((h << np.uint32(2)) & _HIGH)),
        _minus_32((c & _LOW) | (h & _HIGH)),
        _minus_32((d & _LOW) | ((h >> np.uint32(2)) & _HIGH)),
        _minus_32(((a >> _FOUR) & _LOW) | ((g << _FOUR) & _HIGH)),
        _minus_32(((b >> _FOUR) & _LOW) | ((g << np.uint32(2)) & _HIGH)),
        _minus_32(((c >> _FOUR) & _LOW) | (g & _HIGH)),
        _minus_32(((d >> _FOUR) & _LOW) | ((g >> np.uint32(2)) & _HIGH)),
    )


@device
def _q6_pair(codes, high, index, t):
    word = load_u32(codes + 16 * index + 4 * t)
    h = (load_u32(high + 8 * index) >> np.uint32(2 * t)) << _FOUR
    g = (load_u32(high + 8 * index + 4) >> np.uint32(2 * t)) << _FOUR
    return _minus_32((word & _LOW) | (h & _HIGH)), _minus_32(((word >> _FOUR) & _LOW) | (g & _HIGH))


@device
def _two_bit_words(codes, high, index):
    h, g = read_two_words(codes + 8 * index)
    two, six = np.uint32(2), np.uint32(6)
    return (
        h & _TWOS, (h >> two) & _TWOS, (h >> _FOUR) & _TWOS, (h >> six) & _TWOS, g & _TWOS, (g >> two) & _TWOS,
        (g >> _FOUR) & _TWOS, (g >> six) & _TWOS,
    )  # fmt: skip


@device
def _two_bit_pair(codes, high, index, t):
    shift = np.uint32(2 * t)
    h, g = load_u32(codes + 8 * index), load_u32(codes + 8 * index + 4)
    return (h >> shift) & _TWOS, (g >> shift) & _TWOS


@device
def _one_bit_words(codes, high, index):
    h = load_u32(codes + 4 * index)
    return (
        h & _ONES, (h >> np.uint32(1)) & _ONES, (h >> np.uint32(2)) & _ONES, (h >> np.uint32(3)) & _ONES,
        (h >> _FOUR) & _ONES, (h >> np.uint32(5)) & _ONES, (h >> np.uint32(6)) & _ONES, (h >> np.uint32(7)) & _ONES,
    )  # fmt: skip


@device
def _one_bit_pair(codes, high, index, t):
    h = load_u32(codes + 4 * index) >> np.uint32(t)
    return h & _ONES, (h >> _FOUR) & _ONES


@device
def _q2_k_factors(high, index):
    """The two small scales of a block."""
    both = load_u16(high + 2 * index)
    return both & np.uint32(15), (both >> np.uint32(8)) & np.uint32(15)


@device
def _q2_k_words(codes, high, index):
    """Codes times the small scale of their 16 inputs: 45 at most, so bytes stay apart."""
    a, b, c, d, e, f, g, h = _two_bit_words(codes, high, index)
    first, second = _q2_k_factors(high, index)
    return a * first, b * first, c * first, d * first, e * second, f * second, g * second, h * second


@device
def _q2_k_pair(codes, high, index, t):
    a, b = _two_bit_pair(codes, high, index, t)
    first, second = _q2_k_factors(high, index)
    return a * first, b * second


@device
def _q2_k_minima(high, index):
    both = load_u16(high + 2 * index)
    return ((both >> _FOUR) & np.uint32(15)) * _ONES, (both >> np.uint32(12)) * _ONES


@device
def _byte_pair(codes, high, index, t):
    return load_u32(codes + 32 * index + 4 * t), load_u32(codes + 32 * index + 16 + 4 * t)


@device
def _byte_words(codes, high, index):
    a, b, c, d = read_words(codes + 32 * index)
    e, f, g, h = read_words(codes + 32 * index + 16)
    return a, b, c, d, e, f, g, h


@device
def _entries(nibbles, t0, t1, t2, t3):
    """What the low four nibbles name in a table of 16 signed bytes: both halves of it looked up, then each byte's half
    chosen."""
    selector = nibbles & np.uint32(0x7777)
    return permute(
        permute(t0, t1, selector),
        permute(t2, t3, selector),
        np.uint32(0x3210) | ((nibbles & np.uint32(0x8888)) >> np.uint32(1)),
    )


@device
def _level_words(codes, high, index):
    """Nibbles in order through the table at `high`."""
    t0, t1, t2, t3 = read_shared_words(high)
    a, b, c, d = read_words(codes + 16 * index)
    s = np.uint32(16)
    return (
        _entries(a, t0, t1, t2, t3), _entries(a >> s, t0, t1, t2, t3), _entries(b, t0, t1, t2, t3),
        _entries(b >> s, t0, t1, t2, t3), _entries(c, t0, t1, t2, t3), _entries(c >> s, t0, t1, t2, t3),
        _entries(d, t0, t1, t2, t3), _entries(d >> s, t0, t1, t2, t3),
    )  # fmt: skip


@device
def _level_pair(codes, high, index, t):
    t0, t1, t2, t3 = read_shared_words(high)
    first, second = load_u16(codes + 16 * index + 2 * t), load_u16(codes + 16 * index + 8 + 2 * t)
    return _entries(first, t0, t1, t2, t3), _entries(second, t0, t1, t2, t3)


@device
def _three_bits(codes, high, index):
    """Eight three-bit places a word, and the first eight entries of the table at `high`."""
    t0, t1, _, _ = read_shared_words(high)
    at = codes + 12 * index
    a, b, c = load_u32(at), load_u32(at + 4), load_u32(at + 8)
    ones = np.uint32(0x11111111)
    d = (a >> np.uint32(3)) & ones | ((b >> np.uint32(3)) & ones) << np.uint32(1)
    d |= ((c >> np.uint32(3)) & ones) << np.uint32(2)
    mask = np.uint32(0x77777777)
    return a & mask, b & mask, c & mask, d, t0, t1


@device
def _three_bit_words(codes, high, index):
    a, b, c, d, t, u = _three_bits(codes, high, index)
    s = np.uint32(16)
    return (
        permute(t, u, a), permute(t, u, a >> s), permute(t, u, b), permute(t, u, b >> s), permute(t, u, c),
        permute(t, u, c >> s), permute(t, u, d), permute(t, u, d >> s),
    )  # fmt: skip


@device
def _three_bit_pair(codes, high, index, t):
    a, b, c, d, low, top = _three_bits(codes, high, index)
    shift = np.uint32(16 * (t & 1))
    first, second = (a, c) if t < 2 else (b, d)
    return permute(low, top, first >> shift), permute(low, top, second >> shift)


@device
def _level_scales(scales, index):
    at = scales + 20 * (index >> 3)
    d = load_f32(at + 16)
    return d * np.float32(load_i8(at + 2 * (index & 7))), d * np.float32(load_i8(at + 2 * (index & 7) + 1))


def _make_table_words(values):
    """Nibbles in order through a table of 16 signed bytes that is the type's own."""
    t0, t1, t2, t3 = (
        np.uint32(int.from_bytes(np.array(values[4 * i : 4 * i + 4], np.int8).tobytes(), "little")) for i in range(4)
    )

    @device
    def entries(nibbles):
        return _entries(nibbles, t0, t1, t2, t3)

    @device
    def words(codes, high, index):
        a, b, c, d = read_words(codes + 16 * index)
        s = np.uint32(16)
        return (
            entries(a), entries(a >> s), entries(b), entries(b >> s), entries(c), entries(c >> s), entries(d),
            entries(d >> s),
        )  # fmt: skip

    @device
    def pair(codes, high, index, t):
        return entries(load_u16(codes + 16 * index + 2 * t)), entries(load_u16(codes + 16 * index + 8 + 2 * t))

    return words, pair


@device
def _scale_only(scales, index):
    return half_to_float(load_u16(scales + 2 * index)), np.float32(0)


@device
def _scale_minus_8(scales, index):
    d = half_to_float(load_u16(scales + 2 * index))
    return d, np.float32(-8) * d


@device
def _scale_minus_16(scales, index):
    d = half_to_float(load_u16(scales + 2 * index))
    return d, np.float32(-16) * d


@device
def _scale_and_minimum(scales, index):
    both = load_u32(scales + 4 * index)
    return half_to_float(both), half_to_float(both >> np.uint32(16))


@device
def _k_scales(scales, index):
    at = scales + 20 * (index >> 3)
    both = load_u32(at)
    pair = load_u16(at + 4 + 2 * (index & 7))
    d = half_to_float(both) * np.float32(pair & np.uint32(0xFF))
    return d, np.float32(-1) * half_to_float(both >> np.uint32(16)) * np.float32(pair >> np.uint32(8))


@device
def _q6_scales(scales, index):
    at = scales + 20 * (index >> 3)
    d = half_to_float(load_u16(at + 16))
    return d * np.float32(load_i8(at + 2 * (index & 7))), d * np.float32(load_i8(at + 2 * (index & 7) + 1))


@device
def _mxfp4_scales(scales, index):
    """2 ** (byte - 128): the byte is a float's exponent, and entries of the table are doubled."""
    return word_as_float(load_u8(scales + index) << np.uint32(23)) * np.float32(0.5), np.float32(0)


@device
def _nvfp4_scales(scales, index):
    """Seven bits of a half each, whose exponent counts 8 more; entries of the table are doubled."""
    both = load_u16(scales + 2 * index)
    first, second = (both & np.uint32(0x7F)) << np.uint32(7), ((both >> np.uint32(8)) & np.uint32(0x7F)) << np.uint32(7)
    return half_to_float(first) * np.float32(128), half_to_float(second) * np.float32(128)


@device
def _q2_k_scales(scales, index):
    both = load_u32(scales + 4 * (index >> 3))
    return half_to_float(both), np.float32(-1) * half_to_float(both >> np.uint32(16))


def _make_less_one(shift, factor):
    """Of codes that count from -1: `factor` steps of a half for each `1 << shift` blocks."""

    @device
    def scales_of(scales, index):
        d = half_to_float(load_u16(scales + 2 * (index >> shift)))
        return np.float32(factor) * d, np.float32(-1) * d

    return scales_of


_IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def _format(kind, readers, scales_of, *, signed=False, has_minimum=True, halves=False, minima=None):
    return Format(PACKED[kind], *readers, scales_of, signed, has_minimum, halves, minima)


_NIBBLES, _FIVE_BITS = (_nibble_words, _nibble_pair), (_five_bit_words, _five_bit_pair)
_BYTES, _SIX_BITS = (_byte_words, _byte_pair), (_q6_words, _q6_pair)
_ONE_BIT, _TWO_BITS = (_one_bit_words, _one_bit_pair), (_two_bit_words, _two_bit_pair)
_T = GGMLType
FORMATS: dict[GGMLType, Format] = {
    _T.Q8_0: _format(_T.Q8_0, _BYTES, _scale_only, signed=True, has_minimum=False),
    _T.Q4_0: _format(_T.Q4_0, _NIBBLES, _scale_minus_8),
    _T.Q4_1: _format(_T.Q4_1, _NIBBLES, _scale_and_minimum),
    _T.Q5_0: _format(_T.Q5_0, _FIVE_BITS, _scale_minus_16),
    _T.Q5_1: _format(_T.Q5_1, _FIVE_BITS, _scale_and_minimum),
    _T.Q4_K: _format(_T.Q4_K, _NIBBLES, _k_scales),
    _T.Q5_K: _format(_T.Q5_K, _FIVE_BITS, _k_scales),
    _T.Q6_K: _format(_T.Q6_K, _SIX_BITS, _q6_scales, signed=True, has_minimum=False, halves=True),
    _T.IQ4_NL: _format(_T.IQ4_NL, _make_table_words(_IQ4_NL), _scale_only, signed=True, has_minimum=False),
    _T.Q3_K: _format(
        _T.Q3_K, (_three_bit_words, _three_bit_pair), _level_scales, signed=True, has_minimum=False, halves=True
    ),
    _T.IQ4_XS: _format(
        _T.IQ4_XS, (_level_words, _level_pair), _level_scales, signed=True, has_minimum=False, halves=True
    ),
    _T.MXFP4: _format(_T.MXFP4, _make_table_words(_FP4), _mxfp4_scales, signed=True, has_minimum=False),
    _T.NVFP4: _format(_T.NVFP4, _make_table_words(_FP4), _nvfp4_scales, signed=True, has_minimum=False, halves=True),
    _T.Q2_K: _format(_T.Q2_K, (_q2_k_words, _q2_k_pair), _q2_k_scales, has_minimum=False, minima=_q2_k_minima),
    _T.Q1_0: _format(_T.Q1_0, _ONE_BIT, _make_less_one(2, 2)),
    _T.Q2_0: _format(_T.Q2_0, _TWO_BITS, _make_less_one(1, 1)),
    _T.TQ2_0: _format(_T.TQ2_0, _TWO_BITS, _make_less_one(3, 1)),
}
