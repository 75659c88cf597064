"""A program cut into stages at the borders of its layers, so that each may run elsewhere.

A stage is a `Program` of its own, with its own cache layers and states numbered from 0. What a later stage reads and an
earlier one makes is handed on from stage to stage (`inputs`, `outputs`): the residual stream, and whatever else lives
across the border. Tables of rotations depend on positions only and are made anew where they are read. The values are
those of the whole program, bit for bit where an executor computes an op the same way in every program.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

from phobos.program.steps import (
    Attention,
    Buffer,
    CacheLayer,
    GatedDelta,
    Mix,
    Op,
    Program,
    RopeTable,
    RotateStore,
    SelectiveScan,
    ShortConv,
    Splice,
    StateLayer,
    reads_of,
    weights_of,
    writes_of,
)

_BLOCK = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True)
class Border:
    """Where a program may be cut: before the op `index`, with which block `layer` begins."""

    index: int
    layer: int


def count_layers(program: Program) -> int:
    """Blocks of a program, by the names of its weights."""
    return max((n for op in program.ops if (n := _block_of(op)) is not None), default=-1) + 1


def find_borders(program: Program) -> tuple[Border, ...]:
    """All borders, first to last: none where blocks on both sides use the same cache layer or state."""
    firsts: dict[int, int] = {}
    spans: dict[str, tuple[int, int]] = {}
    for i, op in enumerate(program.ops):
        block = _block_of(op)
        if block is not None:
            firsts.setdefault(block, i)
        for name in reads_of(op) | writes_of(op):
            if name.startswith(("cache ", "state ")):
                spans[name] = (spans.get(name, (i, i))[0], i)
    return tuple(
        Border(index, layer)
        for layer, index in sorted(firsts.items())
        if layer > 0 and not any(first < index <= last for first, last in spans.values())
    )


def cut_program(program: Program, borders: Sequence[Border]) -> tuple[Program, ...]:
    """The stages of a program cut at these borders."""
    starts = [0, *(border.index for border in borders)]
    ends = [*starts[1:], len(program.ops)]
    buffers = {buffer.name: buffer for buffer in program.buffers}
    live = [_live_into(program, start) for start in (*starts, len(program.ops))]
    return tuple(
        _stage(program, program.ops[start:end], [buffers[name] for name in live[i]], [buffers[n] for n in live[i + 1]])
        for i, (start, end) in enumerate(zip(starts, ends, strict=True))
    )


def _block_of(op: Op) -> int | None:
    found = [int(match[1]) for name in weights_of(op) if (match := _BLOCK.match(name)) is not None]
    return max(found, default=None)


def _live_into(program: Program, start: int) -> list[str]:
    """Names of the buffers that ops from `start` on read before all of what they read is written there; none of
    tables, which are made anew."""
    tables = {op.out.name for op in program.ops if isinstance(op, RopeTable)}
    live: dict[str, None] = {}
    written: dict[str, set[int]] = {}  # columns, of buffers written in parts
    whole: set[str] = set()
    for op in program.ops[start:]:
        for name in sorted(reads_of(op)):
            if name not in whole and name not in tables and not name.startswith(("cache ", "state ")):
                live.setdefault(name)
        part = _columns_of(op)
        if part is None:
            whole |= writes_of(op)
        else:
            out = getattr(op, "out")  # noqa: B009
            columns = written.setdefault(out.name, set())
            columns.update(part)
            if len(columns) == out.width:
                whole.add(out.name)
    return [] if start == 0 else list(live)


def _columns_of(op: Op) -> Iterable[int] | None:
    """The columns of `out` that an op writes; None for all."""
    if isinstance(op, Splice):
        heads = (op.out_start + h * op.out_stride for h in range(op.n_heads))
        return [first + j for first in heads for j in range(op.width)]
    if isinstance(op, Mix) and op.skipped:
        width = op.x.width // op.n_in
        return range(op.skipped * width, (op.skipped + op.n_out) * width)
    return None


def _stage(program: Program, ops: Sequence[Op], inputs: list[Buffer], outputs: list[Buffer]) -> Program:
    """Ops as a program: tables they read before them, cache layers and states renumbered."""
    made = {op.out.name for op in ops if isinstance(op, RopeTable)}
    read = frozenset().union(*(reads_of(op) for op in ops))
    tables = (op for op in program.ops if isinstance(op, RopeTable))
    ops = (*(op for op in tables if op.out.name in read - made), *ops)
    layers: dict[int, CacheLayer] = {}
    states: dict[int, StateLayer] = {}
    for op in ops:
        if isinstance(op, RotateStore | Attention):
            layers.setdefault(op.layer.index, replace(op.layer, index=len(layers)))
        if isinstance(op, ShortConv | GatedDelta | SelectiveScan):
            states.setdefault(op.state.index, replace(op.state, index=len(states)))
    named = dict.fromkeys(
        [*inputs, *outputs, *(v for op in ops for f in fields(op) if isinstance(v := getattr(op, f.name), Buffer))]
    )
    return Program(
        tuple(_renumber(op, layers, states) for op in ops),
        tuple(named),
        tuple(layers.values()),
        program.logits if program.logits in named else None,
        program.n_vocab,
        program.n_ctx_train,
        tuple(states.values()),
        tuple(inputs),
        tuple(outputs),
        program.pooling,
    )


def _renumber(op: Op, layers: dict[int, CacheLayer], states: dict[int, StateLayer]) -> Op:
    if isinstance(op, RotateStore | Attention):
        return replace(op, layer=layers[op.layer.index])
    if isinstance(op, ShortConv | GatedDelta | SelectiveScan):
        return replace(op, state=states[op.state.index])
    return op
