"""The types of one and two bits a value with one scale, ternary ones among them: Q1_0, Q2_0, TQ1_0, TQ2_0."""

from __future__ import annotations

import numpy as np

from phobos.gguf.quants import GGMLType
from phobos.kernels.cuda.code.intrinsics import device, half_to_float, load_u16, load_u32
from phobos.kernels.cuda.code.types.words import FOUR, ONES, Format, two_bit_pair, two_bit_words
from phobos.kernels.cuda.packed_types import PACKED


@device
def _one_bit_words(codes, high, index):
    h = load_u32(codes + 4 * index)
    return (
        h & ONES, (h >> np.uint32(1)) & ONES, (h >> np.uint32(2)) & ONES, (h >> np.uint32(3)) & ONES,
        (h >> FOUR) & ONES, (h >> np.uint32(5)) & ONES, (h >> np.uint32(6)) & ONES, (h >> np.uint32(7)) & ONES,
    )  # fmt: skip


@device
def _one_bit_pair(codes, high, index, t):
    h = load_u32(codes + 4 * index) >> np.uint32(t)
    return h & ONES, (h >> FOUR) & ONES


def _make_less_one(shift, factor):
    """Of codes that count from -1: `factor` steps of a half for each `1 << shift` blocks."""

    @device
    def scales_of(scales, index):
        d = half_to_float(load_u16(scales + 2 * (index >> shift)))
        return np.float32(factor) * d, np.float32(-1) * d

    return scales_of


FORMATS = {
    "q1_0": Format(PACKED[GGMLType.Q1_0], _one_bit_words, _one_bit_pair, _make_less_one(2, 2)),
    "q2_0": Format(PACKED[GGMLType.Q2_0], two_bit_words, two_bit_pair, _make_less_one(1, 1)),
    "tq2_0": Format(PACKED[GGMLType.TQ2_0], two_bit_words, two_bit_pair, _make_less_one(3, 1)),
}
