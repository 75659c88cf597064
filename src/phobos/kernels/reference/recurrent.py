"""The recurrent ops in plain NumPy float32, row by row, as their docstrings in `program/steps.py` say them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from phobos.kernels.backend import FloatArray
from phobos.program.steps import Buffer, GatedDelta, SelectiveScan, ShortConv

Recurrent = ShortConv | GatedDelta | SelectiveScan
Get = Callable[[Buffer], FloatArray]


def softplus(x: FloatArray) -> FloatArray:
    """ln(1 + e^x)."""
    return np.asarray(np.logaddexp(np.float32(0), x), np.float32)


def sigmoid(x: FloatArray) -> FloatArray:
    """1 / (1 + e^-x), written so that nothing overflows."""
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1, small) / (1 + small), np.float32)


def run_recurrent(
    op: Recurrent, get: Get, weights: Mapping[str, FloatArray], states: Sequence[FloatArray]
) -> list[tuple[Buffer, FloatArray]]:
    """What an op writes, buffer by buffer. `states`: for each row the values kept of its slot, changed on the way."""
    match op:
        case ShortConv():
            return [(op.out, _short_conv(op, get(op.x), weights, states))]
        case GatedDelta():
            return _gated_delta(op, get, weights, states)
        case SelectiveScan():
            return _selective_scan(op, get, weights, states)


def _short_conv(
    op: ShortConv, x: FloatArray, weights: Mapping[str, FloatArray], states: Sequence[FloatArray]
) -> FloatArray:
    """Before the activation."""
    taps = weights[op.weight].reshape(-1, op.width).T
    out = np.empty_like(x)
    for row, state in enumerate(states):
        window = np.concatenate([state.reshape(op.width - 1, -1), x[row : row + 1]])
        state[:] = window[1:].ravel()
        out[row] = (window * taps).sum(axis=0, dtype=np.float32)
    return out if op.bias is None else out + weights[op.bias].ravel()


def _unit(x: FloatArray, eps: float) -> FloatArray:
    """Vectors of length 1 along the last axis; shorter ones than `eps` divided by it."""
    length = np.sqrt(np.square(x).sum(axis=-1, keepdims=True, dtype=np.float32))
    return np.asarray(x / np.maximum(length, np.float32(eps)))


def _gated_delta(
    op: GatedDelta, get: Get, weights: Mapping[str, FloatArray], states: Sequence[FloatArray]
) -> list[tuple[Buffer, FloatArray]]:
    n_rows, heads = len(states), np.arange(op.n_heads)
    sources = heads % op.n_k_heads if op.is_tiled else heads // (op.n_heads // op.n_k_heads)
    written: dict[Buffer, FloatArray] = {}

    def unit_heads(buffer: Buffer, start: int) -> FloatArray:
        rows = written.setdefault(buffer, get(buffer).copy())
        part = rows[:, start : start + op.n_k_heads * op.k_dim]
        part[:] = _unit(part.reshape(n_rows, op.n_k_heads, op.k_dim), op.eps).reshape(n_rows, -1)
        return part.reshape(n_rows, op.n_k_heads, op.k_dim)[:, sources]

    q, k = unit_heads(op.q, op.starts[0]), unit_heads(op.k, op.starts[1])
    v = get(op.v)[:, op.starts[2] : op.starts[2] + op.n_heads * op.v_dim].reshape(n_rows, op.n_heads, op.v_dim)
    raised = softplus(get(op.decay) + weights[op.decay_bias].ravel()).reshape(n_rows, op.n_heads, -1)
    decay = np.exp(raised * weights[op.rate].reshape(1, op.n_heads, 1))
    beta = sigmoid(get(op.beta))
    out = np.empty((n_rows, op.n_heads, op.v_dim), np.float32)
    for row, flat in enumerate(states):
        state = flat.reshape(op.n_heads, op.k_dim, op.v_dim)
        state *= decay[row, :, :, None]
        predicted = np.einsum("hk,hkv->hv", k[row], state)
        state += k[row, :, :, None] * (beta[row, :, None] * (v[row] - predicted))[:, None, :]
        out[row] = np.einsum("hk,hkv->hv", q[row] * np.float32(op.scale), state)
    written |= {op.out: out.reshape(n_rows, -1), op.decay: decay.reshape(n_rows, -1), op.beta: beta}
    return list(written.items())


def _selective_scan(
    op: SelectiveScan, get: Get, weights: Mapping[str, FloatArray], states: Sequence[FloatArray]
) -> list[tuple[Buffer, FloatArray]]:
    n_rows, width, part = len(states), op.n_heads * op.head_dim, op.n_groups * op.state_dim
    x = get(op.x)
    heads = x[:, :width].reshape(n_rows, op.n_heads, op.head_dim)
    b, c = (
        x[:, start : start + part].reshape(n_rows, op.n_groups, -1).repeat(op.n_heads // op.n_groups, axis=1)
        for start in (width, width + part)
    )
    dt = softplus(get(op.dt) + weights[op.dt_bias].ravel())
    decay = np.exp(dt * weights[op.rate].ravel())
    skip = weights[op.skip].reshape(-1, 1)
    out = np.empty((n_rows, op.n_heads, op.head_dim), np.float32)
    for row, flat in enumerate(states):
        state = flat.reshape(op.n_heads, op.state_dim, op.head_dim)
        state *= decay[row, :, None, None]
        state += b[row, :, :, None] * (dt[row, :, None] * heads[row])[:, None, :]
        out[row] = np.einsum("hs,hsd->hd", c[row], state) + skip * heads[row]
    return [(op.out, out.reshape(n_rows, -1)), (op.dt, dt)]
