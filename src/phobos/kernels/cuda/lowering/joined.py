"""Lowers the fusions that `fusion.py` finds to the kernels of `matmul_joined.py`, and of `matmul_stages.py` where many
rows are computed."""

from __future__ import annotations

from phobos.kernels.cuda.layout import (
    BLOCK,
    ROWS_OF_BLOCK,
    STAGE_COLUMNS,
    STAGE_OUTPUTS,
    STAGE_THREADS,
    STAGED_ROWS,
    quantized_stride,
)
from phobos.kernels.cuda.lowering.buffers import ARRIVALS
from phobos.kernels.cuda.lowering.fusion import MOST_JOINED, Fusion, kind_of
from phobos.kernels.cuda.lowering.launches import LaunchBuilder
from phobos.kernels.cuda.names import made, matmul_joined, matmul_stages
from phobos.kernels.cuda.records import Input, Matrix, Norm, Pairs, Record
from phobos.kernels.cuda.weights import takes_codes
from phobos.program.steps import Glu, RmsNorm, RotateStore


def can_lower(low: LaunchBuilder, fusion: Fusion) -> bool:
    """Whether a fusion is one launch in the class of shapes that is being lowered."""
    if isinstance(fusion.then, RmsNorm):
        return low.rows_of(fusion.then.out) == 1
    return all(low.is_few(op) for op in fusion.products) or _is_staged(low, fusion)


def _is_staged(low: LaunchBuilder, fusion: Fusion) -> bool:
    """Whether gate, up and their activation are one launch by way of shared memory."""
    first = fusion.products[0]
    return (
        isinstance(fusion.then, Glu)
        and fusion.only
        and low.rows_of(first.out) >= STAGED_ROWS
        and takes_codes(low.weights, first.weight)
    )


def lower_fusion(low: LaunchBuilder, fusion: Fusion) -> None:
    """The launch."""
    first = fusion.products[0]
    if takes_codes(low.weights, first.weight):
        x, stride = low.codes_of(first.x, first), quantized_stride(first.x.width)
    else:
        x, stride = low.at(first.x), 4 * first.x.width
    n_rows, kind = low.rows_of(first.out), kind_of(first, low.weights).name
    n_tile = low.tile_of(n_rows)
    n_tiles = -(-n_rows // n_tile)
    rows = Input(x, low.count_at(first.out), first.x.width, stride, float(first.scale))
    counters = low.addresses[ARRIVALS]
    if isinstance(fusion.then, RmsNorm):
        then = fusion.then
        norm = Norm(*low.outputs_of(then.out), low.vector(then.weight), low.at(then.residual), float(then.eps))
        grid = (-(-first.out.width // ROWS_OF_BLOCK), 1, 1)
        arguments = (rows, low.matrix(first), low.at(first.residual), norm, counters)
        low.emit(made(matmul_joined, "normed", kind, 1), arguments, fusion, grid)
        return
    if isinstance(fusion.then, Glu):
        glu = fusion.then
        gate, up = fusion.products if fusion.products[0].out == glu.gate else fusion.products[::-1]
        if _is_staged(low, fusion):
            grid = (-(-n_rows // STAGE_COLUMNS), -(-2 * glu.out.width // STAGE_OUTPUTS), 1)
            staged = (rows, low.matrix(gate), low.matrix(up), *low.outputs_of(glu.out))
            kernel = made(matmul_stages, "gated", kind, glu.activation)
            low.emit(kernel, staged, fusion, grid, n_threads=STAGE_THREADS)
            return
        gated = (rows, low.matrix(gate), low.matrix(up), *low.outputs_of(glu.out), counters, Pairs())
        grid = (4 * (glu.out.width // BLOCK), n_tiles, 1)
        low.emit(made(matmul_joined, "gated", kind, n_tile, glu.activation), gated, fusion, grid)
        return
    kinds = sorted({kind_of(op, low.weights).name for op in fusion.products})
    matrices = [low.matrix(op, is_second=kind_of(op, low.weights).name != kinds[0]) for op in fusion.products]
    matrices += [Matrix()] * (MOST_JOINED - len(matrices))
    grid = (sum(-(-op.out.width // ROWS_OF_BLOCK) for op in fusion.products), n_tiles, 1)
    variant = (kinds[0], kinds[-1], n_tile)
    if isinstance(fusion.then, RotateStore):
        rotated: tuple[int | Record, ...] = (rows, *matrices, low.rotation_of(fusion.then), counters)
        low.emit(made(matmul_joined, "rotated", *variant, low.formats), rotated, fusion, grid)
        return
    low.emit(made(matmul_joined, "joined", *variant), (rows, *matrices), fusion, grid)
