"""Where things lie in a card's memory: the numbers that packing, kernels and lowering share. No Numba here.

Packed weights: see `packed_types.py`.

Quantized activations. A row is one record: `n_in` int8 codes, then for each block of 32 a float scale and that scale
times the sum of the block's codes.

Cache. A head's keys and values lie in tiles of `KEY_TILE` positions. As halves (`f16`): of keys for every 8 dimensions
the 8 halves of each of the tile's positions; of values a row a position. As codes (`q8_0`), 32 dimensions of a position
a half of a scale: of keys for every 16 dimensions the 16 codes of each position, of values a row of codes a position;
then for every 32 dimensions the scale of each position.
"""

from __future__ import annotations

from enum import IntEnum

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


def span_of(n_ctx: int) -> int:
    """Keys of a span: one number for all passes of a load."""
    return max(SPAN, round_up(-(-n_ctx // MAX_SPANS), KEY_TILE))
