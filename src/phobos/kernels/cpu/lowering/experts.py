"""Lowers products with many matrices, of experts or of heads, to the kernels of `moe.py`.

Rows are gathered into the order of their matrices, multiplied there, and brought back: for experts weighted and added,
for heads as they are.
"""

from __future__ import annotations

from collections.abc import Mapping

from phobos.kernels.cpu.layout import Order, float_stride, quantized_stride
from phobos.kernels.cpu.lowering.buffers import ACTIVE, ORDER, PLACES, SOURCES
from phobos.kernels.cpu.lowering.launches import LaunchBuilder
from phobos.kernels.cpu.names import activations, made, moe, norm
from phobos.kernels.cpu.weights import takes_codes
from phobos.kernels.float_readers import input_matrices
from phobos.program.steps import Experts, Gating, HeadMatMul

GATINGS: Mapping[Gating, int] = {"softmax": 0, "sigmoid": 1, "chosen": 2}

_TABLES = frozenset({ORDER, ACTIVE, SOURCES, PLACES})


def lower_experts(low: LaunchBuilder, op: Experts) -> None:
    """Sort, gather, multiply by gate and up, activate, multiply by down, add up."""
    at = low.addresses
    n_used = op.route.width // 2
    arguments: tuple[int | float, ...] = (
        at[ORDER], low.at(op.route), low.count_at(op.x), op.n_experts, n_used, at[ACTIVE], at[SOURCES], at[PLACES],
    )  # fmt: skip
    low.emit(moe.sort_rows, arguments, op, reads=frozenset({op.route.name}), writes=_TABLES)
    for codes in sorted({takes_codes(low.weights, name) for name in input_matrices(op)}):
        source = low.codes_of(op.x, op) if codes else low.at(op.x)
        stride = quantized_stride(op.x.width) if codes else float_stride(op.x.width)
        suffix = ".q8" if codes else ""
        arguments = (at["mix.in" + suffix], source, at[ORDER], at[SOURCES], stride, n_used)
        reads = _TABLES | {op.x.name + suffix}
        low.emit(moe.gather, arguments, op, reads=reads, writes=frozenset({"mix.in" + suffix}))
    if op.gate is None:
        _multiply(low, op, op.up, op.up_bias, "mix.in", "mix.gate", (op.x.width, op.n_ff, 2 * op.n_ff, 0))
        _multiply(low, op, op.up, op.up_bias, "mix.in", "mix.up", (op.x.width, op.n_ff, 2 * op.n_ff, op.n_ff))
    else:
        _multiply(low, op, op.gate, op.gate_bias, "mix.in", "mix.gate", (op.x.width, op.n_ff, op.n_ff, 0))
        _multiply(low, op, op.up, op.up_bias, "mix.in", "mix.up", (op.x.width, op.n_ff, op.n_ff, 0))
    is_coded = takes_codes(low.weights, op.down)
    kernel = made(activations, "glu", op.activation, *(["quantize"] if is_coded else []))
    hidden = "mix.hidden.q8" if is_coded else "mix.hidden"
    arguments = (at[hidden], at["mix.gate"], at["mix.up"], at[ORDER] + Order.N_PAIRS, op.n_ff)
    low.emit(
        kernel, arguments, op,
        reads=frozenset({"mix.gate", "mix.up", ORDER}), writes=frozenset({hidden}),
    )  # fmt: skip
    _multiply(low, op, op.down, op.down_bias, "mix.hidden", "mix.out", (op.n_ff, op.out.width, op.out.width, 0))
    residual = frozenset({op.residual.name}) if op.residual is not None else frozenset()
    arguments = (
        low.at(op.out), at["mix.out"], low.at(op.route), low.at(op.residual) if op.residual is not None else 0,
        low.count_at(op.out), op.out.width, n_used, at[PLACES],
    )  # fmt: skip
    reads = frozenset({"mix.out", PLACES, op.route.name}) | residual
    low.emit(moe.combine, arguments, op, reads=reads, writes=frozenset({op.out.name}))


def lower_heads(low: LaunchBuilder, op: HeadMatMul) -> None:
    """Gather by head, multiply, bring back."""
    at = low.addresses
    n_in, n_out = op.x.width // op.n_heads, op.out.width // op.n_heads
    arguments: tuple[int | float, ...] = (
        at[ORDER], low.count_at(op.x), op.n_heads, at[ACTIVE], at[SOURCES], at[PLACES],
    )  # fmt: skip
    low.emit(moe.head_order, arguments, op, reads=frozenset(), writes=_TABLES)
    arguments = (at["mix.in"], low.at(op.x), at[ORDER], at[SOURCES], float_stride(n_in), 1)
    low.emit(moe.gather, arguments, op, reads=_TABLES | {op.x.name}, writes=frozenset({"mix.in"}))
    if takes_codes(low.weights, op.weight):
        arguments = (at["mix.in.q8"], at["mix.in"], at[ORDER] + Order.N_PAIRS, n_in)
        low.emit(norm.quantize, arguments, op, reads=frozenset({"mix.in", ORDER}), writes=frozenset({"mix.in.q8"}))
    _multiply(low, op, op.weight, None, "mix.in", "mix.out", (n_in, n_out, n_out, 0))
    arguments = (low.at(op.out), at["mix.out"], at[ORDER], at[PLACES], float_stride(n_out), 1)
    low.emit(moe.gather, arguments, op, reads=_TABLES | {"mix.out"}, writes=frozenset({op.out.name}))


def _multiply(
    low: LaunchBuilder, op: Experts | HeadMatMul, weight: str, bias: str | None, source: str, target: str,
    shape: tuple[int, int, int, int],
) -> None:  # fmt: skip
    """One product; `shape`: inputs, outputs, rows of a matrix, and the first of them that is used."""
    n_in, n_out, matrix_rows, first_row = shape
    held = low.weights[weight]
    assert held.kind is not None
    source += ".q8" * takes_codes(low.weights, weight)
    arguments = (
        low.addresses[target], low.addresses[source], held.address, low.weight_at(bias), low.addresses[ORDER],
        low.addresses[ACTIVE], low.header, low.new_work(), n_out, n_in, matrix_rows, first_row,
    )  # fmt: skip
    low.emit(made(moe, "matmul", held.kind.name), arguments, op, reads=_TABLES | {source}, writes=frozenset({target}))
