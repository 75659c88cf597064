"""What files of packing share: the planes they make, and the moves that several of them make.

A packer takes uint8 [n, bytes of a block] and returns uint8 planes [n, bytes]: codes, further bits and scales, the last
two None where the type has none.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from phobos.kernels.cuda.layout import BLOCK

Bytes = npt.NDArray[np.uint8]
Planes = tuple[Bytes, Bytes | None, Bytes | None]


def whole(data: npt.NDArray[np.uint8]) -> Bytes:
    """Part of a block, contiguous."""
    return np.ascontiguousarray(data)


def nibbles(values: Bytes) -> Bytes:
    """Codes below 16 [n, 32] to 16 bytes a block: input i in the low, 16 + i in the high half of byte i."""
    return values[:, :16] | (values[:, 16:] << np.uint8(4))


def in_order(packed: Bytes) -> Bytes:
    """16 bytes of low and high halves to 16 bytes of nibbles in order of input."""
    low, high = packed & np.uint8(15), packed >> np.uint8(4)
    values: Bytes = np.concatenate([low, high], axis=1)
    return values[:, 0::2] | (values[:, 1::2] << np.uint8(4))


def bit_planes(codes: Bytes, n_bits: int) -> Bytes:
    """The `n_bits` above the fourth of codes [n, 32] to words in the order `packed_types.py` says."""
    per_word = 8 // n_bits
    high = (codes >> 4).reshape(len(codes), -1, per_word, 4)  # [n, word, j, byte]
    out: Bytes = np.zeros((len(codes), high.shape[1], 4), np.uint8)
    for j in range(per_word):
        out |= high[:, :, j] << np.uint8(n_bits * j)
    return out.reshape(len(codes), -1)


def five_bit_word(bits: Bytes) -> Bytes:
    """Four bytes of high bits in order of input, rearranged."""
    values = np.unpackbits(bits, axis=1, bitorder="little")
    return bit_planes(values << np.uint8(4), 1)


def two_bits(codes: Bytes) -> Bytes:
    """Two-bit codes, in order of input, to words."""
    return bit_planes(codes.reshape(-1, BLOCK) << np.uint8(4), 2)
