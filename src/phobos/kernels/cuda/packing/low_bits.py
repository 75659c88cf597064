"""Q1_0, Q2_0, TQ1_0, TQ2_0: codes of one bit and of two."""

from __future__ import annotations

import numpy as np

from phobos.gguf.decode import decode_tq1_0, split_bits
from phobos.gguf.quants import GGMLType
from phobos.kernels.cuda.packing.planes import Bytes, Planes, five_bit_word, two_bits, whole


def _pack_q1_0(blocks: Bytes) -> Planes:
    return five_bit_word(blocks[:, 2:].reshape(-1, 4)), None, whole(blocks[:, :2])


def _pack_q2_0(blocks: Bytes) -> Planes:
    return two_bits(split_bits(blocks[:, 2:], 1, 2)), None, whole(blocks[:, :2])


def _pack_tq2_0(blocks: Bytes) -> Planes:
    return two_bits(split_bits(blocks[:, :64], 32, 2)), None, whole(blocks[:, 64:])


def _pack_tq1_0(blocks: Bytes) -> Planes:
    """As TQ2_0: the signs of the values, whatever the scale is."""
    digits = blocks.copy()
    digits[:, 52:] = np.array([1.0], "<f2").view(np.uint8)
    codes = decode_tq1_0(digits).astype(np.int8) + np.int8(1)
    return two_bits(codes.view(np.uint8)), None, whole(blocks[:, 52:])


PACKERS = {
    GGMLType.Q1_0: _pack_q1_0,
    GGMLType.Q2_0: _pack_q2_0,
    GGMLType.TQ1_0: _pack_tq1_0,
    GGMLType.TQ2_0: _pack_tq2_0,
}
