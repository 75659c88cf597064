"""The step program: what a model computes, said once for every executor.

A `Program` is a flat list of ops over named buffers. Every buffer has one row for each row of the batch, or for each
wanted output. An op says *what* is computed, in float32 terms; how (quantized, fused, on which device) is the
executor's business. `kernels/reference/backend.py` is the executable meaning of each op.

Rules. Ops name weights by their GGUF tensor names. An op writes only its `out` (and the cache layer or the state it
names; and its operands in place, where the docstring says so). An executor may run ops at once as long as none reads or
writes what an unfinished one writes (`reads_of`, `writes_of`).

Recurrent ops fold a sequence into a state of fixed size. They take the rows of a slot one after another, whatever the
batch, so a row's values depend on those before it only; at position 0 the state is zero.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

Activation = Literal["silu", "gelu_tanh", "gelu", "relu", "relu_squared"]
RopeStyle = Literal["normal", "neox"]
ExpertActivation = Literal[Activation, "swiglu_oai"]
GateActivation = Literal[Activation, "sigmoid", "identity"]
Gating = Literal["softmax", "sigmoid", "chosen"]
Pooling = Literal["mean", "cls", "last"]


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
class StateLayer:
    """What a recurrent op keeps of a slot, however long: `n_values` values; their order is the executor's."""

    index: int
    n_values: int


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
class LayerNorm:
    """out = (x - mean(x)) / sqrt(variance(x) + eps) * weight, plus `bias` if given. Wanted rows as in `RmsNorm`."""

    out: Buffer
    x: Buffer
    weight: str
    bias: str | None
    eps: float


@dataclass(frozen=True)
class HeadNorm:
    """RMS norm of each of `n_heads` equal parts of a row, times `weight` [width / n_heads] if given, or one for each
    head: [n_heads, width / n_heads] where `has_own_weights`."""

    out: Buffer
    x: Buffer
    n_heads: int
    weight: str | None
    eps: float
    has_own_weights: bool = False


@dataclass(frozen=True)
class MatMul:
    """out = x @ weight.T, plus `bias`, times `scale`, plus `residual`. `out` may be `residual`.

    Only rows `first_row` to `first_row + out.width` of the weight and the bias are used; `first_row` is a multiple of
    16.
    """

    out: Buffer
    x: Buffer
    weight: str
    bias: str | None = None
    residual: Buffer | None = None
    scale: float = 1.0
    first_row: int = 0


@dataclass(frozen=True)
class Splice:
    """For each head h of `n_heads`: out[h * out_stride + out_start + j] = x[h * x_stride + x_start + j], j < width.

    Strides and starts count values of a row; a stride of 0 gives every head the same values. The rest of `out` stays.
    """

    out: Buffer
    x: Buffer
    n_heads: int
    width: int
    x_start: int
    x_stride: int
    out_start: int
    out_stride: int


@dataclass(frozen=True)
class Add:
    """out = (x + residual) * scale, times `weight` if given, one value or one for each column; without `residual` x
    alone. `out` may be either."""

    out: Buffer
    x: Buffer
    residual: Buffer | None
    scale: float = 1.0
    weight: str | None = None


@dataclass(frozen=True)
class AddPosition:
    """x[r] += weight[position[r]], in place: learned positions [n_positions, width]."""

    x: Buffer
    weight: str


@dataclass(frozen=True)
class Temper:
    """x[r] *= 1 + slope * ln(1 + floor(position[r] / span)), in place: queries sharpened far into a context."""

    x: Buffer
    slope: float
    span: int


@dataclass(frozen=True)
class RotateStore:
    """Ready queries and keys, and put keys and values into the cache at each row's position.

    `q` [n_heads * k_dim] and `k` [n_kv_heads * k_dim] are changed in place: first, where `q_norm` / `k_norm` name a
    weight [k_dim], RMS-normed a head at a time with `eps`; then rotated by `table` over their first
    `table.width` dimensions (none where `table` is None). "normal" pairs neighbours (2i, 2i+1), "neox" halves
    (i, i + n/2). Without `k` and `v` only queries are made ready: the layer's keys are another block's.
    """

    q: Buffer
    k: Buffer | None
    v: Buffer | None
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
    cap(s) = soft_cap * tanh(s / soft_cap) where soft_cap > 0. `sinks` [n_heads] names a score of each head that takes
    its part of the softmax and has no value."""

    out: Buffer
    q: Buffer
    layer: CacheLayer
    n_heads: int
    scale: float
    soft_cap: float = 0.0
    sinks: str | None = None


@dataclass(frozen=True)
class Route:
    """Which experts a row goes to. out [2 * n_used]: their numbers, best first, then their weights.

    p = the softmax or sigmoid of `logits` [n_experts], or for "chosen" the logits themselves. The `n_used` largest of
    p + `bias` are chosen; with `n_groups` > 1 only from the `n_groups_used` groups of neighbours whose two largest sum
    highest. Their weights are their p (for "chosen" the softmax of those), over their sum where `is_normalized`, times
    `scale` and, where given, their own of `expert_scales` [n_experts].
    """

    out: Buffer
    logits: Buffer
    n_used: int
    gating: Gating
    bias: str | None = None
    n_groups: int = 1
    n_groups_used: int = 1
    is_normalized: bool = True
    scale: float = 1.0
    expert_scales: str | None = None


@dataclass(frozen=True)
class Experts:
    """out = residual + sum over the experts e of `route` of weight_e * down_e(act(gate_e(x)) * up_e(x)).

    `up` is [n_experts, n_ff, width], `gate` the same or None: then `up` has 2 * n_ff rows, the gate's first; `down` is
    [n_experts, width, n_ff]. Biases, [n_experts, rows], are added where named. The activation "swiglu_oai" is
    g * sigmoid(1.702 g) * (u + 1) with g at most 7 and u within 7 of 0. `out` may be `residual`.
    """

    out: Buffer
    x: Buffer
    route: Buffer
    residual: Buffer | None
    n_experts: int
    n_ff: int
    activation: ExpertActivation
    gate: str | None
    up: str
    down: str
    gate_bias: str | None = None
    up_bias: str | None = None
    down_bias: str | None = None


@dataclass(frozen=True)
class Mix:
    """out[j] = residual[j] + sum over k < n_in of (coefficients[j * n_in + k] + offset) x[k], for j < n_out, where rows
    of x are `n_in` streams and rows of out `n_out` after the first `skipped`, which stay. Without `coefficients` offset
    alone counts. `out` may be `residual`, not x."""

    out: Buffer
    x: Buffer
    coefficients: Buffer | None
    residual: Buffer | None
    n_out: int
    n_in: int
    offset: float = 0.0
    skipped: int = 0


@dataclass(frozen=True)
class MatchLength:
    """Each of `n_heads` equal parts of x is scaled to the length of `target` [width / n_heads], in place."""

    x: Buffer
    target: Buffer
    n_heads: int


@dataclass(frozen=True)
class Sparsify:
    """x = max(x - mean(x) - multiplier * deviation(x), 0), in place; the deviation is that of a sample. Of a normal
    distribution it keeps the share above the multiplier. Source: Gemma Team 2025 (Gemma 3n)."""

    x: Buffer
    multiplier: float


@dataclass(frozen=True)
class AddGated:
    """out = residual + sigmoid(gate[0]) * x, a shared expert's own gate. `out` may be `residual`."""

    out: Buffer
    x: Buffer
    gate: Buffer
    residual: Buffer


@dataclass(frozen=True)
class HeadMatMul:
    """out[r, h] = x[r, h] @ weight[h].T for each of `n_heads` equal parts of a row; weight [n_heads, rows, columns]."""

    out: Buffer
    x: Buffer
    weight: str
    n_heads: int


@dataclass(frozen=True)
class ShortConv:
    """out[r, c] = activation(bias[c] + sum over t < width of weight[c, t] * x[r - width + 1 + t, c]): a causal
    convolution of each channel over the sequence, whose rows before the first are 0. weight is [channels, width] (or
    has further axes of length 1), `state` the last width - 1 rows of x."""

    out: Buffer
    x: Buffer
    weight: str
    width: int
    state: StateLayer
    bias: str | None = None
    activation: Activation | None = None


@dataclass(frozen=True)
class GatedDelta:
    """The gated delta rule. For each of `n_heads` heads h with its state S [k_dim, v_dim], row after row:
    S = decay S, then S += k ⊗ beta (v - k S), and out = scale q S.

    q and k are of length 1 (divided by their length, or by `eps` where that is longer), beta is the sigmoid of `beta`
    [n_heads] and decay = exp(rate[h] softplus(`decay` + decay_bias)), one for a head or, where `decay` is
    [n_heads * k_dim], one for each row of S. q, k, decay and beta are changed in place to this end. The heads' q, k and
    v begin at `starts` of their buffers, so that they may be parts of one. There are `n_k_heads` of q and k, for
    neighbouring heads the same one, or, where `is_tiled`, head h % n_k_heads. Source: Yang et al. 2024 (Gated Delta
    Networks); Kimi Team 2025 (Kimi Linear).
    """

    out: Buffer
    q: Buffer
    k: Buffer
    v: Buffer
    decay: Buffer
    beta: Buffer
    state: StateLayer
    rate: str
    decay_bias: str
    n_heads: int
    n_k_heads: int
    k_dim: int
    v_dim: int
    scale: float
    eps: float
    starts: tuple[int, int, int] = (0, 0, 0)
    is_tiled: bool = False


@dataclass(frozen=True)
class SelectiveScan:
    """Mamba 2. For each of `n_heads` heads h with its state S [state_dim, head_dim], row after row:
    S = exp(rate[h] dt) S + b ⊗ dt x, and out = c S + skip[h] x.

    dt = softplus(`dt` + dt_bias) [n_heads], changed in place. `x` holds x [n_heads * head_dim], then b and c, each
    [n_groups * state_dim]; neighbouring heads share a group. Source: Dao and Gu 2024.
    """

    out: Buffer
    x: Buffer
    dt: Buffer
    state: StateLayer
    rate: str
    dt_bias: str
    skip: str
    n_heads: int
    head_dim: int
    n_groups: int
    state_dim: int


@dataclass(frozen=True)
class Glu:
    """out = activation(gate) * up."""

    out: Buffer
    gate: Buffer
    up: Buffer
    activation: GateActivation


@dataclass(frozen=True)
class Activate:
    """out = activation(x)."""

    out: Buffer
    x: Buffer
    activation: Activation


@dataclass(frozen=True)
class SoftCap:
    """x = cap * tanh(x / cap), in place."""

    x: Buffer
    cap: float


Op = (
    Embed | RopeTable | RmsNorm | LayerNorm | HeadNorm | MatMul | Splice | Add | AddPosition | Temper | RotateStore
    | Attention | Route | Experts | Mix | MatchLength | Sparsify | AddGated | HeadMatMul | ShortConv | GatedDelta
    | SelectiveScan | Glu | Activate | SoftCap
)  # fmt: skip


@dataclass(frozen=True)
class Program:
    """A model's whole pass, or a stage of it (see `stages.py`). `logits` is the buffer a pass returns, one row a wanted
    output, None where another stage goes on. `inputs` hold values before the first op, `outputs` are read after the
    last.

    With `pooling` it is an embedding model's: what a pass returns are states after the last norm, of which those of all
    rows, the first or the last one stand for a text.
    """

    ops: tuple[Op, ...]
    buffers: tuple[Buffer, ...]
    layers: tuple[CacheLayer, ...]
    logits: Buffer | None
    n_vocab: int
    n_ctx_train: int
    states: tuple[StateLayer, ...] = ()
    inputs: tuple[Buffer, ...] = ()
    outputs: tuple[Buffer, ...] = ()
    pooling: Pooling | None = None

    def weights(self) -> tuple[str, ...]:
        """Names of all tensors the ops use, in order of first use."""
        names: dict[str, None] = {}
        for op in self.ops:
            for name in weights_of(op):
                names.setdefault(name)
        return tuple(names)


WEIGHT_FIELDS = frozenset(
    {"weight", "bias", "q_norm", "k_norm", "sinks", "rate", "decay_bias", "dt_bias", "skip", "expert_scales"}
)


def matrices_of(op: Op) -> tuple[str, ...]:
    """Those of `weights_of` that are matrices to be multiplied with or looked up in; the rest are read as vectors."""
    if isinstance(op, Experts):
        return tuple(name for name in (op.gate, op.up, op.down) if name is not None)
    return (op.weight,) if isinstance(op, MatMul | Embed | HeadMatMul) else ()


def weights_of(op: Op) -> tuple[str, ...]:
    """The tensors an op reads."""
    if isinstance(op, Experts):
        biases = (op.gate_bias, op.up_bias, op.down_bias)
        return (*matrices_of(op), *(name for name in biases if name is not None))
    values = (getattr(op, f.name) for f in fields(op) if f.name in WEIGHT_FIELDS)
    return tuple(v for v in values if v is not None)


def reads_of(op: Op) -> frozenset[str]:
    """Names of the buffers, "cache i" of the cache layer and "state i" of the state, that an op reads (those it changes
    in place included)."""
    names = {v.name for f in fields(op) if f.name != "out" and isinstance(v := getattr(op, f.name), Buffer)}
    if isinstance(op, Attention):
        names.add(f"cache {op.layer.index}")
    if isinstance(op, ShortConv | GatedDelta | SelectiveScan):
        names.add(f"state {op.state.index}")
    return frozenset(names)


def writes_of(op: Op) -> frozenset[str]:
    """Names of the buffers, "cache i" of the cache layer and "state i" of the state, that an op writes."""
    match op:
        case ShortConv():
            return frozenset({op.out.name, f"state {op.state.index}"})
        case GatedDelta():
            changed = {buffer.name for buffer in (op.out, op.q, op.k, op.decay, op.beta)}
            return frozenset({*changed, f"state {op.state.index}"})
        case SelectiveScan():
            return frozenset({op.out.name, op.dt.name, f"state {op.state.index}"})
        case RotateStore():
            if op.k is None:
                return frozenset({op.q.name})
            return frozenset({op.q.name, op.k.name, f"cache {op.layer.index}"})
        case SoftCap() | AddPosition() | Temper() | MatchLength() | Sparsify():
            return frozenset({op.x.name})
        case _:
            return frozenset({op.out.name})
