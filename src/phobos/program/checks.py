"""Holds a program's sizes against one another before any executor sees it.

A file chooses head counts, widths and ranks one by one, and builders compute further numbers from them. Here each op is
compared with the buffers, weights, cache layers and states it names, so that no executor on any device can be told to
read or write beside them. Units are those of the kernels: heads, states and streams are whole vectors of `UNIT` values.
What does not fit is one `UnsupportedModelError`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields

from phobos.errors import UnsupportedModelError
from phobos.gguf.header import TensorInfo
from phobos.program.steps import (
    Activate,
    Add,
    AddGated,
    AddPosition,
    Attention,
    Buffer,
    CacheLayer,
    Embed,
    Experts,
    GatedDelta,
    Glu,
    HeadMatMul,
    HeadNorm,
    LayerNorm,
    MatchLength,
    MatMul,
    Mix,
    Op,
    Program,
    RmsNorm,
    RopeTable,
    RotateStore,
    Route,
    SelectiveScan,
    ShortConv,
    SoftCap,
    Sparsify,
    Splice,
    StateLayer,
    Temper,
    weights_of,
)

UNIT = 16  # values of a vector, of which heads, states and streams are whole multiples
COLUMN_UNIT = 32  # columns of a delta state
LARGEST_HEAD = 576  # values of a key or a value that attention takes
MAX_BUFFER_WIDTH = 1 << 28
LARGEST_FLOAT = 3.4e38  # kernels take 32 bits

Tensors = Mapping[str, TensorInfo]
Problems = Iterator[str]


def check_program(program: Program, tensors: Tensors, architecture: str) -> None:
    """`UnsupportedModelError` names the first op that does not fit what it names."""
    for op in program.ops:
        for problem in _problems_of(op, program, tensors):
            raise UnsupportedModelError(
                f"the sizes in this file do not fit together ({_name(op)}: {problem}): it is damaged, or a variant of "
                f"{architecture} that is not supported"
            )


def _name(op: Op) -> str:
    """What an op is known by: its kind, and its first weight where it has one."""
    weights = weights_of(op)
    return f"{type(op).__name__} of {weights[0]}" if weights else type(op).__name__


def _problems_of(op: Op, program: Program, tensors: Tensors) -> Problems:
    yield from _buffers_and_numbers(op, program, tensors)
    match op:
        case RotateStore() | Attention():
            yield from _attention(op, program)
        case Splice():
            yield from _splice(op)
        case Route() | Experts():
            yield from _experts(op, tensors)
        case ShortConv() | GatedDelta() | SelectiveScan():
            yield from _recurrent(op, program, tensors)
        case Mix() | MatchLength() | HeadNorm() | HeadMatMul() | Sparsify():
            yield from _parts(op, tensors)
        case _:
            yield from _plain(op, program, tensors)


def _buffers_and_numbers(op: Op, program: Program, tensors: Tensors) -> Problems:
    """What holds for every op: its buffers are the program's, its numbers those of 32 bits, its weights in the file."""
    known = {buffer.name: buffer for buffer in program.buffers}
    for field in fields(op):
        value = getattr(op, field.name)
        if isinstance(value, Buffer):
            if known.get(value.name) != value:
                yield f"{value.name} is no buffer of the program"
            if not 0 < value.width <= MAX_BUFFER_WIDTH:
                yield f"{value.name} would have {value.width} values"
        if isinstance(value, float) and not abs(value) <= LARGEST_FLOAT:
            yield f"{field.name} is {value}"
        if isinstance(value, float) and field.name == "eps" and value < 0:
            yield f"eps is {value}"
    for name in weights_of(op):
        if name not in tensors:
            yield f"there is no tensor {name}"


def _unequal(**widths: int) -> Problems:
    """A problem where not all are alike."""
    if len(set(widths.values())) > 1:
        yield " and ".join(f"{name} has {width} values" for name, width in widths.items())


def _is_unit(n: int, unit: int = UNIT) -> bool:
    return n > 0 and n % unit == 0


def _cache_layer(layer: CacheLayer, n_heads: int, program: Program) -> Problems:
    if not 0 <= layer.index < len(program.layers) or program.layers[layer.index] != layer:
        yield f"cache layer {layer.index} is not the program's"
    if not 0 < layer.n_kv_heads <= n_heads or n_heads % layer.n_kv_heads:
        yield f"{n_heads} heads cannot share {layer.n_kv_heads} of keys"
    for what, dim in (("keys", layer.k_dim), ("values", layer.v_dim)):
        if not _is_unit(dim) or dim > LARGEST_HEAD:
            yield f"{what} of {dim} values, where Phobos takes multiples of {UNIT} up to {LARGEST_HEAD}"
    if layer.window < 0:
        yield f"a window of {layer.window} positions"


def _attention(op: RotateStore | Attention, program: Program) -> Problems:
    layer = op.layer
    if isinstance(op, Attention):
        yield from _cache_layer(layer, op.n_heads, program)
        yield from _unequal(queries=op.q.width, heads=op.n_heads * layer.k_dim)
        yield from _unequal(result=op.out.width, heads=op.n_heads * layer.v_dim)
        return
    if op.k is not None:
        yield from _cache_layer(layer, max(op.n_heads, layer.n_kv_heads), program)
        yield from _unequal(keys=op.k.width, heads=layer.n_kv_heads * layer.k_dim)
    if op.v is not None:
        yield from _unequal(values=op.v.width, heads=layer.n_kv_heads * layer.v_dim)
    if (op.k is None) != (op.v is None):
        yield "keys without values"
    yield from _unequal(queries=op.q.width, heads=op.n_heads * layer.k_dim)
    if op.table is not None and (op.table.width % 2 or op.table.width > layer.k_dim):
        yield f"it would rotate {op.table.width} of the {layer.k_dim} values of a head"


def _splice(op: Splice) -> Problems:
    numbers = (op.n_heads, op.width, op.x_start, op.x_stride, op.out_start, op.out_stride)
    if op.n_heads < 1 or op.width < 1 or min(numbers) < 0:
        yield f"it would copy {op.n_heads} times {op.width} values"
    for buffer, start, stride in ((op.x, op.x_start, op.x_stride), (op.out, op.out_start, op.out_stride)):
        end = (op.n_heads - 1) * stride + start + op.width
        if end > buffer.width:
            yield f"it would reach to value {end} of the {buffer.width} of {buffer.name}"


def _experts(op: Route | Experts, tensors: Tensors) -> Problems:
    if isinstance(op, Route):
        n = op.logits.width
        if not 0 < op.n_used <= n:
            yield f"{op.n_used} of {n} experts would be used"
        if not 0 < op.n_groups_used <= op.n_groups <= n or n % op.n_groups:
            yield f"{op.n_groups_used} of {op.n_groups} groups of {n} experts would be used"
        elif op.n_used > op.n_groups_used * (n // op.n_groups):
            yield f"{op.n_used} experts do not lie in {op.n_groups_used} of {op.n_groups} groups of {n}"
        yield from _unequal(route=op.out.width, choices=2 * op.n_used)
        yield from _vector(op.bias, n, tensors)
        yield from _vector(op.expert_scales, n, tensors)
        return
    if not _is_unit(op.n_ff) or not _is_unit(op.x.width):
        yield f"experts of {op.n_ff} by {op.x.width} values, which are no whole multiples of {UNIT}"
    yield from _unequal(result=op.out.width, input=op.x.width, residual=(op.residual or op.out).width)
    up_rows = 2 * op.n_ff if op.gate is None else op.n_ff
    shapes = [(op.up, up_rows, op.x.width), (op.gate, op.n_ff, op.x.width), (op.down, op.x.width, op.n_ff)]
    for name, rows, columns in shapes:
        if name is not None and tensors[name].shape != (op.n_experts, rows, columns):
            yield f"{name} has shape {tensors[name].shape}"
    for name, rows in ((op.up_bias, up_rows), (op.gate_bias, op.n_ff), (op.down_bias, op.x.width)):
        yield from _vector(name, op.n_experts * rows, tensors)


def _state(state: StateLayer, n_values: int, program: Program) -> Problems:
    if not 0 <= state.index < len(program.states) or program.states[state.index] != state:
        yield f"state {state.index} is not the program's"
    yield from _unequal(state=state.n_values, heads=n_values)


def _recurrent(op: ShortConv | GatedDelta | SelectiveScan, program: Program, tensors: Tensors) -> Problems:
    match op:
        case ShortConv():
            yield from _unequal(result=op.out.width, channels=op.x.width)
            yield from _state(op.state, (op.width - 1) * op.x.width, program)
            yield from _vector(op.weight, op.x.width * op.width, tensors)
            yield from _vector(op.bias, op.x.width, tensors)
            if not _is_unit(op.x.width) or op.width < 2:
                yield f"a convolution of {op.width} over {op.x.width} channels"
        case GatedDelta():
            yield from _delta(op, tensors)
            yield from _state(op.state, op.n_heads * op.k_dim * op.v_dim, program)
        case SelectiveScan():
            inner, shared = op.n_heads * op.head_dim, op.n_groups * op.state_dim
            yield from _unequal(result=op.out.width, heads=inner)
            yield from _unequal(input=op.x.width, heads_and_groups=inner + 2 * shared)
            yield from _unequal(steps=op.dt.width, heads=op.n_heads)
            yield from _state(op.state, inner * op.state_dim, program)
            if not _is_unit(op.head_dim) or not _is_unit(op.state_dim) or op.n_groups < 1 or op.n_heads % op.n_groups:
                yield f"{op.n_heads} heads of {op.head_dim}, {op.n_groups} groups, states of {op.state_dim}"
            for name in (op.rate, op.skip, op.dt_bias):
                yield from _vector(name, op.n_heads, tensors)


def _delta(op: GatedDelta, tensors: Tensors) -> Problems:
    n, keys = op.n_heads, op.n_k_heads * op.k_dim
    if op.n_k_heads < 1 or n % op.n_k_heads or not _is_unit(op.k_dim) or not _is_unit(op.v_dim, COLUMN_UNIT):
        yield f"{n} heads of {op.v_dim}, {op.n_k_heads} of keys of {op.k_dim} values"
    parts = zip((op.q, op.k, op.v), op.starts, (keys, keys, n * op.v_dim), strict=True)
    for buffer, start, width in parts:
        if start < 0 or start + width > buffer.width:
            yield f"it would reach to value {start + width} of the {buffer.width} of {buffer.name}"
    yield from _unequal(result=op.out.width, heads=n * op.v_dim)
    yield from _unequal(strengths=op.beta.width, heads=n)
    if op.decay.width not in (n, n * op.k_dim):
        yield f"{op.decay.width} decays of {n} heads"
    yield from _vector(op.rate, n, tensors)
    yield from _vector(op.decay_bias, op.decay.width, tensors)


def _parts(op: Mix | MatchLength | HeadNorm | HeadMatMul | Sparsify, tensors: Tensors) -> Problems:
    """Rows in equal parts, each a whole number of vectors."""
    match op:
        case Mix():
            if op.n_in < 1 or op.n_out < 1 or op.skipped < 0 or op.x.width % op.n_in:
                yield f"{op.n_in} streams of {op.x.width} values would become {op.n_out}"
                return
            width = op.x.width // op.n_in
            yield from _units(width)
            yield from _unequal(result=op.out.width, streams=width * (op.n_out + op.skipped))
            yield from _unequal(residual=(op.residual or op.out).width, result=op.out.width)
            if op.coefficients is not None and op.coefficients.width < op.n_out * op.n_in:
                yield f"{op.coefficients.width} coefficients for {op.n_out} by {op.n_in} streams"
        case MatchLength():
            yield from _divided(op.x.width, op.n_heads)
            yield from _unequal(target=op.target.width, part=op.x.width // max(1, op.n_heads))
        case HeadNorm():
            yield from _divided(op.x.width, op.n_heads)
            yield from _unequal(result=op.out.width, input=op.x.width)
            yield from _vector(
                op.weight, op.x.width if op.has_own_weights else op.x.width // max(1, op.n_heads), tensors
            )
        case HeadMatMul():
            yield from _divided(op.x.width, op.n_heads)
            yield from _divided(op.out.width, op.n_heads)
            n = max(1, op.n_heads)
            if tensors[op.weight].shape != (op.n_heads, op.out.width // n, op.x.width // n):
                yield f"{op.weight} has shape {tensors[op.weight].shape}"
        case Sparsify():
            yield from _units(op.x.width)


def _units(width: int) -> Problems:
    if not _is_unit(width):
        yield f"{width} values are no whole multiple of {UNIT}"


def _divided(width: int, n: int) -> Problems:
    if n < 1 or width % n:
        yield f"{width} values do not fall into {n} parts"
    else:
        yield from _units(width // n)


def _vector(name: str | None, n_values: int, tensors: Tensors) -> Problems:
    """A weight that is read value by value."""
    if name is not None and math.prod(tensors[name].shape) != n_values:
        yield f"{name} has {math.prod(tensors[name].shape)} values where {n_values} are read"


def _plain(op: Op, program: Program, tensors: Tensors) -> Problems:
    """Ops that read and write rows of one width."""
    match op:
        case Embed():
            if tensors[op.weight].shape != (program.n_vocab, op.out.width):
                yield f"{op.weight} has shape {tensors[op.weight].shape} for {program.n_vocab} tokens"
        case RopeTable():
            yield from _unequal(table=op.out.width, frequencies=2 * len(op.frequencies))
            if not all(math.isfinite(f) for f in op.frequencies):
                yield "a frequency is not finite"
        case RmsNorm() | LayerNorm():
            residual = op.residual if isinstance(op, RmsNorm) and op.residual is not None else op.out
            yield from _unequal(result=op.out.width, input=op.x.width, residual=residual.width)
            for name in weights_of(op):
                yield from _vector(name, op.x.width, tensors)
        case MatMul():
            yield from _matmul(op, tensors)
        case Add():
            yield from _unequal(result=op.out.width, input=op.x.width, residual=(op.residual or op.x).width)
            if op.weight is not None and tensors[op.weight].shape != (1,):
                yield from _vector(op.weight, op.x.width, tensors)
        case AddPosition():
            shape = tensors[op.weight].shape
            if len(shape) != 2 or shape[0] < program.n_ctx_train or shape[1] != op.x.width:
                yield f"{op.weight} has shape {shape} for {program.n_ctx_train} positions"
        case Temper():
            if op.span < 1:
                yield f"a span of {op.span} positions"
        case AddGated():
            yield from _unequal(result=op.out.width, input=op.x.width, residual=op.residual.width)
        case Glu():
            yield from _unequal(result=op.out.width, gate=op.gate.width, up=op.up.width)
        case Activate():
            yield from _unequal(result=op.out.width, input=op.x.width)
        case SoftCap():
            if op.cap <= 0:
                yield f"a cap of {op.cap}"


def _matmul(op: MatMul, tensors: Tensors) -> Problems:
    shape = tensors[op.weight].shape
    rows = math.prod(shape[:-1])
    if shape[-1] != op.x.width or op.first_row < 0 or op.first_row % UNIT or op.first_row + op.out.width > rows:
        yield f"rows {op.first_row} to {op.first_row + op.out.width} of {op.x.width} values of the shape {shape}"
    if op.bias is not None and math.prod(tensors[op.bias].shape) < op.first_row + op.out.width:
        yield f"{op.bias} has {math.prod(tensors[op.bias].shape)} values"
    yield from _unequal(result=op.out.width, residual=(op.residual or op.out).width)
