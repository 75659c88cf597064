"""How much memory a lowered program writes beside the cache, by the name of each piece.

Buffers of the program under their names, quantized copies as "NAME.q8", and what attention, products with many matrices
and the choice of tokens leave from launch to launch. All ops of a kind share their scratch: they run one after another.
"""

from __future__ import annotations

from collections.abc import Mapping

from phobos.kernels.backend import BackendLimits
from phobos.kernels.cuda.layout import BLOCK, ROW_TILE, ROWS_OF_BLOCK, SPLIT_ROWS, quantized_stride, round_up, span_of
from phobos.kernels.cuda.lowering import fusion
from phobos.kernels.cuda.weights import Weight, takes_codes
from phobos.kernels.float_readers import input_matrices
from phobos.program.steps import Attention, Buffer, Experts, HeadMatMul, MatMul, Program, RopeTable

CHOICE_SPAN = 4096  # logits of a row that a block of threads compares
SINGLE_ROWS = 4  # up to this many rows of a pass, a tile of pairs is one pair: hardly any share an expert
ARRIVALS = "arrivals"  # counters of blocks of threads, all 0 between launches
SOURCES, PLACES, TILES, N_TILES = "mix.sources", "mix.places", "mix.tiles", "mix.n_tiles"


def buffer_sizes(program: Program, weights: Mapping[str, Weight], limits: BackendLimits) -> dict[str, int]:
    """Bytes of all that a pass writes beside the cache: buffers in whole tiles of rows, their quantized copies, and
    what attention and experts leave from launch to launch."""
    max_rows, max_outputs, n_ctx = limits.max_rows, limits.max_outputs, limits.n_ctx

    def rows(buffer: Buffer) -> int:
        return round_up(max_outputs if buffer.per_output else max_rows, ROW_TILE)

    n_spans = -(-n_ctx // span_of(n_ctx))
    sizes = {b.name: 4 * rows(b) * b.width for b in program.buffers}
    n_groups = 0  # of queries that blocks of threads answer together
    for op in program.ops:
        if isinstance(op, MatMul) and takes_codes(weights, op.weight):
            sizes[op.x.name + ".q8"] = rows(op.x) * quantized_stride(op.x.width)
        if isinstance(op, Attention):
            n_bytes = 4 * SPLIT_ROWS * op.n_heads * n_spans * (op.layer.v_dim + 2)
            sizes["parts"] = max(sizes.get("parts", 0), n_bytes)
            n_groups = max(n_groups, SPLIT_ROWS * op.n_heads)
        if isinstance(op, Experts | HeadMatMul):
            for name, n_bytes in scratch_sizes(op, weights, round_up(max_rows, ROW_TILE)).items():
                sizes[name] = max(sizes.get(name, 0), n_bytes)
        if isinstance(op, RopeTable):
            sizes[f"{op.out.name}.frequencies"] = 8 * len(op.frequencies)
    n_counters = max(fusion.n_arrivals(program, weights, max_rows), n_groups)
    sizes[ARRIVALS] = max(sizes.get(ARRIVALS, 0), 4 * n_counters)
    if program.logits is not None:
        sizes["best"] = 8 * max_outputs * -(-program.n_vocab // CHOICE_SPAN)
        sizes["chosen"] = 4 * max_outputs
    return sizes


def scratch_sizes(op: Experts | HeadMatMul, weights: Mapping[str, Weight], max_rows: int) -> dict[str, int]:
    """Bytes of each piece of scratch."""
    if isinstance(op, HeadMatMul):
        width = op.x.width // op.n_heads
        if not takes_codes(weights, op.weight):
            return {}
        return {"mix.in.q8": (max_rows * op.n_heads + ROW_TILE) * quantized_stride(width)}
    n_pairs = max_rows * (op.route.width // 2)
    sizes = {
        SOURCES: 4 * n_pairs,
        PLACES: 4 * n_pairs,
        TILES: 12 * max(n_pairs, 1),
        N_TILES: 4,
        "mix.out": 4 * n_pairs * op.out.width,
    }
    n_tiles = max(SINGLE_ROWS * (op.route.width // 2), min(n_pairs, n_pairs // ROW_TILE + op.n_experts))
    sizes[ARRIVALS] = 4 * max(n_tiles * (op.n_ff // BLOCK), SINGLE_ROWS * -(-op.out.width // ROWS_OF_BLOCK))
    sizes |= dict.fromkeys(("mix.gate", "mix.up", "mix.hidden"), 4 * n_pairs * op.n_ff)
    if op.n_ff % BLOCK == 0:
        sizes["mix.hidden.q8"] = n_pairs * quantized_stride(op.n_ff)
    if any(takes_codes(weights, name) for name in input_matrices(op)):
        sizes[f"{op.x.name}.q8"] = max_rows * quantized_stride(op.x.width)
    return sizes
