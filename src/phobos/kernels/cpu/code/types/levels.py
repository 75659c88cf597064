"""Packing as levels of single values, of the types whose codes name more than one: points of a codebook, or digits of
base three.

What is particular to a type is `levels(source, table, n)`: those of values 4n..4n+3 of a block, a byte each, lowest
first. `table` holds the levels of a codebook's points (`gguf/grids.py`).
"""

from __future__ import annotations

from phobos.kernels.cpu.code.access import load_u8, store_u8, store_u32
from phobos.kernels.cpu.code.simd import inlined


def make_two_bits(levels):
    """Codes laid as those of Q2_K."""

    @inlined
    def put(out, source, table, lane):
        for half in range(2):
            for w in range(8):
                word = 0
                for quarter in range(4):
                    word |= (levels(source, table, 32 * half + 8 * quarter + w) & 0x03030303) << (2 * quarter)
                store_u32(out + 64 * (8 * half + w) + 4 * lane, word)

    return put


def make_third_bit(levels):
    """Bit 2 of codes, laid as that of Q3_K."""

    @inlined
    def put(out, source, table, lane):
        for w in range(8):
            word = 0
            for k in range(8):
                word |= (levels(source, table, 8 * k + w) >> 2 & 0x01010101) << k
            store_u32(out + 64 * w + 4 * lane, word)

    return put


def make_four_bits(levels):
    """Codes laid as those of Q4_K."""

    @inlined
    def put(out, source, table, lane):
        for pair in range(4):
            for j in range(8):
                low, high = levels(source, table, 16 * pair + j), levels(source, table, 16 * pair + 8 + j)
                store_u32(out + 64 * (8 * pair + j) + 4 * lane, low | high << 4)

    return put


@inlined
def put_odd_scales(out, source, lane, n):
    """`n` four-bit scales s, two a byte, as bytes 2 s + 1."""
    for b in range(n):
        store_u8(out + 16 * b + lane, 2 * (load_u8(source + b // 2) >> (4 * (b % 2)) & 15) + 1)


@inlined
def spread_signs(signs, n):
    """Four of eight sign bits, the low ones where n is even, as bytes 0 or 1."""
    return (((signs >> (4 * (n % 2))) & 15) * 0x00204081) & 0x01010101


@inlined
def with_even_sign(signs):
    """Seven sign bits, and an eighth that makes the number of set ones even."""
    parity = signs ^ signs >> 4
    parity ^= parity >> 2
    parity ^= parity >> 1
    return signs | (parity & 1) << 7
