"""Packing of the types whose codes name more than one value (points of a codebook), or that need no kernels of their
own: as levels of single values, three or four bits each, which a table of the type turns into signed bytes, with a
scale for every 16.

Levels are read off the values themselves: what is left of them once they are divided by their scale is an entry of the
table. `_SCALES[type](blocks)` gives a block's float32 scale [n] and the small whole numbers [n, 16] that multiply it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from phobos.gguf.decode import fields, split_bits
from phobos.gguf.quants import TABLE, GGMLType
from phobos.kernels.cuda.packed_types import PACKED
from phobos.kernels.cuda.packing.planes import Bytes, Planes

Scales = tuple[npt.NDArray[np.float32], npt.NDArray[np.int8]]


def _scales(d: npt.NDArray[Any], factor: float, small: npt.NDArray[Any]) -> Scales:
    """Numbers for 32 values each are taken twice."""
    each = np.repeat(small, 16 // small.shape[1], axis=1)
    return d.astype(np.float32) * np.float32(factor), each.astype(np.int8)


def _odd(small: npt.NDArray[Any]) -> npt.NDArray[np.int8]:
    return (2 * small.astype(np.int8) + 1).astype(np.int8)


def _nibbles(packed: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return split_bits(packed, 1, 4).reshape(len(packed), -1)


def _q3_k(blocks: Bytes) -> Scales:
    packed, d = fields(blocks[:, 96:].copy(), ("u1", 12), ("<f2",))
    low = split_bits(packed[:, :8], 8, 4).reshape(-1, 16)
    high = split_bits(packed[:, 8:], 4, 2).reshape(-1, 16)
    return _scales(d, 1, (low | high << 4).astype(np.int8) - 32)


def _iq4_xs(blocks: Bytes) -> Scales:
    d, high, low = fields(blocks[:, :8].copy(), ("<f2",), ("<u2",), ("u1", 4))
    top = (high[:, None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3).astype(np.uint8)
    return _scales(d, 1, (_nibbles(low) | top << 4).astype(np.int8) - 32)


def _iq2_xxs(blocks: Bytes) -> Scales:
    d, words = fields(blocks, ("<f2",), ("<u4", (8, 2)))
    return _scales(d, 1 / 8, _odd(words[..., 1] >> 28))


def _iq2_xs(blocks: Bytes) -> Scales:
    d, _, small = fields(blocks, ("<f2",), ("<u2", 32), ("u1", 8))
    return _scales(d, 1 / 8, _odd(_nibbles(small)))


def _iq2_s(blocks: Bytes) -> Scales:
    d, _, small = fields(blocks, ("<f2",), ("u1", 72), ("u1", 8))
    return _scales(d, 1 / 8, _odd(_nibbles(small)))


def _iq3_xxs(blocks: Bytes) -> Scales:
    d, _, words = fields(blocks, ("<f2",), ("u1", 64), ("<u4", 8))
    return _scales(d, 1 / 4, _odd(words >> 28))


def _iq3_s(blocks: Bytes) -> Scales:
    d, _, small = fields(blocks, ("<f2",), ("u1", 104), ("u1", 4))
    return _scales(d, 1, _odd(_nibbles(small)))


def _iq1_s(blocks: Bytes) -> Scales:
    d, _, high = fields(blocks, ("<f2",), ("u1", 32), ("<u2", 8))
    return _scales(d, 1 / 8, _odd(high >> 12 & 7))


def _iq1_m(blocks: Bytes) -> Scales:
    _, words = fields(blocks, ("u1", 48), ("<u2", 4))
    nibbles = (words & 0xF000) >> np.array([12, 8, 4, 0], np.uint16)
    d = np.bitwise_or.reduce(nibbles, axis=-1).astype("<u2").view("<f2")
    return _scales(d, 1 / 8, _odd((words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(-1, 16)))


_SCALES: Mapping[GGMLType, Callable[[Bytes], Scales]] = {
    GGMLType.Q3_K: _q3_k,
    GGMLType.IQ4_XS: _iq4_xs,
    GGMLType.IQ3_XXS: _iq3_xxs,
    GGMLType.IQ3_S: _iq3_s,
    GGMLType.IQ2_XXS: _iq2_xxs,
    GGMLType.IQ2_XS: _iq2_xs,
    GGMLType.IQ2_S: _iq2_s,
    GGMLType.IQ1_S: _iq1_s,
    GGMLType.IQ1_M: _iq1_m,
}


def _in_fours(codes: Bytes) -> Bytes:
    """Codes [n, 32] to nibbles in order."""
    return codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)


def _in_threes(codes: Bytes) -> Bytes:
    """Codes below 8 [n, 32] to nibbles in order, the last eight in the top bits of the others."""
    bits = codes[:, None, 24:] >> np.arange(3, dtype=np.uint8)[:, None] & np.uint8(1)
    return _in_fours(codes[:, :24] | bits.reshape(-1, 24) << np.uint8(3))


def _make_packer(kind: GGMLType) -> Callable[[Bytes], Planes]:
    """The packer of a type; the second plane is the type's table, the same for all blocks."""
    places = np.zeros(256, np.uint8)
    join = _in_threes if PACKED[kind].code_bytes == 12 else _in_fours
    for place, level in reversed(list(enumerate(PACKED[kind].table))):
        places[level + 128] = place

    def pack(blocks: Bytes) -> Planes:
        blocks = np.ascontiguousarray(blocks)
        d, small = _SCALES[kind](blocks)
        scales = d[:, None] * small
        values = TABLE[kind].dequantize(blocks).reshape(-1, 16, 16)
        levels = np.rint(values / np.where(scales == 0, np.float32(1), scales)[:, :, None])
        codes = places[levels.astype(np.int16) + 128].reshape(-1, 32)
        ends = np.concatenate([small.view(np.uint8), d.astype("<f4")[:, None].view(np.uint8)], axis=1)
        return join(codes), None, np.ascontiguousarray(ends)

    return pack


PACKERS = {kind: _make_packer(kind) for kind in _SCALES}
