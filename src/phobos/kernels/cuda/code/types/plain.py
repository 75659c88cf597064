"""The types of 32 values with one scale, and perhaps one minimum: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0."""

from __future__ import annotations

import numpy as np

from phobos.gguf.quants import GGMLType
from phobos.kernels.cuda.code.intrinsics import device, half_to_float, load_u16, load_u32, read_words
from phobos.kernels.cuda.code.types.words import (
    Format,
    five_bit_pair,
    five_bit_words,
    nibble_pair,
    nibble_words,
    scale_only,
)
from phobos.kernels.cuda.packed_types import PACKED


@device
def _byte_words(codes, high, index):
    a, b, c, d = read_words(codes + 32 * index)
    e, f, g, h = read_words(codes + 32 * index + 16)
    return a, b, c, d, e, f, g, h


@device
def _byte_pair(codes, high, index, t):
    return load_u32(codes + 32 * index + 4 * t), load_u32(codes + 32 * index + 16 + 4 * t)


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


FORMATS = {
    "q8_0": Format(PACKED[GGMLType.Q8_0], _byte_words, _byte_pair, scale_only, signed=True, has_minimum=False),
    "q4_0": Format(PACKED[GGMLType.Q4_0], nibble_words, nibble_pair, _scale_minus_8),
    "q4_1": Format(PACKED[GGMLType.Q4_1], nibble_words, nibble_pair, _scale_and_minimum),
    "q5_0": Format(PACKED[GGMLType.Q5_0], five_bit_words, five_bit_pair, _scale_minus_16),
    "q5_1": Format(PACKED[GGMLType.Q5_1], five_bit_words, five_bit_pair, _scale_and_minimum),
}
