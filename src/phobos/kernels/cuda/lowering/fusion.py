"""Ops of a program that are one launch where few rows are computed; `joined.py` lowers them.

Up to three neighbouring products of one input, whose weights are of at most two types; queries, keys and values, and
their rotation and storing; gate and up, and the activation of both; for a single row, a product and the norm of its
result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from phobos.kernels.cuda.layout import BLOCK, ROW_TILE, ROWS_OF_BLOCK
from phobos.kernels.cuda.packed_types import PackedType
from phobos.kernels.cuda.weights import Weight, takes_codes
from phobos.program.steps import Buffer, Glu, MatMul, Op, Program, RmsNorm, RotateStore, reads_of

MOST_JOINED = 3


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
    kinds = {kind_of(each, weights).name for each in all_ops}
    same_input = (op.x, op.scale, op.out.per_output) == (first.x, first.scale, first.out.per_output)
    coded = takes_codes(weights, op.weight) == takes_codes(weights, first.weight)
    apart = len({each.out.name for each in all_ops} | {op.x.name}) == len(all_ops) + 1
    return same_input and coded and apart and len(kinds) <= 2 and not any(each.residual for each in all_ops)


def _is_gate(products: Sequence[MatMul], glu: Glu, weights: Mapping[str, Weight]) -> bool:
    one, other = products
    return (
        {glu.gate, glu.up} == {one.out, other.out}
        and kind_of(one, weights) == kind_of(other, weights)
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


def kind_of(op: MatMul, weights: Mapping[str, Weight]) -> PackedType:
    """The packed type of a product's matrix."""
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
