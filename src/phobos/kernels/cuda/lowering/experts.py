"""Lowers products with many matrices, of experts or of heads, to the kernels of `matmul.py`, `matmul_tile.py` and
`moe.py`.

Pairs (row, expert) are put in order of their experts, multiplied there in tiles, and brought back weighted. Heads need
no order: a product's grid has a third direction for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    quantized_stride,
)
from phobos.kernels.cuda.lowering.buffers import ARRIVALS, N_TILES, PLACES, SINGLE_ROWS, SOURCES, TILES
from phobos.kernels.cuda.lowering.launches import LaunchBuilder
from phobos.kernels.cuda.names import activations, made, matmul, matmul_joined, matmul_tile, moe
from phobos.kernels.cuda.packed_types import PackedType
from phobos.kernels.cuda.records import Input, Matrix, Pairs
from phobos.kernels.cuda.weights import takes_codes
from phobos.program.steps import Experts, Gating, HeadMatMul, Op, Route

GATINGS: Mapping[Gating, int] = {"softmax": 0, "sigmoid": 1, "chosen": 2}
TILED_PAIRS = 12  # from so many pairs an expert on, in the mean, products run on tensor cores


def lower_route(low: LaunchBuilder, op: Route) -> None:
    """A warp a row. For few rows it makes the tables for experts that come next, who then need no sorting."""
    at, is_single = low.addresses, low.rows_of(op.out) <= SINGLE_ROWS and SOURCES in low.addresses
    low.tiled_route = op.out.name if is_single else None
    tables = (at[SOURCES], at[PLACES], at[TILES], at[N_TILES]) if is_single else (0, 0, 0, 0)
    arguments = (
        low.at(op.out), low.at(op.logits), low.vector(op.bias), low.count_at(op.out), op.logits.width, op.n_used,
        GATINGS[op.gating], op.n_groups, op.n_groups_used, int(op.is_normalized), low.vector(op.expert_scales),
        *tables, float(op.scale),
    )  # fmt: skip
    low.emit(moe.route, arguments, op, (low.rows_of(op.out), 1, 1), n_threads=WARP)


def _emit_product(
    low: LaunchBuilder,
    arguments: Sequence[int | float],
    op: Op,
    kind: PackedType,
    n_tile: int,
    size: tuple[int, int, int],
) -> None:
    """A product of `size`: outputs, tiles of up to `n_tile` rows, matrices."""
    if n_tile == TILE_COLUMNS:
        name, n_outputs = made(matmul_tile, "matmul", kind.name), TILE_OUTPUTS
    else:
        name, n_outputs = made(matmul, "matmul", kind.name, n_tile), ROWS_OF_BLOCK
    low.emit(name, tuple(arguments), op, (-(-size[0] // n_outputs), *size[1:]))


@dataclass(frozen=True)
class _Tiles:
    """How the pairs of a class of shapes are multiplied: in tiles of up to `size` rows, `n` at most."""

    size: int
    n: int
    n_pairs: int

    @property
    def on_tensor_cores(self) -> bool:
        return self.size == TILE_COLUMNS


def _plan_tiles(low: LaunchBuilder, op: Experts) -> _Tiles:
    n_rows = low.rows_of(op.x)
    n_pairs = n_rows * (op.route.width // 2)
    is_many = n_pairs >= TILED_PAIRS * op.n_experts
    matrices = [name for name in (op.gate, op.up, op.down) if name is not None]
    if is_many and all(takes_codes(low.weights, name) for name in matrices):
        size = TILE_COLUMNS
    else:
        size = 1 if n_rows <= SINGLE_ROWS else ROW_TILE
    return _Tiles(size, min(n_pairs, n_pairs // size + op.n_experts), n_pairs)


def lower_experts(low: LaunchBuilder, op: Experts) -> None:
    """Sort, multiply by gate and up, activate, multiply by down, add up."""
    at, tiles = low.addresses, _plan_tiles(low, op)
    n_used = op.route.width // 2
    if tiles.size > 1 or low.tiled_route != op.route.name:
        tables = (at[SOURCES], at[PLACES], at[TILES], at[N_TILES])
        sizes = (low.at(op.route), low.count_at(op.x), op.n_experts, n_used, tiles.size)
        low.emit(moe.sort_pairs, (*tables, *sizes), op, (1, 1, 1), n_threads=NORM_THREADS)
        low.tiled_route = None
    _lower_gate(low, op, tiles)
    if low.tiled_route == op.route.name:
        _lower_combined(low, op, tiles)
        return
    _multiply_pairs(low, op, tiles, "mix.out", "mix.hidden", op.down, op.down_bias, 0)
    arguments = (
        low.at(op.out), at["mix.out"], low.at(op.route), low.at(op.residual), low.count_at(op.out), op.out.width,
        n_used, at[PLACES],
    )  # fmt: skip
    low.emit(moe.combine, arguments, op, (-(-op.out.width // THREADS), low.rows_of(op.out), 1))


def _lower_gate(low: LaunchBuilder, op: Experts, tiles: _Tiles) -> None:
    """Gate, up and activation: one launch, but on tensor cores."""
    at, n_used = low.addresses, op.route.width // 2
    hidden = (0, at["mix.hidden.q8"]) if takes_codes(low.weights, op.down) else (at["mix.hidden"], 0)
    gate, gate_bias = (op.up, op.up_bias) if op.gate is None else (op.gate, op.gate_bias)
    first_up = op.n_ff if op.gate is None else 0
    held, up = low.weights[gate], low.weights[op.up]
    if tiles.on_tensor_cores or op.n_ff % BLOCK or held.kind != up.kind:
        _multiply_pairs(low, op, tiles, "mix.gate", op.x.name, gate, gate_bias, 0)
        _multiply_pairs(low, op, tiles, "mix.up", op.x.name, op.up, op.up_bias, first_up)
        parts = (*hidden, at["mix.gate"], at["mix.up"], low.count_at(op.x), n_used, op.n_ff)
        low.emit(made(activations, "glu", op.activation), parts, op, (-(-op.n_ff // THREADS), tiles.n_pairs, 1))
        return
    assert held.kind is not None
    x, stride = _input(low, op, gate)
    rows = Input(x, at[N_TILES], op.x.width, stride, 1.0)
    first = Matrix(at["mix.gate"], *held.planes, low.vector(gate_bias), 0, op.n_ff)
    second = Matrix(at["mix.up"], *up.planes, low.vector(op.up_bias), first_up, op.n_ff)
    pairs = Pairs(at[TILES], at[SOURCES], n_used, held.shape[0] // op.n_experts)
    arguments = (rows, first, second, *hidden, at[ARRIVALS], pairs)
    grid = (4 * (op.n_ff // BLOCK), tiles.n, 1)
    low.emit(made(matmul_joined, "gated", held.kind.name, tiles.size, op.activation), arguments, op, grid)


def _lower_combined(low: LaunchBuilder, op: Experts, tiles: _Tiles) -> None:
    """The last product of single pairs, and their sums, in one launch."""
    at, held, n_out = low.addresses, low.weights[op.down], op.out.width
    assert held.kind is not None
    if takes_codes(low.weights, op.down):
        x, stride = at["mix.hidden.q8"], quantized_stride(op.n_ff)
    else:
        x, stride = at["mix.hidden"], 4 * op.n_ff
    rows = Input(x, at[N_TILES], op.n_ff, stride, 1.0)
    product = Matrix(at["mix.out"], *held.planes, low.vector(op.down_bias), 0, n_out)
    pairs = Pairs(at[TILES], matrix_rows=held.shape[0] // op.n_experts)
    after = (low.at(op.out), low.at(op.route), low.at(op.residual), op.route.width // 2, at[ARRIVALS])
    arguments = (rows, product, pairs, *after)
    grid = (-(-n_out // ROWS_OF_BLOCK), tiles.n, 1)
    low.emit(made(matmul_joined, "combined", held.kind.name, 1), arguments, op, grid)


def _input(low: LaunchBuilder, op: Experts, weight: str) -> tuple[int, int]:
    """Address and bytes of a row of an op's input, as a matrix takes it."""
    if takes_codes(low.weights, weight):
        return low.codes_of(op.x, op), quantized_stride(op.x.width)
    return low.at(op.x), 4 * op.x.width


def _multiply_pairs(
    low: LaunchBuilder, op: Experts, tiles: _Tiles, target: str, x: str, weight: str, bias: str | None, first_row: int
) -> None:
    """A product of pairs; `x` is "mix.hidden", a row a place, or the op's own input, a row for `n_used` pairs."""
    at, held, is_input = low.addresses, low.weights[weight], x != "mix.hidden"
    assert held.kind is not None
    n_in, n_out = held.shape[1], op.n_ff if is_input else op.out.width
    if is_input:
        source, stride = _input(low, op, weight)
    elif takes_codes(low.weights, weight):
        source, stride = at["mix.hidden.q8"], quantized_stride(n_in)
    else:
        source, stride = at[x], 4 * n_in
    values = (
        at[target], source, *held.planes, low.vector(bias), 0, at[N_TILES], at[TILES], at[SOURCES] if is_input else 0,
        op.route.width // 2, n_out, n_in, first_row, stride, 4 * n_out, held.shape[0] // op.n_experts, 0, 0, 1.0,
    )  # fmt: skip
    _emit_product(low, values, op, held.kind, tiles.size, (n_out, tiles.n, 1))


def lower_heads(low: LaunchBuilder, op: HeadMatMul) -> None:
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
