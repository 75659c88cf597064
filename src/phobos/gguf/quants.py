"""The table of GGML tensor types: what a block holds, what it takes, and how its values are read and written.

`TABLE[kind].dequantize` exists for every type; `quantize` is None for the types nothing here writes. Both work along
the last axis and go through an array in pieces that fit the processor's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from phobos.gguf import decode, decode_iq, encode

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

_PIECE_VALUES = 1 << 16


class GGMLType(IntEnum):
    """The number by which a GGUF file names a tensor's type."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41
    Q2_0 = 42


@dataclass(frozen=True)
class Quant:
    """One type. `block` values take `n_bytes` bytes.

    `dequantize` turns bytes [..., n_blocks * n_bytes] into float32 [..., n_blocks * block], `quantize` the other way
    round; both raise `ValueError` when the last axis is no whole number of blocks.
    """

    type: GGMLType
    block: int
    n_bytes: int
    dequantize: Callable[[npt.NDArray[np.uint8]], Floats]
    quantize: Callable[[npt.NDArray[np.float32]], Bytes] | None


def _n_blocks(kind: GGMLType, length: int, block: int, unit: str) -> int:
    if length % block:
        raise ValueError(f"a row of {length} {unit} is no whole number of {kind.name} blocks of {block}")
    return length // block


def _quant(
    kind: GGMLType,
    block: int,
    n_bytes: int,
    decode_blocks: Callable[[Bytes], Floats],
    encode_blocks: Callable[[Floats], Bytes] | None = None,
) -> Quant:
    piece = max(1, _PIECE_VALUES // block)

    def dequantize(data: npt.NDArray[np.uint8]) -> Floats:
        shape = (*data.shape[:-1], _n_blocks(kind, data.shape[-1], n_bytes, "bytes") * block)
        blocks = np.ascontiguousarray(data).reshape(-1, n_bytes)
        values = np.empty((len(blocks), block), np.float32)
        # A file may hold any scale: infinities and NaN come out as they are, without a warning.
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, len(blocks), piece):
                values[start : start + piece] = decode_blocks(blocks[start : start + piece])
        return values.reshape(shape)

    def quantize(values: npt.NDArray[np.float32]) -> Bytes:
        assert encode_blocks is not None
        shape = (*values.shape[:-1], _n_blocks(kind, values.shape[-1], block, "values") * n_bytes)
        blocks = np.ascontiguousarray(values, np.float32).reshape(-1, block)
        data = np.empty((len(blocks), n_bytes), np.uint8)
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, len(blocks), piece):
                data[start : start + piece] = encode_blocks(blocks[start : start + piece])
        return data.reshape(shape)

    return Quant(kind, block, n_bytes, dequantize, None if encode_blocks is None else quantize)


def _number(kind: GGMLType, code: str) -> Quant:
    """A type that stores plain numbers of the NumPy type `code`."""

    def decode_numbers(blocks: Bytes) -> Floats:
        return blocks.view(code).astype(np.float32)

    def encode_numbers(blocks: Floats) -> Bytes:
        return np.ascontiguousarray(blocks.astype(code)).view(np.uint8)

    return _quant(kind, 1, np.dtype(code).itemsize, decode_numbers, encode_numbers)


_T = GGMLType
_ROWS = (
    _number(_T.F32, "<f4"),
    _number(_T.F16, "<f2"),
    _number(_T.F64, "<f8"),
    _number(_T.I8, "i1"),
    _number(_T.I16, "<i2"),
    _number(_T.I32, "<i4"),
    _number(_T.I64, "<i8"),
    _quant(_T.BF16, 1, 2, decode.decode_bf16, encode.encode_bf16),
    _quant(_T.Q1_0, 128, 18, decode.decode_q1_0),
    _quant(_T.Q2_0, 64, 18, decode.decode_q2_0),
    _quant(_T.Q4_0, 32, 18, decode.decode_q4_0, encode.encode_q4_0),
    _quant(_T.Q4_1, 32, 20, decode.decode_q4_1, encode.encode_q4_1),
    _quant(_T.Q5_0, 32, 22, decode.decode_q5_0, encode.encode_q5_0),
    _quant(_T.Q5_1, 32, 24, decode.decode_q5_1, encode.encode_q5_1),
    _quant(_T.Q8_0, 32, 34, decode.decode_q8_0, encode.encode_q8_0),
    _quant(_T.Q8_1, 32, 36, decode.decode_q8_1),
    _quant(_T.Q2_K, 256, 84, decode.decode_q2_k, encode.encode_q2_k),
    _quant(_T.Q3_K, 256, 110, decode.decode_q3_k, encode.encode_q3_k),
    _quant(_T.Q4_K, 256, 144, decode.decode_q4_k, encode.encode_q4_k),
    _quant(_T.Q5_K, 256, 176, decode.decode_q5_k, encode.encode_q5_k),
    _quant(_T.Q6_K, 256, 210, decode.decode_q6_k, encode.encode_q6_k),
    _quant(_T.Q8_K, 256, 292, decode.decode_q8_k),
    _quant(_T.IQ1_S, 256, 50, decode_iq.decode_iq1_s),
    _quant(_T.IQ1_M, 256, 56, decode_iq.decode_iq1_m),
    _quant(_T.IQ2_XXS, 256, 66, decode_iq.decode_iq2_xxs),
    _quant(_T.IQ2_XS, 256, 74, decode_iq.decode_iq2_xs),
    _quant(_T.IQ2_S, 256, 82, decode_iq.decode_iq2_s),
    _quant(_T.IQ3_XXS, 256, 98, decode_iq.decode_iq3_xxs),
    _quant(_T.IQ3_S, 256, 110, decode_iq.decode_iq3_s),
    _quant(_T.IQ4_NL, 32, 18, decode_iq.decode_iq4_nl, encode.encode_iq4_nl),
    _quant(_T.IQ4_XS, 256, 136, decode_iq.decode_iq4_xs),
    _quant(_T.TQ1_0, 256, 54, decode.decode_tq1_0),
    _quant(_T.TQ2_0, 256, 66, decode.decode_tq2_0),
    _quant(_T.MXFP4, 32, 17, decode.decode_mxfp4, encode.encode_mxfp4),
    _quant(_T.NVFP4, 64, 36, decode.decode_nvfp4),
)

TABLE: Mapping[GGMLType, Quant] = MappingProxyType({row.type: row for row in _ROWS})
