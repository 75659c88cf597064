"""Packing: rows of a matrix, as the file has them, to the planes of `layout.py`. Plain NumPy, a slab of rows at a time.

`PACKERS[type](blocks)` takes uint8 [n, bytes of a block] and returns uint8 planes [n, bytes] (codes, further bits,
scales), two of them None where the type has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from phobos.gguf.decode import decode_tq1_0, split_bits, unpack_scales
from phobos.gguf.quants import GGMLType
from phobos.kernels.cuda.layout import BLOCK
from phobos.kernels.cuda.pack_levels import SCALES, make_packer

Bytes = npt.NDArray[np.uint8]
Planes = tuple[Bytes, Bytes | None, Bytes | None]


def _whole(data: npt.NDArray[np.uint8]) -> Bytes:
    return np.ascontiguousarray(data)


def _nibbles(values: Bytes) -> Bytes:
    """Codes below 16 [n, 32] to 16 bytes a block: input i in the low, 16 + i in the high half of byte i."""
    return values[:, :16] | (values[:, 16:] << np.uint8(4))


def _in_order(packed: Bytes) -> Bytes:
    """16 bytes of low and high halves to 16 bytes of nibbles in order of input."""
    low, high = packed & np.uint8(15), packed >> np.uint8(4)
    values: Bytes = np.concatenate([low, high], axis=1)
    return values[:, 0::2] | (values[:, 1::2] << np.uint8(4))


def _bit_planes(codes: Bytes, n_bits: int) -> Bytes:
    """The `n_bits` above the fourth of codes [n, 32] to words in the order `layout.py` says."""
    per_word = 8 // n_bits
    high = (codes >> 4).reshape(len(codes), -1, per_word, 4)  # [n, word, j, byte]
    out: Bytes = np.zeros((len(codes), high.shape[1], 4), np.uint8)
    for j in range(per_word):
        out |= high[:, :, j] << np.uint8(n_bits * j)
    return out.reshape(len(codes), -1)


def _five_bit_word(bits: Bytes) -> Bytes:
    """Four bytes of high bits in order of input, rearranged."""
    values = np.unpackbits(bits, axis=1, bitorder="little")
    return _bit_planes(values << np.uint8(4), 1)


def _pack_q8_0(blocks: Bytes) -> Planes:
    return _whole(blocks[:, 2:]), None, _whole(blocks[:, :2])


def _pack_q4_0(blocks: Bytes) -> Planes:
    return _whole(blocks[:, 2:]), None, _whole(blocks[:, :2])


def _pack_q4_1(blocks: Bytes) -> Planes:
    return _whole(blocks[:, 4:]), None, _whole(blocks[:, :4])


def _pack_q5_0(blocks: Bytes) -> Planes:
    return _whole(blocks[:, 6:]), _five_bit_word(blocks[:, 2:6]), _whole(blocks[:, :2])


def _pack_q5_1(blocks: Bytes) -> Planes:
    return _whole(blocks[:, 8:]), _five_bit_word(blocks[:, 4:8]), _whole(blocks[:, :4])


def _pack_iq4_nl(blocks: Bytes) -> Planes:
    return _in_order(blocks[:, 2:]), None, _whole(blocks[:, :2])


def _pack_mxfp4(blocks: Bytes) -> Planes:
    return _in_order(blocks[:, 1:]), None, _whole(blocks[:, :1])


def _pack_nvfp4(blocks: Bytes) -> Planes:
    """The code of NaN among the scales counts as zero."""
    values = split_bits(blocks[:, 4:], 8, 4).reshape(-1, 64)
    scales = np.where(blocks[:, :4] == 0x7F, np.uint8(0), blocks[:, :4])
    return values[:, 0::2] | (values[:, 1::2] << np.uint8(4)), None, scales


def _two_bits(codes: Bytes) -> Bytes:
    return _bit_planes(codes.reshape(-1, BLOCK) << np.uint8(4), 2)


def _pack_q2_k(blocks: Bytes) -> Planes:
    return _two_bits(split_bits(blocks[:, 16:80], 32, 2)), _whole(blocks[:, :16]), _whole(blocks[:, 80:])


def _pack_q1_0(blocks: Bytes) -> Planes:
    return _five_bit_word(blocks[:, 2:].reshape(-1, 4)), None, _whole(blocks[:, :2])


def _pack_q2_0(blocks: Bytes) -> Planes:
    return _two_bits(split_bits(blocks[:, 2:], 1, 2)), None, _whole(blocks[:, :2])


def _pack_tq2_0(blocks: Bytes) -> Planes:
    return _two_bits(split_bits(blocks[:, :64], 32, 2)), None, _whole(blocks[:, 64:])


def _pack_tq1_0(blocks: Bytes) -> Planes:
    """As TQ2_0: the signs of the values, whatever the scale is."""
    digits = blocks.copy()
    digits[:, 52:] = np.array([1.0], "<f2").view(np.uint8)
    codes = decode_tq1_0(digits).astype(np.int8) + np.int8(1)
    return _two_bits(codes.view(np.uint8)), None, _whole(blocks[:, 52:])


def _k_codes(packed: Bytes) -> Bytes:
    """128 bytes of a 256-value block to [8 blocks of 32] values: bytes hold values 32 apart."""
    parts = packed.reshape(-1, 4, 1, 32)
    return np.concatenate([parts & 15, parts >> 4], axis=2).reshape(-1, 32)


def _k_scales(blocks: Bytes) -> Bytes:
    """Super-scale and super-minimum, then scale and minimum of each of the 8 blocks, a byte each."""
    scales, minima = unpack_scales(blocks[:, 4:16])
    return np.concatenate([blocks[:, :4], np.stack([scales, minima], axis=2).reshape(-1, 16)], axis=1)


def _pack_q4_k(blocks: Bytes) -> Planes:
    return _nibbles(_k_codes(blocks[:, 16:])), None, _k_scales(blocks)


def _pack_q5_k(blocks: Bytes) -> Planes:
    low = _nibbles(_k_codes(blocks[:, 48:]))
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    high: Bytes = (blocks[:, None, 16:48] >> shifts & np.uint8(1)).reshape(-1, 32)
    return low, _bit_planes(high << np.uint8(4), 1), _k_scales(blocks)


def _pack_q6_k(blocks: Bytes) -> Planes:
    """Halves of 128 values: low nibbles of 64 bytes, then their high ones; two bits of quarters of 32."""
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    codes = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high: Bytes = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & np.uint8(3)
    scales = np.concatenate([blocks[:, 192:210], np.zeros((len(blocks), 2), np.uint8)], axis=1)
    return _nibbles(codes), _bit_planes(high.reshape(-1, 32) << np.uint8(4), 2), scales


PACKERS: Mapping[GGMLType, Callable[[Bytes], Planes]] = {
    GGMLType.Q8_0: _pack_q8_0,
    GGMLType.Q4_0: _pack_q4_0,
    GGMLType.Q4_1: _pack_q4_1,
    GGMLType.Q5_0: _pack_q5_0,
    GGMLType.Q5_1: _pack_q5_1,
    GGMLType.Q4_K: _pack_q4_k,
    GGMLType.Q5_K: _pack_q5_k,
    GGMLType.Q6_K: _pack_q6_k,
    GGMLType.IQ4_NL: _pack_iq4_nl,
    GGMLType.MXFP4: _pack_mxfp4,
    GGMLType.NVFP4: _pack_nvfp4,
    GGMLType.Q2_K: _pack_q2_k,
    GGMLType.Q1_0: _pack_q1_0,
    GGMLType.Q2_0: _pack_q2_0,
    GGMLType.TQ1_0: _pack_tq1_0,
    GGMLType.TQ2_0: _pack_tq2_0,
    **{kind: make_packer(kind) for kind in SCALES},
}
