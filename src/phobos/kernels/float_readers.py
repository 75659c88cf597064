"""Which values a program needs as floats where products take them quantized: what all lowerings share."""

from __future__ import annotations

from collections.abc import Callable

from phobos.program.steps import Experts, MatMul, Program, reads_of


def input_matrices(op: Experts) -> tuple[str, ...]:
    """The matrices of experts that read their input."""
    return (op.up,) if op.gate is None else (op.gate, op.up)


def find_float_readers(program: Program, takes_codes: Callable[[str], bool]) -> set[str]:
    """Names of the buffers whose floats some op needs; `takes_codes(weight)` says whether a matrix is multiplied with
    quantized activations."""
    kept = (program.logits, *program.inputs, *program.outputs)
    names = {buffer.name for buffer in kept if buffer is not None}
    for op in program.ops:
        reads = reads_of(op)
        quantized = (isinstance(op, MatMul) and takes_codes(op.weight)) or (
            isinstance(op, Experts) and all(takes_codes(name) for name in input_matrices(op))
        )
        if quantized and isinstance(op, MatMul | Experts):
            reads = reads - {op.x.name} | ({op.residual.name} if op.residual else set())
        names |= reads
    return names
