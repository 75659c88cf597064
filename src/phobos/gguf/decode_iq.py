"""Block decoders of the IQ types, whose values are points of a codebook (`grids.py`).

Each takes blocks [n, n_bytes] uint8, contiguous, and returns their values [n, 256] float32 (IQ4_NL: [n, 32]). As in
`decode.py`, the order of the float operations is part of the contract.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from phobos.gguf.decode import Array, Bytes, Floats, fields, scale, split_bits
from phobos.gguf.grids import grid

IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
"""The sixteen values of IQ4_NL and IQ4_XS."""

_IQ1_DELTA = np.float32(0.125)


def _signs(packed: Array) -> Floats:
    """Sign bytes [...] as [..., 8] of 1 and -1, lowest bit first."""
    bits = np.unpackbits(np.ascontiguousarray(packed, np.uint8)[..., None], axis=-1, bitorder="little")
    return np.float32(1) - np.float32(2) * bits.astype(np.float32)


def _even_signs(packed: Array) -> Floats:
    """Seven stored sign bits; the eighth makes the number of minus signs even."""
    low = (packed & 127).astype(np.uint8)
    parity = low ^ (low >> 4)
    parity ^= parity >> 2
    parity ^= parity >> 1
    return _signs(low | (parity & 1) << 7)


def _points(name: str, index: Array, db: Floats, signs: Floats, run: int) -> Floats:
    """`db` [n, m] scales runs of `run` values of the grid points `index` [n, k]."""
    points = grid(name)[index].reshape(len(index), -1, run)
    return (db[:, :, None] * points * signs.reshape(points.shape)).reshape(-1, 256)


def _wide_scales(d: Array, scales: npt.NDArray[Any], factor: float) -> Floats:
    return scale(d) * (np.float32(0.5) + scales.astype(np.float32)) * np.float32(factor)


def _high_bits(qs: Array, qh: Array, n_bits: int) -> Array:
    """Eight low bits and, above them, `n_bits` from each byte of `qh` in turn."""
    return qs.astype(np.uint16) | split_bits(qh, 1, n_bits).reshape(len(qh), -1).astype(np.uint16) << 8


def decode_iq2_xxs(blocks: Bytes) -> Floats:
    d, words = fields(blocks, ("<f2",), ("<u4", (8, 2)))
    index = np.ascontiguousarray(words[..., 0]).view(np.uint8)
    signs = words[..., 1, None] >> np.array([0, 7, 14, 21], np.uint32)
    return _points("iq2_xxs", index, _wide_scales(d, words[..., 1] >> 28, 0.25), _even_signs(signs), 32)


def decode_iq2_xs(blocks: Bytes) -> Floats:
    d, qs, scales = fields(blocks, ("<f2",), ("<u2", 32), ("u1", 8))
    db = _wide_scales(d, split_bits(scales, 1, 4).reshape(-1, 16), 0.25)
    return _points("iq2_xs", qs & 511, db, _even_signs(qs >> 9), 16)


def decode_iq2_s(blocks: Bytes) -> Floats:
    d, qs, signs, qh, scales = fields(blocks, ("<f2",), ("u1", 32), ("u1", 32), ("u1", 8), ("u1", 8))
    db = _wide_scales(d, split_bits(scales, 1, 4).reshape(-1, 16), 0.25)
    return _points("iq2_s", _high_bits(qs, qh, 2), db, _signs(signs), 16)


def decode_iq3_xxs(blocks: Bytes) -> Floats:
    d, qs, words = fields(blocks, ("<f2",), ("u1", 64), ("<u4", 8))
    signs = words[..., None] >> np.array([0, 7, 14, 21], np.uint32)
    return _points("iq3_xxs", qs, _wide_scales(d, words >> 28, 0.5), _even_signs(signs), 32)


def decode_iq3_s(blocks: Bytes) -> Floats:
    d, qs, qh, signs, scales = fields(blocks, ("<f2",), ("u1", 64), ("u1", 8), ("u1", 32), ("u1", 4))
    db = scale(d) * (split_bits(scales, 1, 4).reshape(-1, 8) * 2 + 1).astype(np.float32)
    return _points("iq3_s", _high_bits(qs, qh, 1), db, _signs(signs), 32)


def _iq1_points(index: Array, dl: Floats, negative: Array) -> Floats:
    """Grid points `index` [n, 32], each moved by an eighth and scaled by `dl` [n, 32]."""
    delta = np.where(negative, -_IQ1_DELTA, _IQ1_DELTA)
    return (dl[:, :, None] * (grid("iq1")[index] + delta[:, :, None])).reshape(-1, 256)


def decode_iq1_s(blocks: Bytes) -> Floats:
    d, qs, qh = fields(blocks, ("<f2",), ("u1", 32), ("<u2", 8))
    dl = scale(d) * (2 * (qh >> 12 & 7) + 1).astype(np.float32)
    high = (qh[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(-1, 32)
    return _iq1_points(qs | high << 8, np.repeat(dl, 4, axis=-1), np.repeat(qh >> 15, 4, axis=-1))


def decode_iq1_m(blocks: Bytes) -> Floats:
    qs, qh, scales = fields(blocks, ("u1", 32), ("u1", 16), ("<u2", 4))
    # The scale is a half-precision number spread over the top four bits of the four words.
    nibbles = (scales & 0xF000) >> np.array([12, 8, 4, 0], np.uint16)
    d = np.bitwise_or.reduce(nibbles, axis=-1).astype("<u2").view("<f2")
    small = (scales[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(-1, 16)
    dl = scale(d) * (2 * small + 1).astype(np.float32)
    parts = split_bits(qh, 1, 4).reshape(-1, 32)
    index = qs | (parts & 7).astype(np.uint16) << 8
    return _iq1_points(index, np.repeat(dl, 2, axis=-1), parts & 8)


def decode_iq4_nl(blocks: Bytes) -> Floats:
    d, qs = fields(blocks, ("<f2",), ("u1", 16))
    return scale(d) * IQ4_VALUES[split_bits(qs, 16, 4).reshape(-1, 32)]


def decode_iq4_xs(blocks: Bytes) -> Floats:
    d, high, low, qs = fields(blocks, ("<f2",), ("<u2",), ("u1", 4), ("u1", 128))
    top = (high[:, None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3).astype(np.uint8)
    scales = (split_bits(low, 1, 4).reshape(-1, 8) | top << 4).astype(np.float32) - np.float32(32)
    values = IQ4_VALUES[split_bits(qs, 16, 4).reshape(-1, 8, 32)]
    return ((scale(d) * scales)[:, :, None] * values).reshape(-1, 256)
