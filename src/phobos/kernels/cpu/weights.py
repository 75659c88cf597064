"""Weights in memory: matrices packed by type, vectors as float32.

Every tensor is read once from the file's mapping and packed by compiled code, all threads at work, into one arena; the
file's pages are let go as they are packed, so that a load holds the packed weights and one slice of the file. A type
without a packed form is widened to halves, which the load reports.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from phobos.gguf.grids import level_numbers
from phobos.gguf.quants import TABLE, GGMLType
from phobos.gguf.reader import GGUF
from phobos.kernels.cpu.compiler import ENTRY_TYPE, encode_record, load_kernels
from phobos.kernels.cpu.layout import BLOCK, GROUP, LINE, PACKED, PackedType, packed_bytes, round_up
from phobos.kernels.cpu.memory import Arena
from phobos.program.steps import Program, ShortConv, matrices_of

SLICE_BYTES = 32 << 20  # packed at a time, so that progress is seen and a cancelled load stops soon
CODEBOOKS = {  # of the types whose packers look points up
    GGMLType.IQ1_S: "iq1",
    GGMLType.IQ1_M: "iq1",
    GGMLType.IQ2_XXS: "iq2_xxs",
    GGMLType.IQ2_XS: "iq2_xs",
    GGMLType.IQ2_S: "iq2_s",
    GGMLType.IQ3_XXS: "iq3_xxs",
    GGMLType.IQ3_S: "iq3_s",
}


@dataclass(frozen=True)
class Weight:
    """A tensor in memory. `kind` is None for a float32 vector, which `transposed` [a, b] lies as [b, a]."""

    name: str
    address: int
    n_bytes: int
    kind: PackedType | None
    widened: bool = False
    transposed: bool = False


def choose_kind(gguf: GGUF, name: str) -> tuple[PackedType, bool]:
    """The packed type of a matrix, and whether it had to be widened."""
    info = gguf.tensors[name]
    if info.type in PACKED and info.shape[-1] % PACKED[info.type].values == 0:
        return PACKED[info.type], False
    return PACKED[GGMLType.F16], True


def describe_weights(gguf: GGUF, matrices: Iterable[str], vectors: Iterable[str]) -> dict[str, Weight]:
    """How every tensor will be held; they have no addresses yet."""
    weights = {}
    for name in matrices:
        kind, widened = choose_kind(gguf, name)
        weights[name] = Weight(name, 0, packed_bytes(kind, *_matrix_shape(gguf, name)), kind, widened)
    for name in vectors:
        weights[name] = Weight(name, 0, round_up(4 * math.prod(gguf.tensors[name].shape), LINE), None)
    return weights


def describe_program(gguf: GGUF, program: Program) -> dict[str, Weight]:
    """The same of all that a program needs: what its products and tables read is packed, the rest is float32."""
    matrices = dict.fromkeys(name for op in program.ops for name in matrices_of(op))
    return describe_weights(gguf, matrices, [name for name in program.weights() if name not in matrices])


def plan_weights(gguf: GGUF, program: Program) -> tuple[Mapping[str, Weight], Arena]:
    """Where every tensor will lie, taps of short convolutions transposed; nothing is read yet."""
    weights = describe_program(gguf, program)
    transposed = {op.weight for op in program.ops if isinstance(op, ShortConv)}
    arena = Arena(sum(round_up(weight.n_bytes, LINE) for weight in weights.values()))
    placed = {
        name: replace(weight, address=arena.take(weight.n_bytes), transposed=name in transposed)
        for name, weight in weights.items()
    }
    return placed, arena


def packer_of(weight: Weight) -> str | None:
    """The kernel that packs a matrix; None for a vector."""
    return weight.kind.packer if weight.kind is not None else None


def fill_weights(
    gguf: GGUF, weights: Mapping[str, Weight], arena: Arena, n_threads: int, report: Callable[[str, float], None]
) -> None:
    """Read every tensor into its place; `report(tensor, fraction)` is called as bytes are done."""
    packers = load_kernels(name for w in weights.values() if (name := packer_of(w)) is not None)
    total, done = sum(w.n_bytes for w in weights.values()), 0
    for name, weight in weights.items():
        packer = packer_of(weight)
        if weight.kind is None or packer is None:
            values = TABLE[gguf.tensors[name].type].dequantize(gguf.data(name)).astype(np.float32)
            values = (values.reshape(_matrix_shape(gguf, name)).T if weight.transposed else values).ravel()
            arena.view(weight.address, values.nbytes)[:] = values.view(np.uint8)
            gguf.release(name)
        else:
            source = _widen(gguf, name) if weight.widened else gguf.data(name)
            shape = _matrix_shape(gguf, name)
            book = CODEBOOKS.get(gguf.tensors[name].type)
            table = level_numbers(book).ctypes.data if book is not None else 0
            places = (weight.address, source.ctypes.data, table)
            for n_rows in _pack(packers[packer], places, weight.kind, shape, n_threads):
                gguf.release(name, gguf.tensors[name].n_bytes * n_rows // shape[0])
                report(name, (done + weight.n_bytes * n_rows / shape[0]) / total)
        done += weight.n_bytes


def _matrix_shape(gguf: GGUF, name: str) -> tuple[int, int]:
    shape = gguf.tensors[name].shape
    return int(np.prod(shape[:-1])), int(shape[-1])


def _widen(gguf: GGUF, name: str) -> np.ndarray:
    values = TABLE[gguf.tensors[name].type].dequantize(gguf.data(name))
    return np.clip(values, -65504, 65504).astype(np.float16).view(np.uint8).ravel()


def _pack(
    function: int, places: tuple[int, int, int], kind: PackedType, shape: tuple[int, int], n_threads: int
) -> Iterator[int]:
    """Pack slice by slice; yields the rows done. `places`: addresses of the target, the source and a table."""
    n_out, n_in = shape
    n_groups = round_up(n_out, GROUP) // GROUP
    n_records = n_in // kind.values
    step = max(n_threads, SLICE_BYTES // max(1, n_records * kind.record_bytes))
    for first in range(0, n_groups, step):
        last = min(first + step, n_groups)
        arguments = (*places, first, last, n_out, n_records)
        record = np.frombuffer(encode_record(function, 0, arguments), np.uint8).copy()
        share = [
            threading.Thread(target=ENTRY_TYPE(function), args=(record.ctypes.data, thread, n_threads))
            for thread in range(1, n_threads)
        ]
        for worker in share:
            worker.start()
        ENTRY_TYPE(function)(record.ctypes.data, 0, n_threads)
        for worker in share:
            worker.join()
        yield min(GROUP * last, n_out)


def is_quantized(kind: PackedType) -> bool:
    """Whether products with this type take quantized activations."""
    return kind.block >= BLOCK // 2
