"""Where things lie in memory: the numbers that packing, kernels and lowering share. No Numba here.

Packed weights. Sixteen output rows form a *group*; row r of it lies in lane r of every vector. A group is a run of
*records*, one for each block of the file's type (32 or 256 values of all 16 rows): first the code bytes, then scales.
Code bytes are the file's own, transposed by 32-bit words: vector v of a record holds word v of each row's block. So
packing moves words and no packed type is more than 3% larger than the file's.

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
    """A packed weight type: `values` inputs a record, `record_bytes` of one group's record, `block` inputs that share a
    scale."""

    name: str
    values: int
    record_bytes: int
    block: int


PACKED: dict[GGMLType, PackedType] = {
    GGMLType.Q8_0: PackedType("q8_0", 32, 544, 32),
    GGMLType.Q4_0: PackedType("q4_0", 32, 288, 32),
    GGMLType.Q4_1: PackedType("q4_1", 32, 320, 32),
    GGMLType.Q5_0: PackedType("q5_0", 32, 352, 32),
    GGMLType.Q5_1: PackedType("q5_1", 32, 384, 32),
    GGMLType.Q4_K: PackedType("q4_k", 256, 2368, 32),
    GGMLType.Q5_K: PackedType("q5_k", 256, 2880, 32),
    GGMLType.Q6_K: PackedType("q6_k", 256, 3360, 16),
    GGMLType.IQ4_NL: PackedType("iq4_nl", 32, 288, 32),
    GGMLType.MXFP4: PackedType("mxfp4", 32, 272, 32),
    GGMLType.F32: PackedType("f32", 1, 64, 1),
    GGMLType.F16: PackedType("f16", 1, 32, 1),
    GGMLType.BF16: PackedType("bf16", 1, 32, 1),
}


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
    """Bytes of a thread's scratch: a product keeps 2 groups of 16 sums a row beside what does not grow with them."""
    return SCRATCH_BYTES + 128 * round_up(max_rows, ROW_UNIT)


def packed_bytes(kind: PackedType, n_out: int, n_in: int) -> int:
    """Bytes of a packed matrix [n_out, n_in]."""
    return round_up(n_out, GROUP) // GROUP * (n_in // kind.values) * kind.record_bytes
