"""The program in plain NumPy float32: the executable meaning of every op, and the oracle of every kernel test.

Weights are dequantized by `gguf/quants.py`, the cache is float32, one function an op, and nothing is shared with the
other backends. Where they approximate (quantized activations, halves in the cache, polynomials for exponentials), the
difference is theirs. Slow, and float32 weights take four bytes a value: for tests and for doubt.

One promise of `Backend` is not kept: NumPy's products sum in an order that depends on the shape of the batch, so a row
is reproducible to a few units of the last place, not bit by bit.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import assert_never

import numpy as np

from phobos.counters import CardInfo, LoadProgress
from phobos.gguf.quants import TABLE
from phobos.gguf.reader import GGUF
from phobos.kernels.backend import STATE_COPIES, BackendLimits, Batch, FloatArray, IntArray, Progress, find_best
from phobos.kernels.reference.recurrent import run_recurrent, sigmoid
from phobos.kernels.states import Standing, check_batch
from phobos.program.steps import (
    Activate,
    Add,
    AddGated,
    AddPosition,
    Attention,
    Buffer,
    Embed,
    Experts,
    GateActivation,
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
    Temper,
)

# NumPy has no error function.
_ERF: Callable[[FloatArray], FloatArray] = np.vectorize(math.erf, otypes=[np.float32])


def silu(x: FloatArray) -> FloatArray:
    """x / (1 + e^-x), written so that nothing overflows."""
    small = np.exp(-np.abs(x))
    return np.asarray(x * np.where(x >= 0, 1, small) / (1 + small))


def gelu_tanh(x: FloatArray) -> FloatArray:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3)
    return np.asarray(x * np.float32(0.5) * (1 + np.tanh(inner)))


def gelu(x: FloatArray) -> FloatArray:
    """x times the normal distribution function of x."""
    return x * np.float32(0.5) * (1 + _ERF(x * np.float32(math.sqrt(0.5))))


def relu(x: FloatArray) -> FloatArray:
    """max(x, 0)."""
    return np.maximum(x, 0)


def relu_squared(x: FloatArray) -> FloatArray:
    """max(x, 0)^2."""
    return np.square(np.maximum(x, 0))


GATES: Mapping[GateActivation, Callable[[FloatArray], FloatArray]] = {
    "silu": silu,
    "gelu_tanh": gelu_tanh,
    "gelu": gelu,
    "relu": relu,
    "relu_squared": relu_squared,
    "sigmoid": sigmoid,
    "identity": lambda x: x,
}


def rms_norm(x: FloatArray, weight: FloatArray, eps: float) -> FloatArray:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    mean: FloatArray = np.mean(np.square(x), axis=-1, keepdims=True, dtype=np.float32)
    return np.asarray(x / np.sqrt(mean + np.float32(eps)) * weight, np.float32)


def layer_norm(x: FloatArray, weight: FloatArray, eps: float) -> FloatArray:
    """(x - mean(x)) / sqrt(variance(x) + eps) * weight over the last axis."""
    return rms_norm(x - np.mean(x, axis=-1, keepdims=True, dtype=np.float32), weight, eps)


def rotate(heads: FloatArray, table: FloatArray, style: str) -> FloatArray:
    """Rotate `heads` [n_rows, n_heads, dim] over their first `table.shape[1]` dimensions; `table` is [n_rows, n_rot]:
    cosines, then sines."""
    n_rot = table.shape[1]
    cosine, sine = (part[:, None, :] for part in np.split(table, 2, axis=1))
    out = heads.copy()
    half = n_rot // 2
    first, second = (slice(0, n_rot, 2), slice(1, n_rot, 2)) if style == "normal" else (slice(half), slice(half, n_rot))
    a, b = heads[..., first], heads[..., second]
    out[..., first] = a * cosine - b * sine
    out[..., second] = a * sine + b * cosine
    return out


def route(
    logits: FloatArray, op: Route, bias: FloatArray | None, expert_scales: FloatArray | None = None
) -> FloatArray:
    """Experts and weights of each row; see `Route`."""
    n = logits.shape[1]
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    match op.gating:
        case "softmax":
            p = shifted / shifted.sum(axis=1, keepdims=True)
        case "sigmoid":
            p = 1 / (1 + np.exp(-logits))
        case "chosen":
            p = logits
    choice = p if bias is None else p + bias
    if op.n_groups > 1:
        groups = choice.reshape(-1, op.n_groups, n // op.n_groups)
        scores = np.sort(groups, axis=2)[..., -2:].sum(axis=2)
        kept = np.argsort(-scores, axis=1, kind="stable")[:, : op.n_groups_used]
        allowed = (np.arange(op.n_groups)[None, :, None] == kept[:, None, :]).any(axis=2)
        choice = np.where(np.repeat(allowed, n // op.n_groups, axis=1), choice, -np.inf)
    chosen = np.argsort(-choice, axis=1, kind="stable")[:, : op.n_used]
    weights = np.take_along_axis(p, chosen, axis=1)
    if op.gating == "chosen":
        weights = np.exp(weights - weights.max(axis=1, keepdims=True))
    if op.is_normalized or op.gating == "chosen":
        weights = weights / np.maximum(weights.sum(axis=1, keepdims=True), 2.0**-14)
    if expert_scales is not None:
        weights = weights * expert_scales[chosen]
    return np.concatenate([chosen, weights * op.scale], axis=1).astype(np.float32)


class ReferenceBackend:
    """A loaded program. Owns the dequantized weights and the float32 cache of all slots."""

    def __init__(self, program: Program, gguf: GGUF, limits: BackendLimits, progress: Progress) -> None:
        self.bytes_read: int | None = None
        self.limits = replace(limits, can_cut=not program.states, fork_block=0 if program.states else 1)
        self.widened: tuple[str, ...] = ()
        self._program = program
        self._weights: dict[str, FloatArray] = {}
        names = program.weights()
        for i, name in enumerate(names):
            progress(LoadProgress("packing weights", i / len(names), name))
            info = gguf.tensors[name]
            self._weights[name] = TABLE[info.type].dequantize(gguf.data(name)).reshape(info.shape)
        # [slot][layer]: keys and values [n_ctx, n_kv_heads, dim]
        self._keys = [
            [np.zeros((limits.n_ctx, x.n_kv_heads, x.k_dim), np.float32) for x in program.layers]
            for _ in range(limits.n_slots)
        ]
        self._values = [
            [np.zeros((limits.n_ctx, x.n_kv_heads, x.v_dim), np.float32) for x in program.layers]
            for _ in range(limits.n_slots)
        ]
        self._states = [[np.zeros(x.n_values, np.float32) for x in program.states] for _ in range(limits.n_slots)]
        self._standing = Standing(limits.n_slots)
        self._buffers: dict[str, FloatArray] = {}
        progress(LoadProgress("ready", 1.0))

    # Running

    def run(self, batch: Batch) -> FloatArray:
        """One pass; see `Backend.run`. `ValueError` for a batch that does not fit."""
        check_batch(batch, self.limits, self._program.n_vocab)
        if not self.limits.can_cut:
            self._standing.advance(batch)
            for slot in batch.slots[batch.positions == 0]:
                for state in self._states[slot]:
                    state[:] = 0
        self._buffers = {}
        with np.errstate(all="ignore"):  # weights that are not finite give logits that are not, and no warnings
            for op in self._program.ops:
                self.run_op(op, batch)
        assert self._program.logits is not None, "this backend runs whole programs"
        return self._buffers[self._program.logits.name]

    def choose(self, batch: Batch, n_vocab: int) -> IntArray:
        """See `Backend.choose`."""
        return find_best(self.run(batch)[:, :n_vocab])

    def run_op(self, op: Op, batch: Batch) -> None:
        """One op of a pass."""
        match op:
            case Embed():
                self._put(op.out, self._weights[op.weight][batch.tokens] * np.float32(op.scale))
            case RopeTable():
                angles = batch.positions[:, None].astype(np.float64) * np.array(op.frequencies, np.float64)
                turned = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
                self._put(op.out, turned.astype(np.float32) * np.float32(op.magnitude))
            case LayerNorm():
                x = self._wanted(op.x, op.out, batch)
                normed = layer_norm(x, self._weights[op.weight], op.eps)
                self._put(op.out, normed if op.bias is None else normed + self._weights[op.bias])
            case HeadNorm():
                heads = self.get(op.x).reshape(-1, op.n_heads, op.x.width // op.n_heads)
                weight = np.ones(1, np.float32) if op.weight is None else self._weights[op.weight]
                weight = weight.reshape(op.n_heads, -1) if op.has_own_weights else weight
                self._put(op.out, rms_norm(heads, weight, op.eps).reshape(len(heads), -1))
            case Splice() | Add() | AddPosition() | Temper():
                self._rearrange(op, batch)
            case RmsNorm():
                x = self._wanted(op.x, op.out, batch)
                normed = rms_norm(x, self._weights[op.weight], op.eps)
                self._put(op.out, normed if op.residual is None else self.get(op.residual) + normed)
            case MatMul():
                self._matmul(op)
            case RotateStore():
                self._rotate_store(op, batch)
            case Attention():
                self._attention(op, batch)
            case Route() | Experts() | AddGated() | HeadMatMul():
                self._mixture(op)
            case Mix() | MatchLength() | Sparsify():
                self._streams(op)
            case ShortConv() | GatedDelta() | SelectiveScan():
                states = [self._states[slot][op.state.index] for slot in batch.slots]
                for buffer, rows in run_recurrent(op, self.get, self._weights, states):
                    self._put(buffer, rows)
                if isinstance(op, ShortConv) and op.activation is not None:
                    self._put(op.out, GATES[op.activation](self.get(op.out)))
            case Glu():
                self._put(op.out, GATES[op.activation](self.get(op.gate)) * self.get(op.up))
            case Activate():
                self._put(op.out, GATES[op.activation](self.get(op.x)))
            case SoftCap():
                cap = np.float32(op.cap)
                self._put(op.x, cap * np.tanh(self.get(op.x) / cap))
            case _:
                assert_never(op)

    def get(self, buffer: Buffer) -> FloatArray:
        """A buffer's rows [n_rows, width]."""
        return self._buffers[buffer.name]

    def _wanted(self, x: Buffer, out: Buffer, batch: Batch) -> FloatArray:
        """The rows of `x` that `out` has rows for."""
        return self.get(x)[batch.outputs] if out.per_output and not x.per_output else self.get(x)

    def _put(self, buffer: Buffer, rows: FloatArray) -> None:
        assert rows.shape[1] == buffer.width, f"{buffer.name}: {rows.shape}"
        self._buffers[buffer.name] = rows.astype(np.float32, copy=False)

    def put(self, buffer: Buffer, rows: FloatArray) -> None:
        """Set a buffer's rows, as tests of single ops do."""
        self._put(buffer, rows)

    def _matmul(self, op: MatMul) -> None:
        rows = slice(op.first_row, op.first_row + op.out.width)
        out = self.get(op.x) @ np.atleast_2d(self._weights[op.weight])[rows].T
        if op.bias is not None:
            out = out + self._weights[op.bias][rows]
        out = out * np.float32(op.scale)
        self._put(op.out, out if op.residual is None else self.get(op.residual) + out)

    def _mixture(self, op: Route | Experts | AddGated | HeadMatMul) -> None:
        match op:
            case Route():
                bias, scales = (None if name is None else self._weights[name] for name in (op.bias, op.expert_scales))
                self._put(op.out, route(self.get(op.logits), op, bias, scales))
            case Experts():
                self._put(op.out, self._experts(op))
            case AddGated():
                sigmoid = np.asarray(1 / (1 + np.exp(-self.get(op.gate))), np.float32)
                self._put(op.out, self.get(op.residual) + sigmoid * self.get(op.x))
            case HeadMatMul():
                x = self.get(op.x).reshape(-1, op.n_heads, op.x.width // op.n_heads)
                out = np.einsum("rhi,hoi->rho", x, self._weights[op.weight])
                self._put(op.out, out.reshape(len(x), -1))

    def _experts(self, op: Experts) -> FloatArray:
        """Pair by pair: a row with one of its experts."""
        rows, routes = self.get(op.x), self.get(op.route)
        out = np.zeros((len(rows), op.out.width), np.float32)
        n_used = routes.shape[1] // 2

        def project(name: str, bias: str | None, e: int, x: FloatArray) -> FloatArray:
            product = self._weights[name][e] @ x
            return np.asarray(product if bias is None else product + self._weights[bias][e])

        for row, x in enumerate(rows):
            for number, weight in zip(routes[row, :n_used], routes[row, n_used:], strict=True):
                e = int(number)
                up = project(op.up, op.up_bias, e, x)
                gate, up = np.split(up, 2) if op.gate is None else (project(op.gate, op.gate_bias, e, x), up)
                if op.activation == "swiglu_oai":
                    gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
                    hidden = gate / (1 + np.exp(np.float32(-1.702) * gate)) * (up + 1)
                else:
                    hidden = GATES[op.activation](gate) * up
                out[row] += weight * project(op.down, op.down_bias, e, hidden)
        return out if op.residual is None else self.get(op.residual) + out

    def _streams(self, op: Mix | MatchLength | Sparsify) -> None:
        x = self.get(op.x)
        match op:
            case Mix():
                factors = np.full((len(x), op.n_out, op.n_in), op.offset, np.float32)
                if op.coefficients is not None:
                    factors += self.get(op.coefficients).reshape(factors.shape)
                mixed = np.einsum("rjk,rkd->rjd", factors, x.reshape(len(x), op.n_in, -1)).reshape(len(x), -1)
                skipped = op.out.width - mixed.shape[1]
                rest = self._buffers.get(op.out.name, np.zeros((len(x), op.out.width), np.float32))[:, :skipped]
                if op.residual is not None:
                    mixed = mixed + self.get(op.residual)[:, skipped:]
                self._put(op.out, np.concatenate([rest, mixed], axis=1))
            case MatchLength():
                heads = x.reshape(len(x), op.n_heads, -1)
                wanted = np.linalg.norm(self.get(op.target), axis=-1)[:, None, None]
                length = np.maximum(np.linalg.norm(heads, axis=-1, keepdims=True), np.float32(1e-30))
                self._put(op.x, (heads * (wanted / length)).reshape(len(x), -1))
            case Sparsify():
                cutoff = x.mean(axis=1, keepdims=True) + op.multiplier * x.std(axis=1, ddof=1, keepdims=True)
                self._put(op.x, np.maximum(x - cutoff, 0))

    def _rearrange(self, op: Splice | Add | AddPosition | Temper, batch: Batch) -> None:
        match op:
            case Splice():
                x = self.get(op.x)
                out = self._buffers.setdefault(op.out.name, np.zeros((len(x), op.out.width), np.float32)).copy()
                for head in range(op.n_heads):
                    source, target = head * op.x_stride + op.x_start, head * op.out_stride + op.out_start
                    out[:, target : target + op.width] = x[:, source : source + op.width]
                self._put(op.out, out)
            case Add():
                total = self.get(op.x) if op.residual is None else self.get(op.x) + self.get(op.residual)
                factor = op.scale if op.weight is None else op.scale * self._weights[op.weight].ravel()
                self._put(op.out, total * np.float32(factor))
            case AddPosition():
                self._put(op.x, self.get(op.x) + self._weights[op.weight][batch.positions])
            case Temper():
                sharpened = 1 + op.slope * np.log1p(np.floor(batch.positions / op.span))
                self._put(op.x, self.get(op.x) * sharpened[:, None].astype(np.float32))

    def _rotate_store(self, op: RotateStore, batch: Batch) -> None:
        layer = op.layer
        q = self.get(op.q).reshape(-1, op.n_heads, layer.k_dim)
        if op.k is None or op.v is None:
            q = q if op.q_norm is None else rms_norm(q, self._weights[op.q_norm], op.eps)
            q = q if op.table is None else rotate(q, self.get(op.table), op.style)
            self._put(op.q, q.reshape(len(q), -1))
            return
        k = self.get(op.k).reshape(-1, layer.n_kv_heads, layer.k_dim)
        v = self.get(op.v).reshape(-1, layer.n_kv_heads, layer.v_dim)
        if op.q_norm is not None:
            q = rms_norm(q, self._weights[op.q_norm], op.eps)
        if op.k_norm is not None:
            k = rms_norm(k, self._weights[op.k_norm], op.eps)
        if op.table is not None:
            table = self.get(op.table)
            q, k = rotate(q, table, op.style), rotate(k, table, op.style)
        self._put(op.q, q.reshape(len(q), -1))
        self._put(op.k, k.reshape(len(k), -1))
        places = batch.positions if batch.places is None else batch.places
        for row, (slot, place) in enumerate(zip(batch.slots, places, strict=True)):
            self._keys[slot][layer.index][place] = k[row]
            self._values[slot][layer.index][place] = v[row]

    def _attention(self, op: Attention, batch: Batch) -> None:
        """Row by row, so that it is plain which keys a row sees."""
        layer = op.layer
        n_rows = len(batch.positions)
        group = op.n_heads // layer.n_kv_heads
        queries = self.get(op.q).reshape(n_rows, layer.n_kv_heads, group, layer.k_dim)
        out = np.empty((n_rows, layer.n_kv_heads, group, layer.v_dim), np.float32)
        for row, (slot, position) in enumerate(zip(batch.slots, batch.positions, strict=True)):
            first = max(0, int(position) - layer.window + 1) if layer.window > 0 else 0
            places = np.arange(first, position + 1)
            if batch.places is not None and batch.shared is not None:
                places[places >= batch.shared[row]] += batch.places[row] - position
            keys = self._keys[slot][layer.index][places].transpose(1, 2, 0)  # [kv head, dim, position]
            values = self._values[slot][layer.index][places].transpose(1, 0, 2)
            scores = queries[row] @ keys * np.float32(op.scale)
            if op.soft_cap > 0:
                cap = np.float32(op.soft_cap)
                scores = cap * np.tanh(scores / cap)
            if op.sinks is not None:
                sinks = self._weights[op.sinks].reshape(layer.n_kv_heads, group, 1)
                scores = np.concatenate([scores, sinks], axis=-1)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            out[row] = weights[..., : values.shape[1]] @ values / weights.sum(axis=-1, keepdims=True)
        self._put(op.out, out.reshape(n_rows, -1))

    # Slots

    def copy_within(self, slot: int, source: int, target: int, n_rows: int) -> None:
        """See `Backend.copy_within`."""
        for layer in (*self._keys[slot], *self._values[slot]):
            layer[target : target + n_rows] = layer[source : source + n_rows].copy()

    def copy_rows(self, source: int, target: int, n_rows: int) -> None:
        """See `Backend.copy_rows`."""
        for cache in (self._keys, self._values):
            for from_layer, to_layer in zip(cache[source], cache[target], strict=True):
                to_layer[:n_rows] = from_layer[:n_rows]
        stands = self._standing.at(source) == n_rows
        for from_state, to_state in zip(self._states[source], self._states[target], strict=True):
            to_state[:] = from_state
        self._standing.set(target, n_rows if stands else None)

    def save_state(self, slot: int) -> bytes:
        """See `Backend.save_state`."""
        return b"".join(state.tobytes() for state in self._states[slot])

    def restore_state(self, slot: int, n_rows: int, data: bytes) -> None:
        """See `Backend.restore_state`."""
        _fill(self._states[slot], data, f"the state of a slot at {n_rows} positions")
        self._standing.set(slot, n_rows)

    def save(self, slot: int, n_rows: int) -> bytes:
        """See `Backend.save`."""
        if not self.limits.can_cut:
            self._standing.require(slot, n_rows)
        rows = b"".join(x[:n_rows].tobytes() for cache in (self._keys, self._values) for x in cache[slot])
        return rows + self.save_state(slot)

    def restore(self, slot: int, n_rows: int, data: bytes, n_saved: int) -> None:
        """See `Backend.restore`."""
        rows = [x for cache in (self._keys, self._values) for x in cache[slot]]
        saved = [np.empty((n_saved, *x.shape[1:]), np.float32) for x in rows]
        states = [np.empty_like(state) for state in self._states[slot]]
        if not 0 <= n_rows <= n_saved:
            raise ValueError(f"{n_rows} positions are not among {n_saved}")
        _fill([*saved, *states], data, f"the state of {n_saved} positions")
        for x, values in zip(rows, saved, strict=True):
            x[:n_rows] = values[:n_rows]
        for state, kept in zip(self._states[slot], states, strict=True):
            state[:] = kept
        self._standing.set(slot, n_rows)

    def release(self, slot: int, keep: int = 0) -> None:
        """See `Backend.release`."""
        for cache in (self._keys, self._values):
            for layer in cache[slot]:
                layer[keep:] = 0
        if keep == 0:
            self._standing.set(slot, 0)

    def slot_bytes(self, n_rows: int) -> int:
        """See `Backend.slot_bytes`."""
        rows = sum(int(x[0].nbytes) for cache in (self._keys, self._values) for x in cache[0])
        return n_rows * rows + (STATE_COPIES * sum(state.nbytes for state in self._states[0]) if n_rows else 0)

    def describe(self) -> CardInfo:
        """See `Backend.describe`."""
        return CardInfo("NumPy", "cpu", "float32 reference", 1)

    def memory(self) -> dict[str, int]:
        """See `Backend.memory`."""
        caches = (x for cache in (self._keys, self._values, self._states) for slot in cache for x in slot)
        return {
            "weights": sum(weight.nbytes for weight in self._weights.values()),
            "cache": sum(x.nbytes for x in caches),
            "scratch": sum(rows.nbytes for rows in self._buffers.values()),
        }

    def close(self) -> None:
        """See `Backend.close`."""
        self._weights, self._buffers = {}, {}
        self._keys, self._values, self._states = [], [], []


def _fill(parts: list[FloatArray], data: bytes, what: str) -> None:
    """Take arrays out of bytes, in order; `ValueError` where they are not as many."""
    if len(data) != sum(part.nbytes for part in parts):
        raise ValueError(f"{len(data)} bytes are not {what}")
    stream = io.BytesIO(data)
    for part in parts:
        part[:] = np.frombuffer(stream.read(part.nbytes), np.float32).reshape(part.shape)
