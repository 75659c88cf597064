"""The types of one and two bits a value with one scale, ternary ones among them: Q1_0, Q2_0, TQ1_0, TQ2_0."""

from __future__ import annotations

import numpy as np

from phobos.gguf.quants import GGMLType
from phobos.kernels.cpu.code.access import load_u8, store_u32, vload_f16, vload_u8
from phobos.kernels.cpu.code.simd import inlined, low_bits, shift_words_right, splat
from phobos.kernels.cpu.code.types.levels import make_two_bits
from phobos.kernels.cpu.code.types.record import Format, put_half, put_high_bits, put_words, two_bits
from phobos.kernels.cpu.packed_types import PACKED

_Q1_0 = PACKED[GGMLType.Q1_0]
(_Q1_0_SCALE,) = _Q1_0.places("scale")
_Q2_0 = PACKED[GGMLType.Q2_0]
(_Q2_0_SCALE,) = _Q2_0.places("scale")
_TQ2_0 = PACKED[GGMLType.TQ2_0]
_TQ2_0_SCALE, _TQ2_0_CODES = _TQ2_0.places("scale", "codes")


@inlined
def _pack_q1_0(out, source, table, lane):
    for v in range(4):
        put_high_bits(out + 64 * v, source + 2 + 4 * v, lane)
    put_half(out + _Q1_0_SCALE, source, lane)


@inlined
def _q1_0_codes(w, b, j):
    return low_bits(shift_words_right(vload_u8(w + 64 * b), j), 1)


@inlined
def _q1_0_scale(w, b):
    """A bit stands for -1 or 1, two apart."""
    return splat(np.float32(2)) * vload_f16(w + _Q1_0_SCALE)


@inlined
def _q1_0_minimum(w, b):
    return splat(np.float32(-1)) * vload_f16(w + _Q1_0_SCALE)


@inlined
def _pack_q2_0(out, source, table, lane):
    """The four values of a byte go to the four bytes of a word, two bits apart from those of the next byte."""
    for v in range(4):
        word = 0
        for k in range(4):
            values = load_u8(source + 2 + 4 * v + k)
            for i in range(4):
                word |= (values >> (2 * i) & 3) << (8 * i + 2 * k)
        store_u32(out + 64 * v + 4 * lane, word)
    put_half(out + _Q2_0_SCALE, source, lane)


@inlined
def _q2_0_codes(w, b, j):
    return low_bits(shift_words_right(vload_u8(w + (2 * b + j // 4) * 64), 2 * (j % 4)), 3)


@inlined
def _q2_0_scale(w, b):
    return vload_f16(w + _Q2_0_SCALE)


@inlined
def _q2_0_minimum(w, b):
    return splat(np.float32(-1)) * vload_f16(w + _Q2_0_SCALE)


@inlined
def _pack_tq2_0(out, source, table, lane):
    put_words(out + _TQ2_0_CODES, source, lane, 16)
    put_half(out + _TQ2_0_SCALE, source + 64, lane)


@inlined
def _tq2_0_codes(w, b, j):
    return two_bits(w + _TQ2_0_CODES, 2 * b + j // 4, j % 4)


@inlined
def _tq2_0_scale(w, b):
    return vload_f16(w + _TQ2_0_SCALE)


@inlined
def _tq2_0_minimum(w, b):
    return splat(np.float32(-1)) * vload_f16(w + _TQ2_0_SCALE)


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


_put_tq1_0 = make_two_bits(_tq1_0_levels)


@inlined
def _pack_tq1_0(out, source, table, lane):
    _put_tq1_0(out + _TQ2_0_CODES, source, table, lane)
    put_half(out + _TQ2_0_SCALE, source + 52, lane)


FORMATS = {
    "q1_0": Format(_Q1_0, _q1_0_codes, _q1_0_scale, _q1_0_minimum),
    "q2_0": Format(_Q2_0, _q2_0_codes, _q2_0_scale, _q2_0_minimum),
    "tq2_0": Format(_TQ2_0, _tq2_0_codes, _tq2_0_scale, _tq2_0_minimum),
}
PACKERS = {"q1_0": _pack_q1_0, "q2_0": _pack_q2_0, "tq2_0": _pack_tq2_0, "tq1_0": _pack_tq1_0}
