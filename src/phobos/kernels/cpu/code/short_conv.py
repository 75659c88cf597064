"""The causal convolution of each channel over the sequence.

A work item is 16 channels; its thread takes all rows of the pass in order. The state of a slot is [width - 1][channels]
float32: the last inputs, oldest first. Weights lie transposed, [width][channels].
"""

from __future__ import annotations

from phobos.kernels.cpu.code.access import load_i32, load_i64, vload, vstore
from phobos.kernels.cpu.code.elementary import identity, silu
from phobos.kernels.cpu.code.simd import fma, inlined, zeros
from phobos.kernels.cpu.declaration import Int, Kernel, kernel
from phobos.kernels.cpu.layout import Header

_POSITIONS, _SLOTS = 8 * Header.POSITIONS, 8 * Header.SLOTS


@inlined
def count_same(slots, row, n_rows):
    """How many rows from `row` on belong to its slot."""
    n_same = 1
    while row + n_same < n_rows and load_i32(slots + 4 * (row + n_same)) == load_i32(slots + 4 * row):
        n_same += 1
    return n_same


@inlined
def _shift(state, x, stride, width, n_same):
    """Take up the last inputs; what is read of the state lies behind what is written."""
    for t in range(width - 1):
        source = t + n_same - (width - 1)
        kept = vload(x + stride * source) if source >= 0 else vload(state + stride * (t + n_same))
        vstore(state + stride * t, kept)


def _make_conv(name: str, activation) -> Kernel:
    def short_conv(
        out: Int, x: Int, weight: Int, bias: Int, states: Int, slot_bytes: Int, batch: Int, n_rows_at: Int,
        channels: Int, width: Int, thread, n_threads,
    ):  # fmt: skip
        n_rows = load_i64(n_rows_at)
        positions, slots = load_i64(batch + _POSITIONS), load_i64(batch + _SLOTS)
        stride, n_vectors = 4 * channels, channels // 16
        for i in range(n_vectors * thread // n_threads, n_vectors * (thread + 1) // n_threads):
            row = 0
            while row < n_rows:
                n_same = count_same(slots, row, n_rows)
                state = states + load_i32(slots + 4 * row) * slot_bytes + 64 * i
                if load_i32(positions + 4 * row) == 0:
                    for t in range(width - 1):
                        vstore(state + stride * t, zeros())
                first = x + stride * row + 64 * i
                for r in range(n_same):
                    total = zeros()
                    if bias != 0:
                        total = vload(bias + 64 * i)
                    for t in range(width):
                        source = r - (width - 1) + t
                        value = vload(first + stride * source) if source >= 0 else vload(state + stride * (r + t))
                        total = fma(vload(weight + stride * t + 64 * i), value, total)
                    vstore(out + stride * (row + r) + 64 * i, activation(total))
                _shift(state, first, stride, width, n_same)
                row += n_same

    short_conv.__name__ = f"short_conv_{name}"
    return kernel(short_conv)


short_conv_identity = _make_conv("identity", identity)
short_conv_silu = _make_conv("silu", silu)
