"""Where things lie in memory: the numbers that packing, kernels and lowering share. No Numba here.

Quantized activations. A row is one record: `n_in` int8 codes; a float scale for each block of 32; that scale times the
block's code sum, for each block of 32; the same for each block of 16.

Packed weights: see `packed_types.py`. The batch header is what changes from pass to pass: see `Header`.
"""

from __future__ import annotations

from enum import IntEnum

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


READ_AHEAD = 16  # first of two words a packed type, see `packed_types.read_ahead_offset`
HEADER_WORDS = READ_AHEAD + 2 * 32


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
    PARKED = 33  # likewise: 1 while a worker parks or is about to
    WAKES = 34  # likewise: 1 if the caller is to wake it for the pass just announced
    SLEEPS = 35  # likewise: 1 if the worker is to wait to be woken


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
