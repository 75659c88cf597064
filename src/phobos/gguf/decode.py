"""Block decoders of the plain, the K, the ternary and the microscaling types.

Each takes blocks [n, n_bytes] uint8, contiguous, and returns their values [n, block] float32. The layouts are those
of the GGUF format; the order of the float operations is part of the contract, because every other implementation
must be able to give the same bits. Four-bit and smaller values share one habit: a byte holds values that lie half a
group (or a quarter, an eighth) apart, lowest bits first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Array = npt.NDArray[Any]

FP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
"""The sixteen E2M1 values, doubled so that they are whole; the scales carry the missing half."""


def fields(blocks: Bytes, *layout: tuple[Any, ...]) -> tuple[Array, ...]:
    """The parts of blocks in order of `layout`, a list of NumPy field types without names: each [n, ...]."""
    names = [f"f{i}" for i in range(len(layout))]
    kind = np.dtype([(name, *part) for name, part in zip(names, layout, strict=True)])
    records = blocks.view(kind)[:, 0]
    return tuple(records[name] for name in names)


def scale(half: Array) -> Floats:
    """Half-precision scales [n] as a float column [n, 1]."""
    return half.astype(np.float32)[:, None]


def split_bits(packed: Array, group: int, n_bits: int) -> Bytes:
    """Unpack runs of `group` bytes: [n, m] to [n, m / group, 8 / n_bits, group], lowest bits first."""
    shifts = np.arange(0, 8, n_bits, dtype=np.uint8)[:, None]
    parts = packed.reshape(len(packed), -1, 1, group) >> shifts
    return np.asarray(parts & np.uint8((1 << n_bits) - 1), np.uint8)


def decode_q4_0(blocks: Bytes) -> Floats:
    d, qs = fields(blocks, ("<f2",), ("u1", 16))
    q = split_bits(qs, 16, 4).reshape(-1, 32).astype(np.float32) - np.float32(8)
    return scale(d) * q


def decode_q4_1(blocks: Bytes) -> Floats:
    d, m, qs = fields(blocks, ("<f2",), ("<f2",), ("u1", 16))
    return scale(d) * split_bits(qs, 16, 4).reshape(-1, 32).astype(np.float32) + scale(m)


def _five_bits(high: Array, low: Array) -> Floats:
    top = np.unpackbits(high, axis=-1, bitorder="little")
    return (split_bits(low, 16, 4).reshape(-1, 32) | (top << 4)).astype(np.float32)


def decode_q5_0(blocks: Bytes) -> Floats:
    d, qh, qs = fields(blocks, ("<f2",), ("u1", 4), ("u1", 16))
    return scale(d) * (_five_bits(qh, qs) - np.float32(16))


def decode_q5_1(blocks: Bytes) -> Floats:
    d, m, qh, qs = fields(blocks, ("<f2",), ("<f2",), ("u1", 4), ("u1", 16))
    return scale(d) * _five_bits(qh, qs) + scale(m)


def decode_q8_0(blocks: Bytes) -> Floats:
    d, qs = fields(blocks, ("<f2",), ("i1", 32))
    return qs.astype(np.float32) * scale(d)


def decode_q8_1(blocks: Bytes) -> Floats:
    d, _sum, qs = fields(blocks, ("<f2",), ("<f2",), ("i1", 32))
    return qs.astype(np.float32) * scale(d)


def decode_q8_k(blocks: Bytes) -> Floats:
    d, qs, _sums = fields(blocks, ("<f4",), ("i1", 256), ("<i2", 16))
    return qs.astype(np.float32) * scale(d)


def decode_q1_0(blocks: Bytes) -> Floats:
    d, qs = fields(blocks, ("<f2",), ("u1", 16))
    signs = np.unpackbits(qs, axis=-1, bitorder="little").astype(np.float32) * np.float32(2) - np.float32(1)
    return scale(d) * signs


def decode_q2_0(blocks: Bytes) -> Floats:
    d, qs = fields(blocks, ("<f2",), ("u1", 16))
    return scale(d) * (split_bits(qs, 1, 2).reshape(-1, 64).astype(np.float32) - np.float32(1))


def decode_q2_k(blocks: Bytes) -> Floats:
    scales, qs, d, dmin = fields(blocks, ("u1", 16), ("u1", 64), ("<f2",), ("<f2",))
    dl = (scale(d) * (scales & 15).astype(np.float32))[:, :, None]
    ml = (scale(dmin) * (scales >> 4).astype(np.float32))[:, :, None]
    q = split_bits(qs, 32, 2).reshape(-1, 16, 16).astype(np.float32)
    return (dl * q - ml).reshape(-1, 256)


def decode_q3_k(blocks: Bytes) -> Floats:
    hmask, qs, scales, d = fields(blocks, ("u1", 32), ("u1", 64), ("u1", 12), ("<f2",))
    low = split_bits(scales[:, :8], 8, 4).reshape(-1, 16)
    high = split_bits(scales[:, 8:], 4, 2).reshape(-1, 16)
    dl = scale(d) * ((low | high << 4).astype(np.float32) - np.float32(32))
    # A clear bit in the mask takes four away.
    missing = split_bits(hmask, 32, 1).reshape(-1, 16, 16) ^ 1
    q = split_bits(qs, 32, 2).reshape(-1, 16, 16).astype(np.float32) - (missing << 2).astype(np.float32)
    return (dl[:, :, None] * q).reshape(-1, 256)


def unpack_scales(packed: Array) -> tuple[Bytes, Bytes]:
    """The eight 6-bit scales and the eight 6-bit minima [n, 8] of a Q4_K or Q5_K block's 12 bytes."""
    first, second, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, (rest & 15) | (first >> 2 & 48)], axis=-1)
    minima = np.concatenate([second & 63, (rest >> 4) | (second >> 2 & 48)], axis=-1)
    return scales, minima


def _scaled(d: Array, dmin: Array, packed: Array, q: Floats) -> Floats:
    scales, minima = unpack_scales(packed)
    dl = (scale(d) * scales.astype(np.float32))[:, :, None]
    ml = (scale(dmin) * minima.astype(np.float32))[:, :, None]
    return (dl * q - ml).reshape(-1, 256)


def decode_q4_k(blocks: Bytes) -> Floats:
    d, dmin, packed, qs = fields(blocks, ("<f2",), ("<f2",), ("u1", 12), ("u1", 128))
    return _scaled(d, dmin, packed, split_bits(qs, 32, 4).reshape(-1, 8, 32).astype(np.float32))


def decode_q5_k(blocks: Bytes) -> Floats:
    d, dmin, packed, qh, qs = fields(blocks, ("<f2",), ("<f2",), ("u1", 12), ("u1", 32), ("u1", 128))
    q = split_bits(qs, 32, 4).reshape(-1, 8, 32) | split_bits(qh, 32, 1).reshape(-1, 8, 32) << 4
    return _scaled(d, dmin, packed, q.astype(np.float32))


def decode_q6_k(blocks: Bytes) -> Floats:
    ql, qh, scales, d = fields(blocks, ("u1", 128), ("u1", 64), ("i1", 16), ("<f2",))
    dl = (scale(d) * scales.astype(np.float32))[:, :, None]
    q = split_bits(ql, 64, 4).reshape(-1, 8, 32) | split_bits(qh, 32, 2).reshape(-1, 8, 32) << 4
    return (dl * (q.reshape(-1, 16, 16).astype(np.float32) - np.float32(32))).reshape(-1, 256)


def decode_tq1_0(blocks: Bytes) -> Floats:
    qs, qh, d = fields(blocks, ("u1", 48), ("u1", 4), ("<f2",))
    # A byte is a fraction of 243 in base three: multiply by 3**i, keep the low byte, read its leading trit.
    powers = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]
    parts = [part[:, None] * powers[:n] for part, n in ((qs[:, :32], 5), (qs[:, 32:], 5), (qh, 4))]
    shifted = np.concatenate([part.reshape(len(blocks), -1) for part in parts], axis=-1)
    trits = (shifted.astype(np.uint16) * 3 >> 8).astype(np.float32) - np.float32(1)
    return scale(d) * trits


def decode_tq2_0(blocks: Bytes) -> Floats:
    qs, d = fields(blocks, ("u1", 64), ("<f2",))
    return scale(d) * (split_bits(qs, 32, 2).reshape(-1, 256).astype(np.float32) - np.float32(1))


# E8M0 scales: powers of two, halved because the values are doubled.
_E8M0_HALVES = np.ldexp(np.float32(1), np.arange(256, dtype=np.int32) - 128)


def decode_mxfp4(blocks: Bytes) -> Floats:
    e, qs = fields(blocks, ("u1",), ("u1", 16))
    return _E8M0_HALVES[e][:, None] * FP4_VALUES[split_bits(qs, 16, 4).reshape(-1, 32)]


def _e4m3_halves() -> Floats:
    """The 256 unsigned E4M3 scales, halved because the values are doubled; the top bit is ignored and the code of
    NaN, 0x7F, counts as zero."""
    codes = np.arange(256, dtype=np.int32)
    exponents, mantissas = codes >> 3 & 15, codes & 7
    whole = np.where(exponents == 0, mantissas, mantissas + 8).astype(np.float32)
    values: Floats = np.ldexp(whole, np.maximum(exponents, 1) - 11).astype(np.float32)
    values[0x7F] = 0
    return values


_E4M3_HALVES = _e4m3_halves()


def decode_nvfp4(blocks: Bytes) -> Floats:
    d, qs = fields(blocks, ("u1", 4), ("u1", 32))
    q = FP4_VALUES[split_bits(qs, 8, 4).reshape(-1, 4, 16)]
    return (_E4M3_HALVES[d][:, :, None] * q).reshape(-1, 64)


def decode_bf16(blocks: Bytes) -> Floats:
    bits: npt.NDArray[np.uint32] = blocks.view("<u2").astype(np.uint32) << np.uint32(16)
    return bits.view(np.float32)
