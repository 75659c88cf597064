"""Packing of the types whose codes name more than one value: points of a codebook, or digits of base three.

Each is packed as the levels of single values, in the layouts of Q2_K, Q3_K and Q4_K. What is particular to a type is
`levels(source, table, n)`: those of values 4n..4n+3 of a block, a byte each, lowest first. `table` holds the levels of
a codebook's points (`gguf/grids.py`).
"""

from __future__ import annotations

from phobos.kernels.cpu.code.access import load_u8, load_u16, load_u32, store_u8, store_u32
from phobos.kernels.cpu.code.pack import copy_half, make_pack
from phobos.kernels.cpu.code.simd import inlined

# Layouts


def _make_two_bits(levels):
    @inlined
    def put(out, source, table, lane):
        for half in range(2):
            for w in range(8):
                word = 0
                for quarter in range(4):
                    word |= (levels(source, table, 32 * half + 8 * quarter + w) & 0x03030303) << (2 * quarter)
                store_u32(out + 64 * (8 * half + w) + 4 * lane, word)

    return put


def _make_third_bit(levels):
    @inlined
    def put(out, source, table, lane):
        for w in range(8):
            word = 0
            for k in range(8):
                word |= (levels(source, table, 8 * k + w) >> 2 & 0x01010101) << k
            store_u32(out + 64 * w + 4 * lane, word)

    return put


def _make_four_bits(levels):
    @inlined
    def put(out, source, table, lane):
        for pair in range(4):
            for j in range(8):
                low, high = levels(source, table, 16 * pair + j), levels(source, table, 16 * pair + 8 + j)
                store_u32(out + 64 * (8 * pair + j) + 4 * lane, low | high << 4)

    return put


@inlined
def _odd_scales(out, source, lane, n):
    """`n` four-bit scales s, two a byte, as bytes 2 s + 1."""
    for b in range(n):
        store_u8(out + 16 * b + lane, 2 * (load_u8(source + b // 2) >> (4 * (b % 2)) & 15) + 1)


# Signs


@inlined
def _spread(signs, n):
    """Four of eight sign bits, the low ones where n is even, as bytes 0 or 1."""
    return (((signs >> (4 * (n % 2))) & 15) * 0x00204081) & 0x01010101


@inlined
def _even(signs):
    """Seven sign bits, and an eighth that makes the number of set ones even."""
    parity = signs ^ signs >> 4
    parity ^= parity >> 2
    parity ^= parity >> 1
    return signs | (parity & 1) << 7


# Types


@inlined
def _tq1_0_levels(source, table, n):
    """A byte is a fraction of 243 in base three: times a power of three, the low byte's leading digit."""
    value = 4 * n
    if value < 160:
        at, power = value % 32, value // 32
    elif value < 240:
        at, power = 32 + value % 16, (value - 160) // 16
    else:
        at, power = 48, (value - 240) // 4
    factor = 1
    for _ in range(power):
        factor *= 3
    word = 0
    for i in range(4):
        digit = (load_u8(source + at + i) * factor & 255) * 3 >> 8
        word |= digit << (8 * i)
    return word


_put_tq1_0 = _make_two_bits(_tq1_0_levels)


@inlined
def _tq1_0(out, source, table, lane):
    _put_tq1_0(out, source, table, lane)
    copy_half(out + 1024, source + 52, lane)


@inlined
def _iq1_s_levels(source, table, n):
    g = n // 2
    high = load_u16(source + 34 + 2 * (g // 4)) >> (3 * (g % 4)) & 7
    return load_u32(table + 8 * (load_u8(source + 2 + g) | high << 8) + 4 * (n % 2))


_put_iq1_s = _make_two_bits(_iq1_s_levels)


@inlined
def _iq1_s(out, source, table, lane):
    _put_iq1_s(out, source, table, lane)
    for b in range(8):
        high = load_u16(source + 34 + 2 * b)
        store_u8(out + 1024 + 16 * b + lane, 2 * (high >> 12 & 7) + 1 | high >> 15 << 4)
    copy_half(out + 1152, source, lane)


@inlined
def _iq1_m_levels(source, table, n):
    g = n // 2
    high = load_u8(source + 32 + g // 2) >> (4 * (g % 2)) & 7
    return load_u32(table + 8 * (load_u8(source + g) | high << 8) + 4 * (n % 2))


_put_iq1_m = _make_two_bits(_iq1_m_levels)


@inlined
def _iq1_m(out, source, table, lane):
    _put_iq1_m(out, source, table, lane)
    up = 0
    for g in range(32):
        up |= (load_u8(source + 32 + g // 2) >> (4 * (g % 2) + 3) & 1 ^ 1) << g
    store_u32(out + 1024 + 4 * lane, up)
    scale = 0
    for word in range(4):
        scales = load_u16(source + 48 + 2 * word)
        scale |= scales >> 12 << (4 * word)
        for b in range(4):
            store_u8(out + 1088 + 16 * (4 * word + b) + lane, 2 * (scales >> (3 * b) & 7) + 1)
    store_u8(out + 1344 + 2 * lane, scale & 255)
    store_u8(out + 1345 + 2 * lane, scale >> 8)


@inlined
def _iq2_xxs_levels(source, table, n):
    block, g = source + 2 + 8 * (n // 8), n % 8 // 2
    signs = _even(load_u32(block + 4) >> (7 * g) & 127)
    return load_u32(table + 8 * load_u8(block + g) + 4 * (n % 2)) | _spread(signs, n) << 2


_put_iq2_xxs, _third_iq2_xxs = _make_two_bits(_iq2_xxs_levels), _make_third_bit(_iq2_xxs_levels)


@inlined
def _iq2_xxs(out, source, table, lane):
    _put_iq2_xxs(out, source, table, lane)
    _third_iq2_xxs(out + 1024, source, table, lane)
    for b in range(8):
        store_u8(out + 1536 + 16 * b + lane, 2 * (load_u8(source + 9 + 8 * b) >> 4) + 1)
    copy_half(out + 1664, source, lane)


@inlined
def _iq2_xs_levels(source, table, n):
    point = load_u16(source + 2 + 2 * (n // 2))
    return load_u32(table + 8 * (point & 511) + 4 * (n % 2)) | _spread(_even(point >> 9), n) << 2


_put_iq2_xs, _third_iq2_xs = _make_two_bits(_iq2_xs_levels), _make_third_bit(_iq2_xs_levels)


@inlined
def _iq2_xs(out, source, table, lane):
    _put_iq2_xs(out, source, table, lane)
    _third_iq2_xs(out + 1024, source, table, lane)
    _odd_scales(out + 1536, source + 66, lane, 16)
    copy_half(out + 1792, source, lane)


@inlined
def _iq2_s_levels(source, table, n):
    g = n // 2
    high = load_u8(source + 66 + g // 4) >> (2 * (g % 4)) & 3
    point = load_u32(table + 8 * (load_u8(source + 2 + g) | high << 8) + 4 * (n % 2))
    return point | _spread(load_u8(source + 34 + g), n) << 2


_put_iq2_s, _third_iq2_s = _make_two_bits(_iq2_s_levels), _make_third_bit(_iq2_s_levels)


@inlined
def _iq2_s(out, source, table, lane):
    _put_iq2_s(out, source, table, lane)
    _third_iq2_s(out + 1024, source, table, lane)
    _odd_scales(out + 1536, source + 74, lane, 16)
    copy_half(out + 1792, source, lane)


@inlined
def _iq3_xxs_levels(source, table, n):
    signs = _even(load_u32(source + 66 + 4 * (n // 8)) >> (7 * (n % 8 // 2)) & 127)
    return load_u32(table + 4 * load_u8(source + 2 + n)) | _spread(signs, n) << 3


_put_iq3_xxs = _make_four_bits(_iq3_xxs_levels)


@inlined
def _iq3_xxs(out, source, table, lane):
    _put_iq3_xxs(out, source, table, lane)
    for b in range(8):
        store_u8(out + 2048 + 16 * b + lane, 2 * (load_u8(source + 69 + 4 * b) >> 4) + 1)
    copy_half(out + 2176, source, lane)


@inlined
def _iq3_s_levels(source, table, n):
    """Magnitude m and its sign as one number: 8 + m, or 7 - m, which is all its bits turned."""
    high = load_u8(source + 66 + n // 8) >> (n % 8) & 1
    point = load_u32(table + 4 * (load_u8(source + 2 + n) | high << 8))
    return (point | 0x08080808) ^ 15 * _spread(load_u8(source + 74 + n // 2), n)


_put_iq3_s = _make_four_bits(_iq3_s_levels)


@inlined
def _iq3_s(out, source, table, lane):
    _put_iq3_s(out, source, table, lane)
    _odd_scales(out + 2048, source + 106, lane, 8)
    copy_half(out + 2176, source, lane)


pack_tq1_0 = make_pack("tq1_0", _tq1_0, 1056, 54)
pack_iq1_s = make_pack("iq1_s", _iq1_s, 1184, 50)
pack_iq1_m = make_pack("iq1_m", _iq1_m, 1376, 56)
pack_iq2_xxs = make_pack("iq2_xxs", _iq2_xxs, 1696, 66)
pack_iq2_xs = make_pack("iq2_xs", _iq2_xs, 1824, 74)
pack_iq2_s = make_pack("iq2_s", _iq2_s, 1824, 82)
pack_iq3_xxs = make_pack("iq3_xxs", _iq3_xxs, 2208, 98)
pack_iq3_s = make_pack("iq3_s", _iq3_s, 2208, 110)
