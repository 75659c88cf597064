"""What files of types share: what they define, and the reading of codes that several of them have.

Block `index` counts through the whole matrix. `words(codes, high, index)` gives words 0 to 7; code word j times
activation word j is a dot product of four. Then weight = scale * code + minimum, with `scales_of(scales, index)` giving
(scale, minimum), for `halves` formats the scales of inputs 0..15 and 16..31. With `minima(high, index)`, two words of
four equal bytes for inputs 0..15 and 16..31, the minimum is the second scale times such a byte. Codes are unsigned
where `signed` is false. Every function is the packed twin of `gguf/quants.py`'s `dequantize`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from phobos.kernels.cuda.code.intrinsics import (
    device,
    half_to_float,
    load_u16,
    load_u32,
    permute,
    read_two_words,
    read_words,
)
from phobos.kernels.cuda.packed_types import PackedType

LOW = np.uint32(0x0F0F0F0F)
FIFTH = np.uint32(0x10101010)
FOUR = np.uint32(4)
ONES = np.uint32(0x01010101)
TWOS = np.uint32(0x03030303)


class Format(NamedTuple):
    """The readers of a packed type. `pair(codes, high, index, t)`: words t and 4 + t alone."""

    kind: PackedType
    words: Any
    pair: Any
    scales_of: Any
    signed: bool = False
    has_minimum: bool = True
    halves: bool = False
    minima: Any = None


class FloatFormat(NamedTuple):
    """How weights that are floats in memory are loaded: four neighbouring ones, and one; and the bytes of each."""

    four: Any
    one: Any
    n_bytes: int


@device
def nibble_words(codes, high, index):
    """Words of four-bit codes."""
    a, b, c, d = read_words(codes + 16 * index)
    return (
        a & LOW, b & LOW, c & LOW, d & LOW, (a >> FOUR) & LOW, (b >> FOUR) & LOW, (c >> FOUR) & LOW,
        (d >> FOUR) & LOW,
    )  # fmt: skip


@device
def nibble_pair(codes, high, index, t):
    """Two words of four-bit codes."""
    word = load_u32(codes + 16 * index + 4 * t)
    return word & LOW, (word >> FOUR) & LOW


@device
def five_bit_words(codes, high, index):
    """Words of five-bit codes."""
    a, b, c, d = read_words(codes + 16 * index)
    h = load_u32(high + 4 * index)
    return (
        (a & LOW) | ((h << FOUR) & FIFTH),
        (b & LOW) | ((h << np.uint32(3)) & FIFTH),
        (c & LOW) | ((h << np.uint32(2)) & FIFTH),
        (d & LOW) | ((h << np.uint32(1)) & FIFTH),
        ((a >> FOUR) & LOW) | (h & FIFTH),
        ((b >> FOUR) & LOW) | ((h >> np.uint32(1)) & FIFTH),
        ((c >> FOUR) & LOW) | ((h >> np.uint32(2)) & FIFTH),
        ((d >> FOUR) & LOW) | ((h >> np.uint32(3)) & FIFTH),
    )


@device
def five_bit_pair(codes, high, index, t):
    """Two words of five-bit codes."""
    word = load_u32(codes + 16 * index + 4 * t)
    h = load_u32(high + 4 * index) >> np.uint32(t)
    return (word & LOW) | ((h << FOUR) & FIFTH), ((word >> FOUR) & LOW) | (h & FIFTH)


@device
def two_bit_words(codes, high, index):
    """Words of two-bit codes."""
    h, g = read_two_words(codes + 8 * index)
    two, six = np.uint32(2), np.uint32(6)
    return (
        h & TWOS, (h >> two) & TWOS, (h >> FOUR) & TWOS, (h >> six) & TWOS, g & TWOS, (g >> two) & TWOS,
        (g >> FOUR) & TWOS, (g >> six) & TWOS,
    )  # fmt: skip


@device
def two_bit_pair(codes, high, index, t):
    """Two words of two-bit codes."""
    shift = np.uint32(2 * t)
    h, g = load_u32(codes + 8 * index), load_u32(codes + 8 * index + 4)
    return (h >> shift) & TWOS, (g >> shift) & TWOS


@device
def entries_of(nibbles, t0, t1, t2, t3):
    """What the low four nibbles name in a table of 16 signed bytes: both halves of it looked up, then each byte's half
    chosen."""
    selector = nibbles & np.uint32(0x7777)
    return permute(
        permute(t0, t1, selector),
        permute(t2, t3, selector),
        np.uint32(0x3210) | ((nibbles & np.uint32(0x8888)) >> np.uint32(1)),
    )


@device
def scale_only(scales, index):
    """A half a block, no minimum."""
    return half_to_float(load_u16(scales + 2 * index)), np.float32(0)
