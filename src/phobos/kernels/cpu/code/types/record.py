"""What files of types share: what they define, and the moves of packing and reading that several of them make.

Reading a record at `w` of a group (see `packed_types.py`): `codes(w, b, j)` are the 64 codes of inputs 4j..4j+3 of
block b, four a lane; `scale(w, b)` and `minimum(w, b)` the block's, one a lane; weight = scale * code + minimum, with
unsigned codes. The block indices are constants once loops are unrolled. Every type is the packed twin of
`gguf/quants.py`'s `dequantize`.

Packing: `pack_block(out, source, table, lane)` puts one row's block, as the file has it, into its lane of a record;
`table` is the codebook's points, else 0. Lanes past the matrix are left as they are: zero, in fresh memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from phobos.kernels.cpu.code.access import load_u8, load_u16, load_u32, store_u8, store_u16, store_u32, vload_u8
from phobos.kernels.cpu.code.simd import inlined, low_bits, shift_words_left, shift_words_right
from phobos.kernels.cpu.packed_types import PackedType


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


# Packing


@inlined
def put_words(out, source, lane, n_words):
    """Word v of a row's block to lane `lane` of vector v."""
    for v in range(n_words):
        store_u32(out + 64 * v + 4 * lane, load_u32(source + 4 * v))


@inlined
def put_bytes(out, source, lane, n):
    """Byte b of a row's block to lane `lane` of 16-byte vector b."""
    for b in range(n):
        store_u8(out + 16 * b + lane, load_u8(source + b))


@inlined
def put_half(out, source, lane):
    """A half to its lane."""
    store_u16(out + 2 * lane, load_u16(source))


@inlined
def put_high_bits(out, source, lane):
    """32 high bits, one a value in order, rearranged: bit j of byte i is that of value 4j + i."""
    bits = load_u32(source)
    word = 0
    for i in range(4):  # of every fourth bit from i on: pairs, fours, then all eight together
        byte = bits >> i & 0x11111111
        byte = (byte | byte >> 3) & 0x03030303
        byte = (byte | byte >> 6) & 0x000F000F
        word |= ((byte | byte >> 12) & 0xFF) << (8 * i)
    store_u32(out + 4 * lane, word)


# Reading


@inlined
def bits_at(v, source, target, mask):
    """The bits of every byte that `mask` covers once bit `source` has been moved to bit `target`."""
    if source > target:
        v = shift_words_right(v, source - target)
    elif source < target:
        v = shift_words_left(v, target - source)
    return low_bits(v, mask)


@inlined
def nibbles(w, j):
    """Codes of a 32-value block: inputs 0..15 in the low halves of four vectors, 16..31 in the high halves."""
    return low_bits(shift_words_right(vload_u8(w + (j % 4) * 64), 4 * (j // 4)), 15)


@inlined
def paired_nibbles(w, b, j):
    """Codes of block b of a 256-value block: of two neighbouring blocks the first lies in the low halves."""
    return low_bits(shift_words_right(vload_u8(w + (b // 2) * 512 + j * 64), 4 * (b % 2)), 15)


@inlined
def two_bits(w, b, j):
    """Block b of 16: half b//8, quarter (b%8)//2 of it, which is where its bits stand in a byte."""
    return low_bits(shift_words_right(vload_u8(w + (b // 8 * 8 + b % 2 * 4 + j) * 64), 2 * (b % 8 // 2)), 3)


@inlined
def third_bit(w, b, j):
    """Bit 2 of block b of 16: bit b//2 of 32 bytes."""
    return bits_at(vload_u8(w + (b % 2 * 4 + j) * 64), b // 2, 2, 4)
