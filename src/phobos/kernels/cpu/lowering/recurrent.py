"""Lowers recurrent ops to the kernels of `short_conv.py`, `delta.py` and `scan.py`."""

from __future__ import annotations

from phobos.kernels.cpu.layout import float_stride
from phobos.kernels.cpu.lowering.launches import LaunchBuilder
from phobos.kernels.cpu.names import delta, made, scan, short_conv
from phobos.program.steps import GatedDelta, SelectiveScan, ShortConv, reads_of, writes_of


def lower_short_conv(low: LaunchBuilder, op: ShortConv) -> None:
    """One launch."""
    arguments = (
        low.at(op.out), low.at(op.x), low.weight_at(op.weight), low.weight_at(op.bias), low.state_at(op.state),
        low.states.slot_bytes, low.header, low.count_at(op.out), op.x.width, op.width,
    )  # fmt: skip
    kernel = made(short_conv, "short_conv", op.activation or "identity")
    low.emit(kernel, arguments, op, reads=reads_of(op), writes=writes_of(op))


def lower_gated_delta(low: LaunchBuilder, op: GatedDelta) -> None:
    """What has no order among rows first, then the rows in order."""
    q, k, v = (low.at(x) + 4 * start for x, start in zip((op.q, op.k, op.v), op.starts, strict=True))
    q_stride, k_stride, v_stride = (float_stride(x.width) for x in (op.q, op.k, op.v))
    decay_dim = op.decay.width // op.n_heads
    state = f"state {op.state.index}"
    arguments: tuple[int | float, ...] = (
        q, k, q_stride, k_stride, low.at(op.decay), low.at(op.beta), low.weight_at(op.rate),
        low.weight_at(op.decay_bias), low.count_at(op.out), op.n_heads, op.n_k_heads, op.k_dim, decay_dim,
        float(op.scale), float(op.eps),
    )  # fmt: skip
    ready = frozenset({op.q.name, op.k.name, op.decay.name, op.beta.name})
    low.emit(delta.delta_prepare, arguments, op, reads=ready, writes=ready)
    arguments = (
        low.at(op.out), q, k, v, q_stride, k_stride, v_stride, low.at(op.decay), low.at(op.beta),
        low.state_at(op.state), low.states.slot_bytes, low.header, low.count_at(op.out), op.n_heads, op.n_k_heads,
        op.k_dim, op.v_dim, decay_dim, int(op.is_tiled),
    )  # fmt: skip
    reads = ready | {op.v.name, state}
    low.emit(delta.delta_scan, arguments, op, reads=reads, writes=frozenset({op.out.name, state}))


def lower_selective_scan(low: LaunchBuilder, op: SelectiveScan) -> None:
    """What has no order among rows first, then the rows in order."""
    state, dt = f"state {op.state.index}", frozenset({op.dt.name})
    arguments: tuple[int | float, ...] = (low.at(op.dt), low.weight_at(op.dt_bias), low.count_at(op.dt), op.n_heads)
    low.emit(scan.scan_prepare, arguments, op, reads=dt, writes=dt)
    arguments = (
        low.at(op.out), low.at(op.x), low.at(op.dt), low.weight_at(op.rate), low.weight_at(op.skip),
        low.state_at(op.state), low.states.slot_bytes, low.header, low.count_at(op.out), op.n_heads, op.head_dim,
        op.n_groups, op.state_dim,
    )  # fmt: skip
    reads, writes = dt | {op.x.name, state}, frozenset({op.out.name, state})
    low.emit(scan.selective_scan, arguments, op, reads=reads, writes=writes)
