"""What a program takes of memory on this backend: worked out from the file's header, nothing loaded."""

from __future__ import annotations

from phobos.gguf.reader import GGUF
from phobos.kernels.backend import BackendLimits
from phobos.kernels.cpu.layout import float_stride, thread_scratch_bytes
from phobos.kernels.cpu.lowering.buffers import buffer_sizes
from phobos.kernels.cpu.packing import slice_bytes
from phobos.kernels.cpu.weights import describe_program
from phobos.program.steps import Program


def weights_bytes(gguf: GGUF, program: Program) -> int:
    """Bytes of all weights in memory: matrices packed, vectors as float32."""
    return sum(weight.n_bytes for weight in describe_program(gguf, program).values())


def packing_bytes(weights: int, n_threads: int) -> int:
    """The most that loading holds of weights: all of them packed, and the slice of the file each thread is at."""
    return weights + min(weights, n_threads * slice_bytes(n_threads))


def scratch_bytes(gguf: GGUF, program: Program, limits: BackendLimits, n_threads: int) -> int:
    """Bytes of the buffers of one pass and of each thread's own scratch."""
    sizes = buffer_sizes(program, describe_program(gguf, program), limits)
    return sum(sizes.values()) + n_threads * thread_scratch_bytes(limits.max_rows)


def logits_row_bytes(program: Program) -> int:
    """Bytes of a row of logits; 0 where the program ends elsewhere."""
    return float_stride(program.logits.width) if program.logits is not None else 0
