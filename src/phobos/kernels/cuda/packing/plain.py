"""Q4_0, Q4_1, Q5_0, Q5_1, Q8_0: the file's own code bytes, the fifth bits rearranged."""

from __future__ import annotations

from phobos.gguf.quants import GGMLType
from phobos.kernels.cuda.packing.planes import Bytes, Planes, five_bit_word, whole


def _pack_q8_0(blocks: Bytes) -> Planes:
    return whole(blocks[:, 2:]), None, whole(blocks[:, :2])


def _pack_q4_0(blocks: Bytes) -> Planes:
    return whole(blocks[:, 2:]), None, whole(blocks[:, :2])


def _pack_q4_1(blocks: Bytes) -> Planes:
    return whole(blocks[:, 4:]), None, whole(blocks[:, :4])


def _pack_q5_0(blocks: Bytes) -> Planes:
    return whole(blocks[:, 6:]), five_bit_word(blocks[:, 2:6]), whole(blocks[:, :2])


def _pack_q5_1(blocks: Bytes) -> Planes:
    return whole(blocks[:, 8:]), five_bit_word(blocks[:, 4:8]), whole(blocks[:, :4])


PACKERS = {
    GGMLType.Q8_0: _pack_q8_0,
    GGMLType.Q4_0: _pack_q4_0,
    GGMLType.Q4_1: _pack_q4_1,
    GGMLType.Q5_0: _pack_q5_0,
    GGMLType.Q5_1: _pack_q5_1,
}
