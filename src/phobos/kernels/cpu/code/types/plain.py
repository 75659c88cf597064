"""The types of 32 values with one scale, and perhaps one minimum: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0."""

from __future__ import annotations

import numpy as np

from phobos.gguf.quants import GGMLType
from phobos.kernels.cpu.code.access import load_u32, store_u32, vload_f16, vload_u8
from phobos.kernels.cpu.code.simd import inlined, splat
from phobos.kernels.cpu.code.types.record import Format, bits_at, nibbles, put_half, put_high_bits, put_words
from phobos.kernels.cpu.packed_types import PACKED

_Q8_0 = PACKED[GGMLType.Q8_0]
(_Q8_0_SCALE,) = _Q8_0.places("scale")
_Q4_0 = PACKED[GGMLType.Q4_0]
(_Q4_0_SCALE,) = _Q4_0.places("scale")
_Q4_1 = PACKED[GGMLType.Q4_1]
_Q4_1_SCALE, _Q4_1_MINIMUM = _Q4_1.places("scale", "minimum")
_Q5_0 = PACKED[GGMLType.Q5_0]
_Q5_0_HIGH, _Q5_0_SCALE = _Q5_0.places("high", "scale")
_Q5_1 = PACKED[GGMLType.Q5_1]
_Q5_1_HIGH, _Q5_1_SCALE, _Q5_1_MINIMUM = _Q5_1.places("high", "scale", "minimum")


@inlined
def _pack_q8_0(out, source, table, lane):
    put_half(out + _Q8_0_SCALE, source, lane)
    for v in range(8):  # signed codes to unsigned: + 128 is a flip of the top bit
        store_u32(out + 64 * v + 4 * lane, load_u32(source + 2 + 4 * v) ^ 0x80808080)


@inlined
def _q8_0_codes(w, b, j):
    return vload_u8(w + j * 64)


@inlined
def _q8_0_scale(w, b):
    return vload_f16(w + _Q8_0_SCALE)


@inlined
def _q8_0_minimum(w, b):
    return splat(np.float32(-128)) * vload_f16(w + _Q8_0_SCALE)


@inlined
def _pack_q4_0(out, source, table, lane):
    put_words(out, source + 2, lane, 4)
    put_half(out + _Q4_0_SCALE, source, lane)


@inlined
def _q4_codes(w, b, j):
    return nibbles(w, j)


@inlined
def _q4_0_scale(w, b):
    return vload_f16(w + _Q4_0_SCALE)


@inlined
def _q4_0_minimum(w, b):
    return splat(np.float32(-8)) * vload_f16(w + _Q4_0_SCALE)


@inlined
def _pack_q4_1(out, source, table, lane):
    put_words(out, source + 4, lane, 4)
    put_half(out + _Q4_1_SCALE, source, lane)
    put_half(out + _Q4_1_MINIMUM, source + 2, lane)


@inlined
def _q4_1_scale(w, b):
    return vload_f16(w + _Q4_1_SCALE)


@inlined
def _q4_1_minimum(w, b):
    return vload_f16(w + _Q4_1_MINIMUM)


@inlined
def _fifth_bit(h, j):
    """Bit 4 of inputs 4j..4j+3: bit j of each byte of the rearranged high-bit word."""
    return bits_at(vload_u8(h), j, 4, 16)


@inlined
def _pack_q5_0(out, source, table, lane):
    put_words(out, source + 6, lane, 4)
    put_high_bits(out + _Q5_0_HIGH, source + 2, lane)
    put_half(out + _Q5_0_SCALE, source, lane)


@inlined
def _q5_0_codes(w, b, j):
    return nibbles(w, j) | _fifth_bit(w + _Q5_0_HIGH, j)


@inlined
def _q5_0_scale(w, b):
    return vload_f16(w + _Q5_0_SCALE)


@inlined
def _q5_0_minimum(w, b):
    return splat(np.float32(-16)) * vload_f16(w + _Q5_0_SCALE)


@inlined
def _pack_q5_1(out, source, table, lane):
    put_words(out, source + 8, lane, 4)
    put_high_bits(out + _Q5_1_HIGH, source + 4, lane)
    put_half(out + _Q5_1_SCALE, source, lane)
    put_half(out + _Q5_1_MINIMUM, source + 2, lane)


@inlined
def _q5_1_codes(w, b, j):
    return nibbles(w, j) | _fifth_bit(w + _Q5_1_HIGH, j)


@inlined
def _q5_1_scale(w, b):
    return vload_f16(w + _Q5_1_SCALE)


@inlined
def _q5_1_minimum(w, b):
    return vload_f16(w + _Q5_1_MINIMUM)


FORMATS = {
    "q8_0": Format(_Q8_0, _q8_0_codes, _q8_0_scale, _q8_0_minimum),
    "q4_0": Format(_Q4_0, _q4_codes, _q4_0_scale, _q4_0_minimum),
    "q4_1": Format(_Q4_1, _q4_codes, _q4_1_scale, _q4_1_minimum),
    "q5_0": Format(_Q5_0, _q5_0_codes, _q5_0_scale, _q5_0_minimum),
    "q5_1": Format(_Q5_1, _q5_1_codes, _q5_1_scale, _q5_1_minimum),
}
PACKERS = {"q8_0": _pack_q8_0, "q4_0": _pack_q4_0, "q4_1": _pack_q4_1, "q5_0": _pack_q5_0, "q5_1": _pack_q5_1}
