"""The types held as levels of single values, three or four bits each, which a table turns into signed bytes: all whose
codes name points of a codebook, IQ4_XS and Q3_K.

Scales of 256 values: 16 small whole numbers, then the float that multiplies them.
"""

from __future__ import annotations

import numpy as np

from phobos.gguf.quants import GGMLType
from phobos.kernels.cuda.code.intrinsics import (
    device,
    load_f32,
    load_i8,
    load_u16,
    load_u32,
    permute,
    read_shared_words,
    read_words,
)
from phobos.kernels.cuda.code.types.words import Format, entries_of
from phobos.kernels.cuda.packed_types import PACKED

_BYTES, _SUPER = PACKED[GGMLType.IQ4_XS].scale_bytes, 16


@device
def _level_words(codes, high, index):
    """Nibbles in order through the table at `high`."""
    t0, t1, t2, t3 = read_shared_words(high)
    a, b, c, d = read_words(codes + 16 * index)
    s = np.uint32(16)
    return (
        entries_of(a, t0, t1, t2, t3), entries_of(a >> s, t0, t1, t2, t3), entries_of(b, t0, t1, t2, t3),
        entries_of(b >> s, t0, t1, t2, t3), entries_of(c, t0, t1, t2, t3), entries_of(c >> s, t0, t1, t2, t3),
        entries_of(d, t0, t1, t2, t3), entries_of(d >> s, t0, t1, t2, t3),
    )  # fmt: skip


@device
def _level_pair(codes, high, index, t):
    t0, t1, t2, t3 = read_shared_words(high)
    first, second = load_u16(codes + 16 * index + 2 * t), load_u16(codes + 16 * index + 8 + 2 * t)
    return entries_of(first, t0, t1, t2, t3), entries_of(second, t0, t1, t2, t3)


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
    at = scales + _BYTES * (index >> 3)
    d = load_f32(at + _SUPER)
    return d * np.float32(load_i8(at + 2 * (index & 7))), d * np.float32(load_i8(at + 2 * (index & 7) + 1))


def _format(kind, words, pair):
    return Format(PACKED[kind], words, pair, _level_scales, signed=True, has_minimum=False, halves=True)


FORMATS = {
    "q3_k": _format(GGMLType.Q3_K, _three_bit_words, _three_bit_pair),
    "iq4_xs": _format(GGMLType.IQ4_XS, _level_words, _level_pair),
}
