"""Q2_K, Q4_K, Q5_K, Q6_K; for Q3_K see `levels.py`."""

from __future__ import annotations

import numpy as np

from phobos.gguf.decode import split_bits, unpack_scales
from phobos.gguf.quants import GGMLType
from phobos.kernels.cuda.packing.planes import Bytes, Planes, bit_planes, nibbles, two_bits, whole


def _pack_q2_k(blocks: Bytes) -> Planes:
    return two_bits(split_bits(blocks[:, 16:80], 32, 2)), whole(blocks[:, :16]), whole(blocks[:, 80:])


def _k_codes(packed: Bytes) -> Bytes:
    """128 bytes of a 256-value block to [8 blocks of 32] values: bytes hold values 32 apart."""
    parts = packed.reshape(-1, 4, 1, 32)
    return np.concatenate([parts & 15, parts >> 4], axis=2).reshape(-1, 32)


def _k_scales(blocks: Bytes) -> Bytes:
    """Super-scale and super-minimum, then scale and minimum of each of the 8 blocks, a byte each."""
    scales, minima = unpack_scales(blocks[:, 4:16])
    return np.concatenate([blocks[:, :4], np.stack([scales, minima], axis=2).reshape(-1, 16)], axis=1)


def _pack_q4_k(blocks: Bytes) -> Planes:
    return nibbles(_k_codes(blocks[:, 16:])), None, _k_scales(blocks)


def _pack_q5_k(blocks: Bytes) -> Planes:
    low = nibbles(_k_codes(blocks[:, 48:]))
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    high: Bytes = (blocks[:, None, 16:48] >> shifts & np.uint8(1)).reshape(-1, 32)
    return low, bit_planes(high << np.uint8(4), 1), _k_scales(blocks)


def _pack_q6_k(blocks: Bytes) -> Planes:
    """Halves of 128 values: low nibbles of 64 bytes, then their high ones; two bits of quarters of 32."""
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    codes = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high: Bytes = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & np.uint8(3)
    scales = np.concatenate([blocks[:, 192:210], np.zeros((len(blocks), 2), np.uint8)], axis=1)
    return nibbles(codes), bit_planes(high.reshape(-1, 32) << np.uint8(4), 2), scales


PACKERS = {
    GGMLType.Q2_K: _pack_q2_k,
    GGMLType.Q4_K: _pack_q4_k,
    GGMLType.Q5_K: _pack_q5_k,
    GGMLType.Q6_K: _pack_q6_k,
}
