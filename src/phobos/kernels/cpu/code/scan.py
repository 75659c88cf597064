"""The selective scan of Mamba 2.

A work item is 16 columns of one head's state, [state_dim][16] float32, as in `delta.py`. The state of a slot is
[n_heads][head_dim / 16][state_dim][16].
"""

from __future__ import annotations

from phobos.kernels.cpu.code.access import load_f32, load_i32, load_i64, vload, vstore
from phobos.kernels.cpu.code.elementary import exponential, softplus
from phobos.kernels.cpu.code.short_conv import count_same
from phobos.kernels.cpu.code.simd import F32, fma, inlined, make_tile, splat, zeros
from phobos.kernels.cpu.declaration import Int, kernel
from phobos.kernels.cpu.layout import Header

_CHAINS = 8
_POSITIONS, _SLOTS = 8 * Header.POSITIONS, 8 * Header.SLOTS
new_sums, get_sum, put_sum = make_tile(F32, _CHAINS)


@kernel
def scan_prepare(dt: Int, bias: Int, n_rows_at: Int, n_heads: Int, thread, n_threads):
    """dt = softplus(dt + bias), in place."""
    n_vectors = (n_heads + 15) // 16
    total = load_i64(n_rows_at) * n_vectors
    for i in range(total * thread // n_threads, total * (thread + 1) // n_threads):
        vstore(dt + 64 * i, softplus(vload(dt + 64 * i) + vload(bias + 64 * (i % n_vectors))))


@inlined
def _step(state, b, c, state_dim, decay, x):
    """One row: the state decayed, b times `x` added, and the sum of its rows weighted by c."""
    sums = new_sums()
    for n in range(_CHAINS):
        put_sum(sums, n, zeros())
    for i in range(0, state_dim, _CHAINS):
        for n in range(_CHAINS):
            at = state + 64 * (i + n)
            value = fma(splat(load_f32(b + 4 * (i + n))), x, vload(at) * decay)
            put_sum(sums, n, fma(splat(load_f32(c + 4 * (i + n))), value, get_sum(sums, n)))
            vstore(at, value)
    low = (get_sum(sums, 0) + get_sum(sums, 1)) + (get_sum(sums, 2) + get_sum(sums, 3))
    return low + ((get_sum(sums, 4) + get_sum(sums, 5)) + (get_sum(sums, 6) + get_sum(sums, 7)))


@kernel
def selective_scan(
    out: Int, x: Int, dt: Int, rate: Int, skip: Int, states: Int, slot_bytes: Int, batch: Int, n_rows_at: Int,
    n_heads: Int, head_dim: Int, n_groups: Int, state_dim: Int, thread, n_threads,
):  # fmt: skip
    """All rows, in order, for this thread's columns."""
    n_rows = load_i64(n_rows_at)
    positions, slots = load_i64(batch + _POSITIONS), load_i64(batch + _SLOTS)
    width, group_width = n_heads * head_dim, n_groups * state_dim
    x_stride, dt_stride = 4 * (width + 2 * group_width), (4 * n_heads + 63) // 64 * 64
    n_parts = head_dim // 16
    n_items = n_heads * n_parts
    for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
        head = item // n_parts
        group = head // (n_heads // n_groups)
        row = 0
        while row < n_rows:
            n_same = count_same(slots, row, n_rows)
            state = states + load_i32(slots + 4 * row) * slot_bytes + 64 * state_dim * item
            if load_i32(positions + 4 * row) == 0:
                for i in range(state_dim):
                    vstore(state + 64 * i, zeros())
            for r in range(row, row + n_same):
                value = vload(x + x_stride * r + 64 * item)
                step = splat(load_f32(dt + dt_stride * r + 4 * head))
                decay = exponential(step * splat(load_f32(rate + 4 * head)))
                b = x + x_stride * r + 4 * (width + state_dim * group)
                total = _step(state, b, b + 4 * group_width, state_dim, decay, step * value)
                vstore(out + 4 * width * r + 64 * item, fma(splat(load_f32(skip + 4 * head)), value, total))
            row += n_same
