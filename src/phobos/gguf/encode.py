"""Block encoders, for the types that tests and tools write.

Each takes blocks [n, block] float32 and returns them packed [n, n_bytes] uint8. The plain types give the bytes of
the format's reference rounding. The K types take each group's scale from its extremes and do not search for a better
one: good enough to write a file with, not to make a model with.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from phobos.gguf.decode import FP4_VALUES, Array, Bytes, Floats
from phobos.gguf.decode_iq import IQ4_VALUES


def _inverse(d: Floats) -> Floats:
    """1 / d, and 0 where d is 0."""
    return np.divide(1, d, out=np.zeros_like(d), where=d != 0)


def _half(values: Floats) -> Bytes:
    """Scales [n, 1] as two bytes each [n, 2]."""
    return np.ascontiguousarray(values.astype("<f2")).view(np.uint8)


def _extreme(blocks: Floats) -> Floats:
    """The value of the largest magnitude, with its sign, along the last axis, which stays with length 1."""
    return np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1, keepdims=True), axis=-1)


def _round(values: Floats) -> Floats:
    """Round to the nearest, halves away from zero."""
    magnitude = np.abs(values)
    floor = np.floor(magnitude)
    return np.asarray(np.sign(values) * (floor + np.floor(2 * (magnitude - floor))), np.float32)


def _whole(values: npt.NDArray[Any], low: int, high: int) -> npt.NDArray[np.int32]:
    """Round and clip to whole numbers of low..high."""
    return np.clip(_round(values), low, high).astype(np.int32)


def join_bits(values: npt.NDArray[Any], group: int, n_bits: int) -> Bytes:
    """Pack [n, m] small numbers, the inverse of `decode.split_bits`: to [n, m * n_bits / 8]."""
    shifts = np.arange(0, 8, n_bits, dtype=np.uint8)[:, None]
    parts = values.astype(np.uint8).reshape(len(values), -1, 8 // n_bits, group) << shifts
    return np.asarray(np.bitwise_or.reduce(parts, axis=-2).reshape(len(values), -1), np.uint8)


def encode_bf16(blocks: Floats) -> Bytes:
    bits = blocks.view(np.uint32)
    quiet = np.where(bits & 0x7FFFFFFF > 0x7F800000, bits & 0xFFFF0000 | 0x400000, bits).astype(np.uint64)
    return ((quiet + (0x7FFF + (quiet >> 16 & 1))) >> 16).astype("<u2").view(np.uint8)


def _symmetric(blocks: Floats, half_range: int) -> tuple[Floats, Bytes]:
    d = _extreme(blocks) / np.float32(-half_range)
    q = np.trunc(blocks * _inverse(d) + np.float32(half_range + 0.5)).clip(0, 2 * half_range - 1)
    return d, q.astype(np.uint8)


def _affine(blocks: Floats, top: int) -> tuple[Floats, Floats, Bytes]:
    low = blocks.min(axis=-1, keepdims=True)
    d = (blocks.max(axis=-1, keepdims=True) - low) / np.float32(top)
    q = np.trunc((blocks - low) * _inverse(d) + np.float32(0.5)).clip(0, top)
    return d, low, q.astype(np.uint8)


def _fifth_bits(q: Bytes) -> Bytes:
    return np.packbits(q >> 4, axis=-1, bitorder="little")


def encode_q4_0(blocks: Floats) -> Bytes:
    d, q = _symmetric(blocks, 8)
    return np.concatenate([_half(d), join_bits(q, 16, 4)], axis=-1)


def encode_q4_1(blocks: Floats) -> Bytes:
    d, low, q = _affine(blocks, 15)
    return np.concatenate([_half(d), _half(low), join_bits(q, 16, 4)], axis=-1)


def encode_q5_0(blocks: Floats) -> Bytes:
    d, q = _symmetric(blocks, 16)
    return np.concatenate([_half(d), _fifth_bits(q), join_bits(q & 15, 16, 4)], axis=-1)


def encode_q5_1(blocks: Floats) -> Bytes:
    d, low, q = _affine(blocks, 31)
    return np.concatenate([_half(d), _half(low), _fifth_bits(q), join_bits(q & 15, 16, 4)], axis=-1)


def encode_q8_0(blocks: Floats) -> Bytes:
    d = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
    q = _round(blocks * _inverse(d)).astype(np.int8)
    return np.concatenate([_half(d), q.view(np.uint8)], axis=-1)


def _read_half(values: Floats) -> Floats:
    """The scales as the file will hold them."""
    return values.astype(np.float16).astype(np.float32)


def _affine_groups(blocks: Floats, group: int, top: int, top_scale: int) -> tuple[Floats, Floats, Array, Array, Array]:
    """Groups of `group` values as scale * q - minimum, q in 0..top, both factors in 0..top_scale times a float of
    the block: (d [n, 1], dmin [n, 1], scales [n, k], minima [n, k], q [n, 256])."""
    groups = blocks.reshape(len(blocks), -1, group)
    minima = np.maximum(-groups.min(axis=-1), 0)
    scales = (np.maximum(groups.max(axis=-1), 0) + minima) / np.float32(top)
    d = _read_half(scales.max(axis=-1, keepdims=True) / np.float32(top_scale))
    dmin = _read_half(minima.max(axis=-1, keepdims=True) / np.float32(top_scale))
    scale_codes = _whole(scales * _inverse(d), 0, top_scale)
    minimum_codes = _whole(minima * _inverse(dmin), 0, top_scale)
    shifted = groups + (dmin * minimum_codes.astype(np.float32))[:, :, None]
    q = _whole(shifted * _inverse(d * scale_codes.astype(np.float32))[:, :, None], 0, top)
    return d, dmin, scale_codes, minimum_codes, q.reshape(len(blocks), -1)


def _symmetric_groups(blocks: Floats, half_range: int, top_scale: int) -> tuple[Floats, Array, Array]:
    """Groups of 16 values as scale * q, q in -half_range..half_range - 1, the scale in -top_scale..top_scale times a
    float of the block: (d [n, 1], scales [n, 16], q [n, 256])."""
    groups = blocks.reshape(len(blocks), 16, 16)
    scales = _extreme(groups)[:, :, 0] / np.float32(-half_range)
    d = _read_half(np.abs(scales).max(axis=-1, keepdims=True) / np.float32(top_scale))
    codes = _whole(scales * _inverse(d), -top_scale, top_scale)
    q = _whole(groups * _inverse(d * codes.astype(np.float32))[:, :, None], -half_range, half_range - 1)
    return d, codes, q.reshape(len(blocks), -1)


def _pack_scales(scales: Array, minima: Array) -> Bytes:
    """The inverse of `decode.unpack_scales`."""
    parts = [
        scales[:, :4] | scales[:, 4:] >> 4 << 6,
        minima[:, :4] | minima[:, 4:] >> 4 << 6,
        scales[:, 4:] & 15 | (minima[:, 4:] & 15) << 4,
    ]
    return np.concatenate(parts, axis=-1).astype(np.uint8)


def encode_q2_k(blocks: Floats) -> Bytes:
    d, dmin, scales, minima, q = _affine_groups(blocks, 16, 3, 15)
    return np.concatenate(
        [(scales | minima << 4).astype(np.uint8), join_bits(q, 32, 2), _half(d), _half(dmin)], axis=-1
    )


def encode_q3_k(blocks: Floats) -> Bytes:
    d, scales, q = _symmetric_groups(blocks, 4, 31)
    scales, q = scales + 32, q + 4
    packed = [join_bits(scales & 15, 8, 4), join_bits(scales >> 4, 4, 2)]
    return np.concatenate([join_bits(q >> 2, 32, 1), join_bits(q & 3, 32, 2), *packed, _half(d)], axis=-1)


def encode_q4_k(blocks: Floats) -> Bytes:
    d, dmin, scales, minima, q = _affine_groups(blocks, 32, 15, 63)
    return np.concatenate([_half(d), _half(dmin), _pack_scales(scales, minima), join_bits(q, 32, 4)], axis=-1)


def encode_q5_k(blocks: Floats) -> Bytes:
    d, dmin, scales, minima, q = _affine_groups(blocks, 32, 31, 63)
    packed = [join_bits(q >> 4, 32, 1), join_bits(q & 15, 32, 4)]
    return np.concatenate([_half(d), _half(dmin), _pack_scales(scales, minima), *packed], axis=-1)


def encode_q6_k(blocks: Floats) -> Bytes:
    d, scales, q = _symmetric_groups(blocks, 32, 127)
    q = q + 32
    packed = [join_bits(q & 15, 64, 4), join_bits(q >> 4, 32, 2)]
    return np.concatenate([*packed, scales.astype(np.int8).view(np.uint8), _half(d)], axis=-1)


def _nearest(values: Floats, points: Floats) -> Bytes:
    """The index of the point closest to each value, the first of equals."""
    return np.asarray(np.abs(values[..., None] - points).argmin(axis=-1), np.uint8)


def encode_iq4_nl(blocks: Floats) -> Bytes:
    d = _read_half(_extreme(blocks) / IQ4_VALUES[0])
    q = _nearest(blocks * _inverse(d), IQ4_VALUES)
    return np.concatenate([_half(d), join_bits(q, 16, 4)], axis=-1)


def encode_mxfp4(blocks: Floats) -> Bytes:
    top = np.abs(blocks).max(axis=-1, keepdims=True)
    logarithm = np.log2(top, out=np.full_like(top, -125), where=top > 0)
    e = np.clip(np.floor(logarithm) + 125, 0, 254).astype(np.uint8)
    scaled = FP4_VALUES * np.ldexp(np.float32(1), e.astype(np.int32) - 128)
    q = np.abs(scaled[:, None, :] - blocks[:, :, None]).argmin(axis=-1)
    return np.concatenate([e, join_bits(q, 16, 4)], axis=-1)
