"""Lowers recurrent ops, and those on several streams, to the kernels of `short_conv.py`, `delta.py`, `scan.py` and
`streams.py`."""

from __future__ import annotations

from phobos.errors import UnsupportedModelError
from phobos.kernels.cuda.layout import NORM_THREADS, THREADS, WARP
from phobos.kernels.cuda.lowering.launches import LaunchBuilder
from phobos.kernels.cuda.names import delta, made, scan, short_conv, streams
from phobos.program.steps import GatedDelta, MatchLength, Mix, Op, SelectiveScan, ShortConv, Sparsify

MAX_STATE_ROWS = 256  # as `scan.MAX_ROWS`


def check_recurrent(op: Op) -> None:
    """`UnsupportedModelError` for states that do not fit a block's shared memory."""
    n_rows = op.k_dim if isinstance(op, GatedDelta) else op.state_dim if isinstance(op, SelectiveScan) else 0
    if n_rows > MAX_STATE_ROWS:
        raise UnsupportedModelError(f"states of {n_rows} rows do not run on a card: use --device cpu")


def lower_short_conv(low: LaunchBuilder, op: ShortConv) -> None:
    """The rows, then what the state keeps of them."""
    state = (low.state_at(op.state), low.states.slot_bytes, low.positions, low.slots, low.count_at(op.out))
    sizes = (op.x.width, op.width)
    grid = (-(-op.x.width // THREADS), low.rows_of(op.out), 1)
    arguments = (low.at(op.out), low.at(op.x), low.vector(op.weight), low.vector(op.bias), *state, *sizes)
    low.emit(made(short_conv, "short_conv", op.activation or "identity"), arguments, op, grid)
    low.emit(short_conv.keep_inputs, (low.at(op.x), *state, *sizes), op, grid)


def lower_gated_delta(low: LaunchBuilder, op: GatedDelta) -> None:
    """What has no order among rows first, then the rows in order."""
    q, k, v = (low.at(x) + 4 * start for x, start in zip((op.q, op.k, op.v), op.starts, strict=True))
    strides = [4 * x.width for x in (op.q, op.k, op.v)]
    count, n_rows, decay_dim = low.count_at(op.out), low.rows_of(op.out), op.decay.width // op.n_heads
    unit = (q, k, *strides[:2], count, op.k_dim, float(op.scale), float(op.eps))
    low.emit(delta.delta_unit, unit, op, (op.n_k_heads, n_rows, 1), n_threads=WARP)
    gates = (
        low.at(op.decay), low.at(op.beta), low.vector(op.rate), low.vector(op.decay_bias), count, op.n_heads, decay_dim,
    )  # fmt: skip
    low.emit(delta.delta_gates, gates, op, (-(-(op.decay.width + op.n_heads) // THREADS), n_rows, 1))
    arguments = (
        low.at(op.out), q, k, v, *strides, low.at(op.decay), low.at(op.beta), low.state_at(op.state),
        low.states.slot_bytes, low.positions, low.slots, count, op.n_heads, op.n_k_heads, op.k_dim, op.v_dim,
        decay_dim, int(op.is_tiled),
    )  # fmt: skip
    low.emit(delta.delta_scan, arguments, op, (op.n_heads * -(-op.v_dim // WARP), n_rows, 1))


def lower_selective_scan(low: LaunchBuilder, op: SelectiveScan) -> None:
    """What has no order among rows first, then the rows in order."""
    count, n_rows = low.count_at(op.out), low.rows_of(op.out)
    prepare = (low.at(op.dt), low.vector(op.dt_bias), count, op.n_heads)
    low.emit(scan.scan_prepare, prepare, op, (-(-op.n_heads // THREADS), n_rows, 1))
    arguments = (
        low.at(op.out), low.at(op.x), low.at(op.dt), low.vector(op.rate), low.vector(op.skip), low.state_at(op.state),
        low.states.slot_bytes, low.positions, low.slots, count, op.n_heads, op.head_dim, op.n_groups, op.state_dim,
    )  # fmt: skip
    low.emit(scan.selective_scan, arguments, op, (op.n_heads * -(-op.head_dim // WARP), n_rows, 1))


def lower_streams(low: LaunchBuilder, op: Mix | MatchLength | Sparsify) -> None:
    """One launch."""
    match op:
        case Mix():
            width = op.x.width // op.n_in
            arguments = (
                low.at(op.out), low.at(op.x), low.at(op.coefficients), low.at(op.residual), low.count_at(op.out), width,
                op.n_out, op.n_in, op.skipped, float(op.offset),
            )  # fmt: skip
            low.emit(streams.mix, arguments, op, (-(-op.n_out * width // THREADS), low.rows_of(op.out), 1))
        case MatchLength():
            dim = op.x.width // op.n_heads
            lengths = (low.at(op.x), low.at(op.target), low.count_at(op.x), op.n_heads, dim)
            grid = (-(-op.n_heads // (THREADS // WARP)), low.rows_of(op.x), 1)
            low.emit(streams.match_length, lengths, op, grid)
        case Sparsify():
            cut = (low.at(op.x), low.count_at(op.x), op.x.width, float(op.multiplier))
            low.emit(streams.sparsify, cut, op, (low.rows_of(op.x), 1, 1), n_threads=NORM_THREADS)
