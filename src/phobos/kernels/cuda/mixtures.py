"""Lowers products with many matrices, of experts or of heads, to the kernels of `matmul.py`, `matmul_tile.py` and
`moe.py`.

Pairs (row, expert) are put in order of their experts, multiplied there in tiles, and brought back weighted. Heads need
no order: a product's grid has a third direction for them. The scratch is shared by all such ops of a program, which
run one after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from phobos.kernels.activations import input_matrices
from phobos.kernels.cuda.layout import (
    BLOCK,
    NORM_THREADS,
    ROW_TILE,
    ROWS_OF_BLOCK,
    THREADS,
    TILE_COLUMNS,
    TILE_OUTPUTS,
    TILED_ROWS,
    WARP,
    PackedType,
    quantized_stride,
)
from phobos.kernels.cuda.weights import Weight, takes_codes
from phobos.program.steps import Experts, Gating, HeadMatMul, Op, Route

if TYPE_CHECKING:
    from phobos.kernels.cuda.lower import Lowering

GATINGS: Mapping[Gating, int] = {"softmax": 0, "sigmoid": 1, "chosen": 2}
SINGLE_ROWS = 4  # up to this many rows of a pass, a tile is one pair: hardly any share an expert
TILED_PAIRS = 12  # from so many pairs an expert on, in the mean, products run on tensor cores
SOURCES, PLACES, TILES, N_TILES = "mix.sources", "mix.places", "mix.tiles", "mix.n_tiles"


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
    sizes |= dict.fromkeys(("mix.gate", "mix.up", "mix.hidden"), 4 * n_pairs * op.n_ff)
    if op.n_ff % BLOCK == 0:
        sizes["mix.hidden.q8"] = n_pairs * quantized_stride(op.n_ff)
    if any(takes_codes(weights, name) for name in input_matrices(op)):
        sizes[f"{op.x.name}.q8"] = max_rows * quantized_stride(op.x.width)
    return sizes


def lower_route(low: Lowering, op: Route) -> None:
    """A warp a row. For few rows it makes the tables for experts that come next, who then need no sorting."""
    at, is_single = low.addresses, low.rows_of(op.out) <= SINGLE_ROWS and SOURCES in low.addresses
    low.tiled_route = op.out.name if is_single else None
    tables = (at[SOURCES], at[PLACES], at[TILES], at[N_TILES]) if is_single else (0, 0, 0, 0)
    arguments = (
        low.at(op.out), low.at(op.logits), low.vector(op.bias), low.count_at(op.out), op.logits.width, op.n_used,
        GATINGS[op.gating], op.n_groups, op.n_groups_used, int(op.is_normalized), low.vector(op.expert_scales),
        *tables, float(op.scale),
    )  # fmt: skip
    low.emit("moe:route", arguments, op, (low.rows_of(op.out), 1, 1), n_threads=WARP)


def _emit_product(
    low: Lowering, arguments: Sequence[int | float], op: Op, kind: PackedType, n_tile: int, size: tuple[int, int, int]
) -> None:
    """A product of `size`: outputs, tiles of up to `n_tile` rows, matrices."""
    if n_tile == TILE_COLUMNS:
        name, n_outputs = f"matmul_tile:matmul_{kind.name}", TILE_OUTPUTS
    else:
        name, n_outputs = f"matmul:matmul_{kind.name}_{n_tile}", ROWS_OF_BLOCK
    low.emit(name, tuple(arguments), op, (-(-size[0] // n_outputs), *size[1:]))


def lower_experts(low: Lowering, op: Experts) -> None:
    """Sort, multiply by gate and up, activate, multiply by down, add up."""
    at = low.addresses
    n_used, n_rows = op.route.width // 2, low.rows_of(op.x)
    n_pairs = n_rows * n_used
    is_tiled = n_pairs >= TILED_PAIRS * op.n_experts and all(
        takes_codes(low.weights, name) for name in (op.gate, op.up, op.down) if name is not None
    )
    n_tile = TILE_COLUMNS if is_tiled else 1 if n_rows <= SINGLE_ROWS else 8
    n_tiles = min(n_pairs, n_pairs // n_tile + op.n_experts)
    if n_tile > 1 or low.tiled_route != op.route.name:
        tables = (at[SOURCES], at[PLACES], at[TILES], at[N_TILES])
        sizes = (low.at(op.route), low.count_at(op.x), op.n_experts, n_used, n_tile)
        low.emit("moe:sort_pairs", (*tables, *sizes), op, (1, 1, 1), n_threads=NORM_THREADS)
        low.tiled_route = None

    def multiply(target: str, x: str, weight: str, bias: str | None, first_row: int) -> None:
        """A product of pairs; `x` is "mix.hidden", a row a place, or the op's own input, a row for `n_used` pairs."""
        held, is_input = low.weights[weight], x != "mix.hidden"
        assert held.kind is not None
        n_in, n_out = held.shape[1], op.n_ff if is_input else op.out.width
        codes = takes_codes(low.weights, weight)
        source = at["mix.hidden.q8" if codes else x] if not is_input else low.codes_of(op.x, op) if codes else at[x]
        stride = quantized_stride(n_in) if codes else 4 * n_in
        values = (
            at[target], source, *held.planes, low.vector(bias), 0, at[N_TILES], at[TILES],
            at[SOURCES] if is_input else 0, n_used, n_out, n_in, first_row, stride, 4 * n_out,
            held.shape[0] // op.n_experts, 0, 0, 1.0,
        )  # fmt: skip
        _emit_product(low, values, op, held.kind, n_tile, (n_out, n_tiles, 1))

    if op.gate is None:
        multiply("mix.gate", op.x.name, op.up, op.up_bias, 0)
        multiply("mix.up", op.x.name, op.up, op.up_bias, op.n_ff)
    else:
        multiply("mix.gate", op.x.name, op.gate, op.gate_bias, 0)
        multiply("mix.up", op.x.name, op.up, op.up_bias, 0)
    is_coded = takes_codes(low.weights, op.down)
    hidden = (0, at["mix.hidden.q8"]) if is_coded else (at["mix.hidden"], 0)
    arguments: tuple[int | float, ...] = (*hidden, at["mix.gate"], at["mix.up"], low.count_at(op.x), n_used, op.n_ff)
    low.emit(f"pointwise:glu_{op.activation}", arguments, op, (-(-op.n_ff // THREADS), n_pairs, 1))
    multiply("mix.out", "mix.hidden", op.down, op.down_bias, 0)
    arguments = (
        low.at(op.out), at["mix.out"], low.at(op.route), low.at(op.residual), low.count_at(op.out), op.out.width,
        n_used, at[PLACES],
    )  # fmt: skip
    low.emit("moe:combine", arguments, op, (-(-op.out.width // THREADS), n_rows, 1))


def lower_heads(low: Lowering, op: HeadMatMul) -> None:
    """One launch, heads in the grid's third direction; x and out are rows of all heads side by side."""
    held = low.weights[op.weight]
    assert held.kind is not None
    n_in, n_out, n_rows = op.x.width // op.n_heads, op.out.width // op.n_heads, low.rows_of(op.x)
    if takes_codes(low.weights, op.weight):
        x, stride = low.addresses["mix.in.q8"], quantized_stride(n_in)
        low.quantize(x, low.at(op.x), op.x, op.n_heads, op)
    else:
        x, stride = low.at(op.x), 4 * n_in
    n_tile = TILE_COLUMNS if n_rows >= TILED_ROWS and not held.kind.is_float else low.tile_of(n_rows)
    arguments = (
        low.at(op.out), x, *held.planes, 0, 0, low.count_at(op.x), 0, 0, 1, n_out, n_in, 0, op.n_heads * stride,
        4 * op.out.width, n_out, stride, 4 * n_out, 1.0,
    )  # fmt: skip
    _emit_product(low, arguments, op, held.kind, n_tile, (n_out, -(-n_rows // n_tile), op.n_heads))
