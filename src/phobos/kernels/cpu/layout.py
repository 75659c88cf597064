"""Where things lie in memory: the numbers that packing, kernels and lowering share. No Numba here.

Packed weights. Sixteen output rows form a *group*; row r of it lies in lane r of every vector. A group is a run of
*records*, one for each block of the file's type (32 or 256 values of all 16 rows): first the code bytes, then scales.
Code bytes are the file's own, transposed by 32-bit words: vector v of a record holds word v of each row's block. So
packing moves words, and such a packed type is at most 4% larger than the file's. Types whose codes name points of a
codebook, or several values at once, are packed as the levels of single values, two to four bits each, which is larger
by the factor `PACKED` gives beside them.

Quantized activations. A row is one record: `n_in` int8 codes; a float scale for each block of 32; that scale times the
block's code sum, for each block of 32; the same for each block of 16.

The batch header is what changes from pass to pass: see `Header`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from phobos.gguf.quants import GGMLType

GROUP = 16  # output rows in a group: the lanes of a vector
BLOCK = 32  # activations that share a scale
LINE = 64  # bytes of a cache line
PREFETCH_BYTES = 4096  # how far ahead weights are asked for
KEY_TILE = 16  # keys whose k-th values lie together in the key cache
ROW_TILE = 6  # rows a matrix-matrix tile holds in registers
GROUP_TILE = 2  # groups it holds
STREAMED_ROWS = 16  # up to this many rows, products read packed weights directly
ROW_UNIT = 24  # buffers hold whole tiles, of 6 and of 8 rows
CHUNK_VALUES = 1024  # inputs unpacked at a time, so that they stay in the first cache
KEY_BLOCK = 64  # keys attention softens at a time
SPAN = 512  # keys attention walks from a fresh state, merged in order
SPLIT_ROWS = 8  # up to this many rows, attention spreads spans over threads


@dataclass(frozen=True)
class PackedType:
    """A packed weight type: `name` is that of the kernels that read it, `values` inputs a record, `record_bytes` of one
    group's record, `block` inputs that share a scale, `packer` the kernel that makes it of a file's rows."""

    name: str
    values: int
    record_bytes: int
    block: int
    packer: str


PACKED: dict[GGMLType, PackedType] = {
    GGMLType.Q8_0: PackedType("q8_0", 32, 544, 32, "pack:pack_q8_0"),
    GGMLType.Q4_0: PackedType("q4_0", 32, 288, 32, "pack:pack_q4_0"),
    GGMLType.Q4_1: PackedType("q4_1", 32, 320, 32, "pack:pack_q4_1"),
    GGMLType.Q5_0: PackedType("q5_0", 32, 352, 32, "pack:pack_q5_0"),
    GGMLType.Q5_1: PackedType("q5_1", 32, 384, 32, "pack:pack_q5_1"),
    GGMLType.Q2_K: PackedType("q2_k", 256, 1344, 16, "pack:pack_q2_k"),
    GGMLType.Q3_K: PackedType("q3_k", 256, 1824, 16, "pack:pack_q3_k"),
    GGMLType.Q4_K: PackedType("q4_k", 256, 2368, 32, "pack:pack_q4_k"),
    GGMLType.Q5_K: PackedType("q5_k", 256, 2880, 32, "pack:pack_q5_k"),
    GGMLType.Q6_K: PackedType("q6_k", 256, 3360, 16, "pack:pack_q6_k"),
    GGMLType.IQ4_NL: PackedType("iq4_nl", 32, 288, 32, "pack:pack_iq4_nl"),
    GGMLType.IQ4_XS: PackedType("iq4_xs", 256, 2208, 32, "pack:pack_iq4_xs"),
    GGMLType.MXFP4: PackedType("mxfp4", 32, 272, 32, "pack:pack_mxfp4"),
    GGMLType.NVFP4: PackedType("nvfp4", 64, 576, 16, "pack:pack_nvfp4"),
    GGMLType.Q1_0: PackedType("q1_0", 128, 288, 32, "pack:pack_q1_0"),
    GGMLType.Q2_0: PackedType("q2_0", 64, 288, 32, "pack:pack_q2_0"),
    GGMLType.TQ2_0: PackedType("tq2_0", 256, 1056, 32, "pack:pack_tq2_0"),
    GGMLType.TQ1_0: PackedType("tq2_0", 256, 1056, 32, "pack_levels:pack_tq1_0"),  # 1.22 of the file's bytes
    GGMLType.IQ1_S: PackedType("iq1_s", 256, 1184, 32, "pack_levels:pack_iq1_s"),  # 1.48 of the file's bytes
    GGMLType.IQ1_M: PackedType("iq1_m", 256, 1376, 16, "pack_levels:pack_iq1_m"),  # 1.54 of the file's bytes
    GGMLType.IQ2_XXS: PackedType("iq2_xxs", 256, 1696, 32, "pack_levels:pack_iq2_xxs"),  # 1.61 of the file's bytes
    GGMLType.IQ2_XS: PackedType("iq2_xs", 256, 1824, 16, "pack_levels:pack_iq2_xs"),  # 1.54 of the file's bytes
    GGMLType.IQ2_S: PackedType("iq2_xs", 256, 1824, 16, "pack_levels:pack_iq2_s"),  # 1.39 of the file's bytes
    GGMLType.IQ3_XXS: PackedType("iq3_xxs", 256, 2208, 32, "pack_levels:pack_iq3_xxs"),  # 1.41 of the file's bytes
    GGMLType.IQ3_S: PackedType("iq3_s", 256, 2208, 32, "pack_levels:pack_iq3_s"),  # 1.25 of the file's bytes
    GGMLType.F32: PackedType("f32", 1, 64, 1, "pack:pack_f32"),
    GGMLType.F16: PackedType("f16", 1, 32, 1, "pack:pack_f16"),
    GGMLType.BF16: PackedType("bf16", 1, 32, 1, "pack:pack_bf16"),
}


# Bytes that a tile of `KEY_TILE` cached positions takes for each dimension, by format: halves; codes of 8 bits, and a
# half for each `BLOCK` of them.
CACHE_TILE_BYTES: dict[str, int] = {"f16": 2 * KEY_TILE, "q8_0": KEY_TILE + 2 * KEY_TILE // BLOCK}


class Header(IntEnum):
    """Word indices of the batch header."""

    N_ROWS = 0
    N_OUTPUTS = 1
    PASS = 2
    TOKENS = 3  # addresses of int32 arrays
    POSITIONS = 4
    SLOTS = 5
    OUTPUTS = 6
    SCRATCH = 7  # address and bytes a thread
    SCRATCH_BYTES = 8
    PLACES = 9  # of each row, where its key and value lie (see `Batch`)
    SHARED = 10


HEADER_WORDS = 16


class Order(IntEnum):
    """Byte offsets in the table that says which rows go to which of many matrices: how many pairs there are, how many
    matrices have any, and from `STARTS` on int32 places where each matrix's pairs begin."""

    N_PAIRS = 0
    N_ACTIVE = 8
    STARTS = 16


class Control(IntEnum):
    """Word indices of the control block; words threads write to are a cache line apart."""

    PASS = 0  # rises by one when a pass is announced
    STEPS = 8  # address of the first record
    N_STEPS = 9
    TURNS = 10  # of a worker's loop without a pass, before it parks
    BARRIER = 16  # arrivals; the phase is 8 words on
    SEEN = 32  # first of a word a thread, 8 words apart: the last pass a worker took part in


CONTROL_WORDS = 32 + 8 * 256
RECORD_WORDS = 24  # of a step: the kernel's address, flags, then arguments
FIRST_ARGUMENT = 2
WAIT_FLAG = 1  # this step needs all earlier ones done
SCRATCH_BYTES = 512 << 10


def round_up(n: int, unit: int) -> int:
    """The next multiple of `unit`."""
    return -(-n // unit) * unit


def quantized_stride(width: int) -> int:
    """Bytes of one row of quantized activations."""
    return round_up(width + 16 * (width // BLOCK), LINE)


def float_stride(width: int) -> int:
    """Bytes of one row of a float buffer."""
    return round_up(4 * width, LINE)


def thread_scratch_bytes(max_rows: int) -> int:
    """Bytes of a thread's scratch: a product keeps 2 groups of 16 sums a row, a gated one 16 values more, beside what
    does not grow with the rows."""
    return SCRATCH_BYTES + 192 * round_up(max_rows, ROW_UNIT)


def packed_bytes(kind: PackedType, n_out: int, n_in: int) -> int:
    """Bytes of a packed matrix [n_out, n_in]."""
    return round_up(n_out, GROUP) // GROUP * (n_in // kind.values) * kind.record_bytes
