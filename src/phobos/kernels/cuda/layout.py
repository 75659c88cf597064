"""Where things lie in a card's memory: the numbers that packing, kernels and lowering share. No Numba here.

Packed weights. A matrix is up to three *planes*, each row after row, blocks of 32 inputs in order: code bytes (4 to 32
a block), further bits of the codes, scales. So the eight threads that share a row read neighbouring 16 bytes.

Code word j of a block holds inputs 4j to 4j+3, a byte each. Four-bit codes lie as words 0 to 3 in the low and words 4
to 7 in the high halves of 16 bytes; types whose codes stand for entries of a table have theirs in order instead, four
nibbles a word. Three-bit codes lie so in the first 12 bytes, eight nibbles a word; the top bits of the first word's
nibbles are the lowest bits of the last eight codes, those of the second and third word the others. A fifth bit: bit j
of byte i of the block's word is that of input 4j + i. Fifth and sixth: bits 2j and 2j+1 of byte i of the first word are
those of input 4j + i, of the second word those of input 16 + 4j + i. Codes of one and of two bits lie as a fifth and as
a fifth and sixth do.

Quantized activations. A row is one record: `n_in` int8 codes, then for each block of 32 a float scale and that scale
times the sum of the block's codes.

Cache. A head's keys and values lie in tiles of `KEY_TILE` positions. As halves (`f16`): of keys for every 8 dimensions
the 8 halves of each of the tile's positions; of values a row a position. As codes (`q8_0`), 32 dimensions of a position
a half of a scale: of keys for every 16 dimensions the 16 codes of each position, of values a row of codes a position;
then for every 32 dimensions the scale of each position.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from phobos.gguf.quants import GGMLType

BLOCK = 32  # activations that share a scale
PARTS = 8  # threads that share a row of weights: part p sums blocks p, p + 8, ...
WARP = 32
THREADS = 128  # of a block of threads, but for the norms
NORM_THREADS = 256
ROWS_OF_BLOCK = THREADS // PARTS  # outputs a block of threads computes
TILE_OUTPUTS = 64  # a block of threads computes on tensor cores
TILE_COLUMNS = 32  # rows of activations that a product of many rows takes at once
TILED_ROWS = 16  # from so many rows on, products run on tensor cores
STAGE_OUTPUTS, STAGE_COLUMNS, STAGE_THREADS = 128, 64, 256  # of products that go by way of shared memory
STAGED_ROWS = 64  # from so many rows on they do
ROW_TILE = 8  # rows of activations a product takes at once; buffers hold whole tiles
KEY_TILE = 32  # positions whose keys lie together: one a lane
CACHE_TILE_BYTES = {"f16": 2 * KEY_TILE, "q8_0": KEY_TILE + 2 * KEY_TILE // BLOCK}  # for each dimension
SPAN = 128  # keys attention walks from a fresh state, at least
MAX_SPANS = 256
SPLIT_ROWS = 8  # up to this many rows, attention spreads spans over the card
QUERIES = 8  # warps of a block of threads that answers queries
VALUE_PAIRS = (1, 2, 4, 9)  # pairs of value dimensions a lane: values of up to 64 times that
WARP_QUERIES = {1: 2, 2: 2, 4: 2, 9: 1}  # by these, queries a warp answers at once in prompts
CODED_K_DIM_MAX = 576
LINE = 256  # where pieces of memory begin
MAX_EXPERTS = 1024


@dataclass(frozen=True)
class PackedType:
    """A type's planes: bytes of codes and of further bits a block of 32, and of scales a block of `scaled` inputs.
    `values` inputs a block of the file's type. Float types are one plane, of `code_bytes` a value. A `table` of 16
    signed bytes, which four-bit codes stand for, is the second plane of the whole matrix."""

    name: str
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
    return PackedType(name, 256, n_bytes, 0, 20, 256, table=(*levels, *(0,) * (16 - len(levels))))


_EIGHTHS = _levels(-9, -7, -1, 1, 7, 9)  # -1, 0 and 1, each moved by an eighth
_TWO_BITS = _levels(-43, -25, -8, 8, 25, 43)
_TERNARY = PackedType("tq2_0", 256, 8, 0, 2, 256)

PACKED: dict[GGMLType, PackedType] = {
    GGMLType.Q8_0: PackedType("q8_0", 32, 32, 0, 2),
    GGMLType.Q4_0: PackedType("q4_0", 32, 16, 0, 2),
    GGMLType.Q4_1: PackedType("q4_1", 32, 16, 0, 4),
    GGMLType.Q5_0: PackedType("q5_0", 32, 16, 4, 2),
    GGMLType.Q5_1: PackedType("q5_1", 32, 16, 4, 4),
    GGMLType.Q4_K: PackedType("q4_k", 256, 16, 0, 20, 256),
    GGMLType.Q5_K: PackedType("q5_k", 256, 16, 4, 20, 256),
    GGMLType.Q6_K: PackedType("q6_k", 256, 16, 8, 20, 256),
    GGMLType.IQ4_NL: PackedType("iq4_nl", 32, 16, 0, 2),
    GGMLType.MXFP4: PackedType("mxfp4", 32, 16, 0, 1),
    GGMLType.NVFP4: PackedType("nvfp4", 64, 16, 0, 2),
    GGMLType.Q2_K: PackedType("q2_k", 256, 8, 2, 4, 256),  # further bits: a scale and a minimum for each 16 inputs
    GGMLType.Q1_0: PackedType("q1_0", 128, 4, 0, 2, 128),
    GGMLType.Q2_0: PackedType("q2_0", 64, 8, 0, 2, 64),
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
    GGMLType.F32: PackedType("f32", 1, 4, is_float=True),
    GGMLType.F16: PackedType("f16", 1, 2, is_float=True),
    GGMLType.BF16: PackedType("bf16", 1, 2, is_float=True),
}


class Header(IntEnum):
    """Word indices (int32) of the head of the block that every pass begins by sending to the card; the arrays follow,
    each `max_rows` long, in this order: tokens, positions, slots, outputs, places, shared."""

    N_ROWS = 0
    N_OUTPUTS = 1


HEADER_WORDS = 64
N_ARRAYS = 6


def round_up(n: int, unit: int) -> int:
    """The next multiple of `unit`."""
    return -(-n // unit) * unit


def quantized_stride(width: int) -> int:
    """Bytes of one row of quantized activations."""
    return round_up(width + 8 * (width // BLOCK), 16)


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


def span_of(n_ctx: int) -> int:
    """Keys of a span: one number for all passes of a load."""
    return max(SPAN, round_up(-(-n_ctx // MAX_SPANS), KEY_TILE))
