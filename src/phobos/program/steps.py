"""The step program: what a model computes, said once for every executor.

A `Program` is a flat list of ops over named buffers. Every buffer has one row for each row of the batch, or for each
wanted output. An op says *what* is computed, in float32 terms; how (quantized, fused, on which device) is the
executor's business. `kernels/reference.py` is the executable meaning of each op.

Rules. Ops name weights by their GGUF tensor names. An op writes only its `out` (and the cache layer it names, for
`RotateStore`; and its operands in place, where the docstring says so). An executor may run ops at once as long as none
reads or writes what an unfinished one writes (`reads_of`, `writes_of`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

Activation = Literal["silu", "gelu_tanh", "gelu", "relu", "relu_squared"]
RopeStyle = Literal["normal", "neox"]


@dataclass(frozen=True)
class Buffer:
    """Rows of `width` values. `per_output`: a row for each wanted output instead of for each row of the batch."""

    name: str
    width: int
    per_output: bool = False


@dataclass(frozen=True)
class CacheLayer:
    """What attention keeps of one layer: keys and values of `n_kv_heads` heads. `window` > 0: only that many last
    positions are ever read."""

    index: int
    n_kv_heads: int
    k_dim: int
    v_dim: int
    window: int = 0


@dataclass(frozen=True)
class Embed:
    """out[r] = weight[token[r]] * scale."""

    out: Buffer
    weight: str
    scale: float = 1.0


@dataclass(frozen=True)
class RopeTable:
    """out[r] = cos(position[r] * f), then sin(position[r] * f), both times `magnitude`; f are `frequencies` (radians
    a position), so out.width = 2 * len(frequencies)."""

    out: Buffer
    frequencies: tuple[float, ...]
    magnitude: float = 1.0


@dataclass(frozen=True)
class RmsNorm:
    """out = x / sqrt(mean(x²) + eps) * weight, plus `residual` if given. With `out.per_output` and a batch-wide `x`,
    only the wanted rows are read. `out` may be `residual`."""

    out: Buffer
    x: Buffer
    weight: str
    eps: float
    residual: Buffer | None = None


@dataclass(frozen=True)
class MatMul:
    """out = x @ weight.T, plus `bias`, times `scale`, plus `residual`. `out` may be `residual`."""

    out: Buffer
    x: Buffer
    weight: str
    bias: str | None = None
    residual: Buffer | None = None
    scale: float = 1.0


@dataclass(frozen=True)
class RotateStore:
    """Ready queries and keys, and put keys and values into the cache at each row's position.

    `q` [n_heads * k_dim] and `k` [n_kv_heads * k_dim] are changed in place: first, where `q_norm` / `k_norm` name a
    weight [k_dim], RMS-normed a head at a time with `eps`; then rotated by `table` over their first
    `table.width` dimensions (none where `table` is None). "normal" pairs neighbours (2i, 2i+1), "neox" halves
    (i, i + n/2).
    """

    q: Buffer
    k: Buffer
    v: Buffer
    table: Buffer | None
    layer: CacheLayer
    n_heads: int
    style: RopeStyle = "normal"
    q_norm: str | None = None
    k_norm: str | None = None
    eps: float = 0.0


@dataclass(frozen=True)
class Attention:
    """out[r, h] = sum over positions t <= position[r] of softmax(cap(q·k[t] * scale)) v[t], inside the layer's window;
    cap(s) = soft_cap * tanh(s / soft_cap) where soft_cap > 0."""

    out: Buffer
    q: Buffer
    layer: CacheLayer
    n_heads: int
    scale: float
    soft_cap: float = 0.0


@dataclass(frozen=True)
class Glu:
    """out = activation(gate) * up."""

    out: Buffer
    gate: Buffer
    up: Buffer
    activation: Activation


@dataclass(frozen=True)
class SoftCap:
    """x = cap * tanh(x / cap), in place."""

    x: Buffer
    cap: float


Op = Embed | RopeTable | RmsNorm | MatMul | RotateStore | Attention | Glu | SoftCap


@dataclass(frozen=True)
class Program:
    """A model's whole pass. `logits` is the buffer a pass returns, one row a wanted output."""

    ops: tuple[Op, ...]
    buffers: tuple[Buffer, ...]
    layers: tuple[CacheLayer, ...]
    logits: Buffer
    n_vocab: int
    n_ctx_train: int

    def weights(self) -> tuple[str, ...]:
        """Names of all tensors the ops use, in order of first use."""
        names: dict[str, None] = {}
        for op in self.ops:
            for name in weights_of(op):
                names.setdefault(name)
        return tuple(names)


WEIGHT_FIELDS = frozenset({"weight", "bias", "q_norm", "k_norm"})


def weights_of(op: Op) -> tuple[str, ...]:
    """The tensors an op reads."""
    values = (getattr(op, f.name) for f in fields(op) if f.name in WEIGHT_FIELDS)
    return tuple(v for v in values if v is not None)


def reads_of(op: Op) -> frozenset[str]:
    """Names of the buffers, and "cache i" of the cache layer, that an op reads (those it changes in place included)."""
    names = {v.name for f in fields(op) if f.name != "out" and isinstance(v := getattr(op, f.name), Buffer)}
    if isinstance(op, Attention):
        names.add(f"cache {op.layer.index}")
    return frozenset(names)


def writes_of(op: Op) -> frozenset[str]:
    """Names of the buffers, and "cache i" of the cache layer, that an op writes."""
    match op:
        case RotateStore():
            return frozenset({op.q.name, op.k.name, f"cache {op.layer.index}"})
        case SoftCap():
            return frozenset({op.x.name})
        case _:
            return frozenset({op.out.name})
