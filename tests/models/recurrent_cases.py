"""Programs of one recurrent op each, in all its forms, and a sequence read in chunks beside another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from one_op import OneOp, join_batches, make_batch, random
from phobos.gguf.quants import GGMLType
from phobos.kernels.backend import Backend
from phobos.program.steps import Buffer, GatedDelta, SelectiveScan, ShortConv, StateLayer

F32 = GGMLType.F32
N = 50


def make_conv(width: int, activation: bool, bias: bool) -> OneOp:
    x, out, state = Buffer("x", 64), Buffer("out", 64), StateLayer(0, (width - 1) * 64)
    op = ShortConv(out, x, "w", width, state, "b" if bias else None, "silu" if activation else None)
    weights = {"w": (F32, random(2, 64, width)), "b": (F32, random(3, 64))}
    return OneOp({"x": random(1, N, 64)}, (op,), out, weights if bias else {"w": weights["w"]}, (), (state,))


def make_delta(*, per_row: bool, tiled: bool, apart: bool) -> OneOp:
    n, n_k, dk, dv = 4, 2, 32, 64
    state = StateLayer(0, n * dk * dv)
    widths = {"q": n_k * dk, "k": n_k * dk, "v": n * dv}
    inputs = {name: random(i, N, width) for i, (name, width) in enumerate(widths.items())}
    inputs["q"][3], inputs["k"][4] = 0, 1e-9
    starts, buffers = (0, 0, 0), [Buffer(name, width) for name, width in widths.items()]
    if not apart:
        inputs = {"qkv": np.concatenate(list(inputs.values()), axis=1)}
        starts, buffers = (0, n_k * dk, 2 * n_k * dk), [Buffer("qkv", sum(widths.values()))] * 3
    decay_width = n * dk if per_row else n
    inputs |= {"decay": 6 * random(7, N, decay_width), "beta": 2 * random(8, N, n)}
    out = Buffer("out", n * dv)
    op = GatedDelta(
        out, *buffers, Buffer("decay", decay_width), Buffer("beta", n), state, "rate", "bias", n, n_k, dk, dv, 0.3,
        1e-6, starts, tiled,
    )  # fmt: skip
    weights = {"rate": (F32, -np.abs(random(9, n))), "bias": (F32, random(10, decay_width))}
    return OneOp(inputs, (op,), out, weights, (), (state,))


def make_scan(n_groups: int) -> OneOp:
    n, dim, state_dim = 4, 32, 16
    state = StateLayer(0, n * dim * state_dim)
    x, dt, out = Buffer("x", n * dim + 2 * n_groups * state_dim), Buffer("dt", n), Buffer("out", n * dim)
    op = SelectiveScan(out, x, dt, state, "rate", "bias", "skip", n, dim, n_groups, state_dim)
    weights = {
        "rate": (F32, -np.abs(random(3, n, 1))),
        "bias": (F32, random(4, n)),
        "skip": (F32, random(5, n, 1)),
    }
    return OneOp({"x": random(1, N, x.width), "dt": 6 * random(2, N, n)}, (op,), out, weights, (), (state,))


CASES: dict[str, Callable[[], OneOp]] = {
    "conv": lambda: make_conv(4, activation=True, bias=False),
    "conv-plain": lambda: make_conv(3, activation=False, bias=True),
    "delta": lambda: make_delta(per_row=False, tiled=False, apart=False),
    "delta-tiled": lambda: make_delta(per_row=False, tiled=True, apart=True),
    "delta-per-row": lambda: make_delta(per_row=True, tiled=False, apart=True),
    "scan": lambda: make_scan(1),
    "scan-groups": lambda: make_scan(2),
}


def read_in_chunks(backend: Backend, chunks: Sequence[int], slot: int) -> np.ndarray:
    """The rows of one sequence, in chunks, beside another sequence's."""
    found, first, other = [], 0, 0
    for i, n in enumerate(chunks):
        mine = make_batch(range(first, first + n), first, slot)
        if i % 2:
            theirs = make_batch([(7 * r) % N for r in range(other, other + 2)], other, 1 - slot)
            found += list(backend.run(join_batches(theirs, mine))[2:].copy())
            other += 2
        else:
            found += list(backend.run(mine).copy())
        first += n
    return np.array(found)
