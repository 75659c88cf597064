"""Ops of a program that are one launch where few rows are computed, and how they are lowered to `matmul_joined.py`.

Up to three neighbouring products of one input, whose weights are of at most two types; queries, keys and values, and
their rotation and storing; gate and up, and the activation of both; for a single row, a product and the norm of its
result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from phobos.kernels.cuda.layout import (
    BLOCK,
    ROW_TILE,
    ROWS_OF_BLOCK,
    STAGE_COLUMNS,
    STAGE_OUTPUTS,
    STAGE_THREADS,
    STAGED_ROWS,
    PackedType,
    quantized_stride,
)
from phobos.kernels.cuda.weights import Weight, takes_codes
from phobos.program.steps import Buffer, Glu, MatMul, Op, Program, RmsNorm, RotateStore, reads_of

if TYPE_CHECKING:
    from phobos.kernels.cuda.lowering.lower import Lowering

MOST_JOINED = 3
ARRIVALS = "arrivals"  # counters of blocks of threads, all 0 between launches


@dataclass(frozen=True)
class Fusion:
    """Neighbouring ops as one launch: products, and what is done with their results, `only` that or more elsewhere."""

    products: tuple[MatMul, ...]
    then: Glu | RmsNorm | RotateStore | None = None
    only: bool = False

    @property
    def ops(self) -> tuple[Op, ...]:
        """All of them, in order."""
        return (*self.products, *((self.then,) if self.then is not None else ()))


def find_fusions(program: Program, weights: Mapping[str, Weight]) -> dict[int, Fusion]:
    """What can be one launch, by the place of its first op. Fusions do not overlap."""
    found: dict[int, Fusion] = {}
    ops, i = program.ops, 0
    while i < len(ops):
        fusion = _fusion_at(ops, i, weights)
        if fusion is not None:
            later = ops[i + len(fusion.ops) :]
            outs = {b.name for b in (program.logits, *program.outputs) if b is not None}
            found[i] = replace(fusion, only=all(_is_done(op.out, later, outs) for op in fusion.products))
        i += len(fusion.ops) if fusion is not None else 1
    return found


def _is_done(buffer: Buffer, later: Sequence[Op], outs: set[str]) -> bool:
    """Whether nothing reads a buffer before a product writes it anew."""
    for op in later:
        if buffer.name in reads_of(op):
            return False
        if isinstance(op, MatMul) and op.out.name == buffer.name:
            return True
    return buffer.name not in outs


def _fusion_at(ops: Sequence[Op], i: int, weights: Mapping[str, Weight]) -> Fusion | None:
    first = ops[i]
    if not isinstance(first, MatMul):
        return None
    joined = [first]
    for op in ops[i + 1 : i + MOST_JOINED]:
        if not isinstance(op, MatMul) or not _can_join(joined, op, weights):
            break
        joined.append(op)
    after = ops[i + 2] if i + 2 < len(ops) else None
    if len(joined) >= 2 and isinstance(after, Glu) and _is_gate(joined[:2], after, weights):
        return Fusion(tuple(joined[:2]), after)
    if len(joined) >= 2:
        after = ops[i + 3] if i + 3 < len(ops) and len(joined) == MOST_JOINED else None
        by_buffer = {op.out: op for op in joined}
        if isinstance(after, RotateStore) and _has_heads_of(after, by_buffer):
            q, k, v = (by_buffer[b] for b in (after.q, after.k, after.v) if b is not None)
            return Fusion((q, k, v), after)
        return Fusion(tuple(joined))
    after = ops[i + 1] if i + 1 < len(ops) else None
    if isinstance(after, RmsNorm) and after.x == first.out and after.out.per_output == first.out.per_output:
        return Fusion((first,), after)
    return None


def _can_join(joined: Sequence[MatMul], op: MatMul, weights: Mapping[str, Weight]) -> bool:
    first, all_ops = joined[0], (*joined, op)
    kinds = {_kind_of(each, weights).name for each in all_ops}
    same_input = (op.x, op.scale, op.out.per_output) == (first.x, first.scale, first.out.per_output)
    coded = takes_codes(weights, op.weight) == takes_codes(weights, first.weight)
    apart = len({each.out.name for each in all_ops} | {op.x.name}) == len(all_ops) + 1
    return same_input and coded and apart and len(kinds) <= 2 and not any(each.residual for each in all_ops)


def _is_gate(products: Sequence[MatMul], glu: Glu, weights: Mapping[str, Weight]) -> bool:
    one, other = products
    return (
        {glu.gate, glu.up} == {one.out, other.out}
        and _kind_of(one, weights) == _kind_of(other, weights)
        and one.out.width == other.out.width == glu.out.width
        and one.out.width % BLOCK == 0
        and glu.out.name != one.x.name
        and glu.out.per_output == one.out.per_output
    )


def _has_heads_of(rotate: RotateStore, by_buffer: Mapping[Buffer, MatMul]) -> bool:
    """Whether three products are all that is rotated and stored, and blocks of threads lie within heads."""
    layer = rotate.layer
    widths = (rotate.n_heads * layer.k_dim, layer.n_kv_heads * layer.k_dim, layer.n_kv_heads * layer.v_dim)
    buffers = (rotate.q, rotate.k, rotate.v)
    return (
        set(by_buffer) == set(buffers)
        and all(b is not None and b.width == width for b, width in zip(buffers, widths, strict=True))
        and layer.k_dim % ROWS_OF_BLOCK == layer.v_dim % ROWS_OF_BLOCK == 0
    )


def _kind_of(op: MatMul, weights: Mapping[str, Weight]) -> PackedType:
    kind = weights[op.weight].kind
    assert kind is not None
    return kind


def n_arrivals(program: Program, weights: Mapping[str, Weight], max_rows: int) -> int:
    """Counters that fusions of a program need at most."""
    counts = [1]
    for fusion in find_fusions(program, weights).values():
        if isinstance(fusion.then, Glu):
            counts.append(fusion.then.out.width // BLOCK * -(-max_rows // ROW_TILE))
        if isinstance(fusion.then, RotateStore):
            n_heads = fusion.then.n_heads + 2 * fusion.then.layer.n_kv_heads
            counts.append(n_heads * -(-max_rows // ROW_TILE))
    return max(counts)


def can_lower(low: Lowering, fusion: Fusion) -> bool:
    """Whether a fusion is one launch in the class of shapes that is being lowered."""
    if isinstance(fusion.then, RmsNorm):
        return low.rows_of(fusion.then.out) == 1
    return all(low.is_few(op) for op in fusion.products) or _is_staged(low, fusion)


def _is_staged(low: Lowering, fusion: Fusion) -> bool:
    """Whether gate, up and their activation are one launch by way of shared memory."""
    first = fusion.products[0]
    return (
        isinstance(fusion.then, Glu)
        and fusion.only
        and low.rows_of(first.out) >= STAGED_ROWS
        and takes_codes(low.weights, first.weight)
    )


def lower_fusion(low: Lowering, fusion: Fusion) -> None:
    """The launch."""
    first = fusion.products[0]
    if takes_codes(low.weights, first.weight):
        x, stride = low.codes_of(first.x, first), quantized_stride(first.x.width)
    else:
        x, stride = low.at(first.x), 4 * first.x.width
    n_rows, kind = low.rows_of(first.out), _kind_of(first, low.weights).name
    n_tile = low.tile_of(n_rows)
    n_tiles = -(-n_rows // n_tile)
    head = (x, low.count_at(first.out), first.x.width, stride, float(first.scale))
    counters = low.addresses[ARRIVALS]
    matrices: list[int]
    if isinstance(fusion.then, RmsNorm):
        norm, weight = fusion.then, low.weights[first.weight]
        arguments: tuple[int | float, ...] = (
            low.at(first.out), x, *weight.planes, low.vector(first.bias), low.at(first.residual),
            low.count_at(first.out), first.out.width, first.x.width, first.first_row, stride, float(first.scale),
            *low.outputs_of(norm.out), low.vector(norm.weight), low.at(norm.residual), counters, float(norm.eps),
        )  # fmt: skip
        grid = (-(-first.out.width // ROWS_OF_BLOCK), 1, 1)
        low.emit(f"matmul_joined:normed_{kind}_1", arguments, fusion, grid)
        return
    if isinstance(fusion.then, Glu):
        glu = fusion.then
        gate, up = fusion.products if fusion.products[0].out == glu.gate else fusion.products[::-1]
        if _is_staged(low, fusion):
            matrices = [*_matrix(low, gate)[1:], *_matrix(low, up)[1:]]
            grid = (-(-n_rows // STAGE_COLUMNS), -(-2 * glu.out.width // STAGE_OUTPUTS), 1)
            arguments = (*head, glu.out.width, *matrices, *low.outputs_of(glu.out))
            name = f"matmul_stages:gated_{kind}_{glu.activation}"
            low.emit(name, arguments, fusion, grid, n_threads=STAGE_THREADS)
            return
        arguments = (
            *head, glu.out.width, *_matrix(low, gate), *_matrix(low, up), *low.outputs_of(glu.out), counters,
            0, 0, 1, 0,
        )  # fmt: skip
        grid = (4 * (glu.out.width // BLOCK), n_tiles, 1)
        low.emit(f"matmul_joined:gated_{kind}_{n_tile}_{glu.activation}", arguments, fusion, grid)
        return
    kinds = sorted({_kind_of(op, low.weights).name for op in fusion.products})
    matrices = []
    for op in fusion.products:
        matrices += [*_matrix(low, op), op.out.width, int(_kind_of(op, low.weights).name != kinds[0])]
    matrices += [0] * (8 * (MOST_JOINED - len(fusion.products)))
    grid = (sum(-(-op.out.width // ROWS_OF_BLOCK) for op in fusion.products), n_tiles, 1)
    names = f"{kinds[0]}_{kinds[-1]}_{n_tile}"
    if isinstance(fusion.then, RotateStore):
        arguments = (*head, *matrices, *low.rotation_of(fusion.then), counters)
        low.emit(f"matmul_joined:rotated_{names}_{low.formats}", arguments, fusion, grid)
        return
    low.emit(f"matmul_joined:joined_{names}", (*head, *matrices), fusion, grid)


def _matrix(low: Lowering, op: MatMul) -> tuple[int, ...]:
    """A product's result and weights, as the kernels take them."""
    return low.at(op.out), *low.weights[op.weight].planes, low.vector(op.bias), op.first_row
