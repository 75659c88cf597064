"""Weights in memory: matrices packed by type, vectors as float32, all in one arena. `packing.py` fills it.

A type without a packed form is widened to halves, which the load reports.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from phobos.gguf.quants import GGMLType
from phobos.gguf.reader import GGUF
from phobos.kernels.cpu.layout import BLOCK, LINE, round_up
from phobos.kernels.cpu.memory import Arena
from phobos.kernels.cpu.packed_types import PACKED, PackedType, packed_bytes
from phobos.program.steps import Program, ShortConv, matrices_of


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
        weights[name] = Weight(name, 0, packed_bytes(kind, *matrix_shape(gguf, name)), kind, widened)
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


def matrix_shape(gguf: GGUF, name: str) -> tuple[int, int]:
    """Rows and columns of a tensor, its outer dimensions taken as one."""
    shape = gguf.tensors[name].shape
    return int(np.prod(shape[:-1])), int(shape[-1])


def is_quantized(kind: PackedType) -> bool:
    """Whether products with this type take quantized activations."""
    return kind.block >= BLOCK // 2


def takes_codes(weights: Mapping[str, Weight], name: str) -> bool:
    """Whether a matrix is multiplied with quantized activations."""
    kind = weights[name].kind
    return kind is not None and is_quantized(kind)
