"""The types of 256 values with a scale for each block of 16 or 32 of them: Q2_K to Q6_K."""

from __future__ import annotations

import numpy as np

from phobos.gguf.quants import GGMLType
from phobos.kernels.cpu.code.access import (
    load_u8,
    store_u8,
    vload_f16,
    vload_i8_f32,
    vload_u8,
    vload_u8_f32,
    vload_u8_i32,
)
from phobos.kernels.cpu.code.simd import inlined, shift_right, splat, splat_i32, to_float
from phobos.kernels.cpu.code.types.record import (
    Format,
    bits_at,
    paired_nibbles,
    put_bytes,
    put_half,
    put_words,
    third_bit,
    two_bits,
)
from phobos.kernels.cpu.packed_types import PACKED

_Q2_K = PACKED[GGMLType.Q2_K]
_Q2_K_SCALES, _Q2_K_SCALE, _Q2_K_MINIMUM, _Q2_K_CODES = _Q2_K.places("scales", "scale", "minimum", "codes")
_Q3_K = PACKED[GGMLType.Q3_K]
_Q3_K_CODES, _Q3_K_HIGH, _Q3_K_SCALES, _Q3_K_SCALE = _Q3_K.places("codes", "high", "scales", "scale")
_Q4_K = PACKED[GGMLType.Q4_K]
_Q4_K_SCALE, _Q4_K_MINIMUM, _Q4_K_SCALES, _Q4_K_MINIMUMS, _Q4_K_CODES = _Q4_K.places(
    "scale", "minimum", "scales", "minimums", "codes"
)
_Q5_K = PACKED[GGMLType.Q5_K]
_Q5_K_SCALE, _Q5_K_MINIMUM, _Q5_K_SCALES, _Q5_K_MINIMUMS, _Q5_K_HIGH, _Q5_K_CODES = _Q5_K.places(
    "scale", "minimum", "scales", "minimums", "high", "codes"
)
_Q6_K = PACKED[GGMLType.Q6_K]
_Q6_K_SCALES, _Q6_K_SCALE, _Q6_K_HIGH, _Q6_K_CODES, _Q6_K_SECOND = _Q6_K.places(
    "scales", "scale", "first high", "first codes", "second high"
)
_Q6_K_HALF = _Q6_K_SECOND - _Q6_K_HIGH  # bytes of the first half's high bits and codes


@inlined
def _pack_q2_k(out, source, table, lane):
    put_words(out + _Q2_K_CODES, source + 16, lane, 16)
    put_bytes(out + _Q2_K_SCALES, source, lane, 16)
    put_half(out + _Q2_K_SCALE, source + 80, lane)
    put_half(out + _Q2_K_MINIMUM, source + 82, lane)


@inlined
def _q2_k_codes(w, b, j):
    return two_bits(w + _Q2_K_CODES, b, j)


@inlined
def _q2_k_scale(w, b):
    return vload_f16(w + _Q2_K_SCALE) * to_float(vload_u8_i32(w + _Q2_K_SCALES + b * 16) & splat_i32(np.int32(15)))


@inlined
def _q2_k_minimum(w, b):
    steps = to_float(shift_right(vload_u8_i32(w + _Q2_K_SCALES + b * 16), np.int32(4)))
    return splat(np.float32(-1)) * vload_f16(w + _Q2_K_MINIMUM) * steps


@inlined
def _pack_q3_k(out, source, table, lane):
    put_words(out + _Q3_K_CODES, source + 32, lane, 16)
    put_words(out + _Q3_K_HIGH, source, lane, 8)
    for b in range(16):  # four low bits in eight bytes, two high ones in four
        low = load_u8(source + 96 + b % 8) >> (4 * (b // 8)) & 15
        high = load_u8(source + 104 + b % 4) >> (2 * (b // 4)) & 3
        store_u8(out + _Q3_K_SCALES + 16 * b + lane, (low | high << 4) - 32)
    put_half(out + _Q3_K_SCALE, source + 108, lane)


@inlined
def _q3_k_codes(w, b, j):
    return two_bits(w + _Q3_K_CODES, b, j) | third_bit(w + _Q3_K_HIGH, b, j)


@inlined
def _q3_k_scale(w, b):
    return vload_f16(w + _Q3_K_SCALE) * vload_i8_f32(w + _Q3_K_SCALES + b * 16)


@inlined
def _q3_k_minimum(w, b):
    return splat(np.float32(-4)) * _q3_k_scale(w, b)


@inlined
def _put_six_bit_scales(scales, minimums, source, lane):
    """The 12 bytes of 8 six-bit scales and minimums of a K block, a byte each."""
    for b in range(4):
        low, middle, high = load_u8(source + b), load_u8(source + 4 + b), load_u8(source + 8 + b)
        store_u8(scales + 16 * b + lane, low & 63)
        store_u8(minimums + 16 * b + lane, middle & 63)
        store_u8(scales + 16 * (b + 4) + lane, (high & 15) | (low >> 6 << 4))
        store_u8(minimums + 16 * (b + 4) + lane, (high >> 4) | (middle >> 6 << 4))


@inlined
def _pack_q4_k(out, source, table, lane):
    put_words(out + _Q4_K_CODES, source + 16, lane, 32)
    put_half(out + _Q4_K_SCALE, source, lane)
    put_half(out + _Q4_K_MINIMUM, source + 2, lane)
    _put_six_bit_scales(out + _Q4_K_SCALES, out + _Q4_K_MINIMUMS, source + 4, lane)


@inlined
def _q4_k_codes(w, b, j):
    return paired_nibbles(w + _Q4_K_CODES, b, j)


@inlined
def _q4_k_scale(w, b):
    return vload_f16(w + _Q4_K_SCALE) * vload_u8_f32(w + _Q4_K_SCALES + b * 16)


@inlined
def _q4_k_minimum(w, b):
    return splat(np.float32(-1)) * vload_f16(w + _Q4_K_MINIMUM) * vload_u8_f32(w + _Q4_K_MINIMUMS + b * 16)


@inlined
def _pack_q5_k(out, source, table, lane):
    put_words(out + _Q5_K_CODES, source + 48, lane, 32)
    put_words(out + _Q5_K_HIGH, source + 16, lane, 8)
    put_half(out + _Q5_K_SCALE, source, lane)
    put_half(out + _Q5_K_MINIMUM, source + 2, lane)
    _put_six_bit_scales(out + _Q5_K_SCALES, out + _Q5_K_MINIMUMS, source + 4, lane)


@inlined
def _q5_k_codes(w, b, j):
    return paired_nibbles(w + _Q5_K_CODES, b, j) | bits_at(vload_u8(w + _Q5_K_HIGH + j * 64), b, 4, 16)


@inlined
def _q5_k_scale(w, b):
    return vload_f16(w + _Q5_K_SCALE) * vload_u8_f32(w + _Q5_K_SCALES + b * 16)


@inlined
def _q5_k_minimum(w, b):
    return splat(np.float32(-1)) * vload_f16(w + _Q5_K_MINIMUM) * vload_u8_f32(w + _Q5_K_MINIMUMS + b * 16)


@inlined
def _pack_q6_k(out, source, table, lane):
    for half in range(2):
        put_words(out + _Q6_K_HIGH + half * _Q6_K_HALF, source + 128 + 32 * half, lane, 8)
        put_words(out + _Q6_K_CODES + half * _Q6_K_HALF, source + 64 * half, lane, 16)
    put_bytes(out + _Q6_K_SCALES, source + 192, lane, 16)
    put_half(out + _Q6_K_SCALE, source + 208, lane)


@inlined
def _q6_k_codes(w, b, j):
    """Block b of 16: half b//8, quarter (b%8)//2 of it; quarters 0 and 1 are low nibbles, 2 and 3 high ones."""
    half, quarter, place = w + b // 8 * _Q6_K_HALF, (b % 8) // 2, (b % 2) * 4 + j
    low = vload_u8(half + _Q6_K_CODES + ((quarter % 2) * 8 + place) * 64)
    high = vload_u8(half + _Q6_K_HIGH + place * 64)
    return bits_at(low, 4 * (quarter // 2), 0, 15) | bits_at(high, 2 * quarter, 4, 48)


@inlined
def _q6_k_scale(w, b):
    return vload_f16(w + _Q6_K_SCALE) * vload_i8_f32(w + _Q6_K_SCALES + b * 16)


@inlined
def _q6_k_minimum(w, b):
    return splat(np.float32(-32)) * _q6_k_scale(w, b)


FORMATS = {
    "q2_k": Format(_Q2_K, _q2_k_codes, _q2_k_scale, _q2_k_minimum),
    "q3_k": Format(_Q3_K, _q3_k_codes, _q3_k_scale, _q3_k_minimum),
    "q4_k": Format(_Q4_K, _q4_k_codes, _q4_k_scale, _q4_k_minimum),
    "q5_k": Format(_Q5_K, _q5_k_codes, _q5_k_scale, _q5_k_minimum),
    "q6_k": Format(_Q6_K, _q6_k_codes, _q6_k_scale, _q6_k_minimum),
}
PACKERS = {"q2_k": _pack_q2_k, "q3_k": _pack_q3_k, "q4_k": _pack_q4_k, "q5_k": _pack_q5_k, "q6_k": _pack_q6_k}
