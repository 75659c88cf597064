"""The table of packed weight types on cards: one row a type of the file. No Numba here.

Packed weights. A matrix is up to three *planes*, each row after row, blocks of 32 inputs in order: code bytes (4 to 32
a block), further bits of the codes, scales. So the eight threads that share a row read neighbouring 16 bytes.

Code word j of a block holds inputs 4j to 4j+3, a byte each. Four-bit codes lie as words 0 to 3 in the low and words 4
to 7 in the high halves of 16 bytes; types whose codes stand for entries of a table have theirs in order instead, four
nibbles a word. Three-bit codes lie so in the first 12 bytes, eight nibbles a word; the top bits of the first word's
nibbles are the lowest bits of the last eight codes, those of the second and third word the others. A fifth bit: bit j
of byte i of the block's word is that of input 4j + i. Fifth and sixth: bits 2j and 2j+1 of byte i of the first word are
those of input 4j + i, of the second word those of input 16 + 4j + i. Codes of one and of two bits lie as a fifth and as
a fifth and sixth do.

`packing/FAMILY.py` says how planes are made of the file's blocks, on this machine, with NumPy; `code/types/FAMILY.py`
how threads read them. They are two files because one is host code and the other kernel source.
"""

from __future__ import annotations

from dataclasses import dataclass

from phobos.gguf.quants import GGMLType
from phobos.kernels.cuda.layout import BLOCK, LINE, round_up


@dataclass(frozen=True)
class PackedType:
    """A type's planes: bytes of codes and of further bits a block of 32, and of scales a block of `scaled` inputs.
    `family` is the file that knows it, `values` inputs a block of the file's type. Float types are one plane, of
    `code_bytes` a value. A `table` of 16 signed bytes, which four-bit codes stand for, is the second plane of the whole
    matrix."""

    name: str
    family: str
    values: int
    code_bytes: int
    high_bytes: int = 0
    scale_bytes: int = 0
    scaled: int = BLOCK
    is_float: bool = False
    table: tuple[int, ...] = ()


def _levels(*levels: int) -> PackedType:
    """Of types held as levels of single values, in three bits or four, a scale for every 16: a small whole number times
    a float32 for 256."""
    name, n_bytes = ("q3_k", 12) if len(levels) <= 8 else ("iq4_xs", 16)
    return PackedType(name, "levels", 256, n_bytes, 0, 20, 256, table=(*levels, *(0,) * (16 - len(levels))))


_EIGHTHS = _levels(-9, -7, -1, 1, 7, 9)  # -1, 0 and 1, each moved by an eighth
_TWO_BITS = _levels(-43, -25, -8, 8, 25, 43)
_TERNARY = PackedType("tq2_0", "low_bits", 256, 8, 0, 2, 256)

PACKED: dict[GGMLType, PackedType] = {
    GGMLType.Q8_0: PackedType("q8_0", "plain", 32, 32, 0, 2),
    GGMLType.Q4_0: PackedType("q4_0", "plain", 32, 16, 0, 2),
    GGMLType.Q4_1: PackedType("q4_1", "plain", 32, 16, 0, 4),
    GGMLType.Q5_0: PackedType("q5_0", "plain", 32, 16, 4, 2),
    GGMLType.Q5_1: PackedType("q5_1", "plain", 32, 16, 4, 4),
    GGMLType.Q4_K: PackedType("q4_k", "k_quants", 256, 16, 0, 20, 256),
    GGMLType.Q5_K: PackedType("q5_k", "k_quants", 256, 16, 4, 20, 256),
    GGMLType.Q6_K: PackedType("q6_k", "k_quants", 256, 16, 8, 20, 256),
    GGMLType.IQ4_NL: PackedType("iq4_nl", "tables", 32, 16, 0, 2),
    GGMLType.MXFP4: PackedType("mxfp4", "tables", 32, 16, 0, 1),
    GGMLType.NVFP4: PackedType("nvfp4", "tables", 64, 16, 0, 2),
    GGMLType.Q2_K: PackedType(
        "q2_k", "k_quants", 256, 8, 2, 4, 256
    ),  # further bits: a scale and a minimum for each 16 inputs
    GGMLType.Q1_0: PackedType("q1_0", "low_bits", 128, 4, 0, 2, 128),
    GGMLType.Q2_0: PackedType("q2_0", "low_bits", 64, 8, 0, 2, 64),
    GGMLType.TQ1_0: _TERNARY,  # 1.22 of the file's bytes
    GGMLType.TQ2_0: _TERNARY,
    GGMLType.IQ4_XS: _levels(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113),
    GGMLType.Q3_K: _levels(*range(-4, 4)),  # 1.05
    GGMLType.IQ3_XXS: _levels(*(sign * x for sign in (1, -1) for x in (4, 12, 20, 28, 36, 44, 52, 62))),  # 1.51
    GGMLType.IQ3_S: _levels(*range(-15, 16, 2)),  # 1.35
    GGMLType.IQ2_XXS: _TWO_BITS,  # 1.76
    GGMLType.IQ2_XS: _TWO_BITS,  # 1.57
    GGMLType.IQ2_S: _TWO_BITS,  # 1.41
    GGMLType.IQ1_S: _EIGHTHS,  # 2.32
    GGMLType.IQ1_M: _EIGHTHS,  # 2.07
    GGMLType.F32: PackedType("f32", "floats", 1, 4, is_float=True),
    GGMLType.F16: PackedType("f16", "floats", 1, 2, is_float=True),
    GGMLType.BF16: PackedType("bf16", "floats", 1, 2, is_float=True),
}


def plane_bytes(kind: PackedType, n_out: int, n_in: int) -> tuple[int, int, int]:
    """Bytes of each plane of a matrix [n_out, n_in]."""
    if kind.is_float:
        return n_out * n_in * kind.code_bytes, 0, 0
    n_blocks = n_out * (n_in // BLOCK)
    return (
        n_blocks * kind.code_bytes,
        n_blocks * kind.high_bytes + len(kind.table),
        n_out * (n_in // kind.scaled) * kind.scale_bytes,
    )


def packed_bytes(kind: PackedType, n_out: int, n_in: int) -> int:
    """Bytes of a packed matrix [n_out, n_in], its planes each from a new line on."""
    return sum(round_up(n, LINE) for n in plane_bytes(kind, n_out, n_in))
