"""The gated delta rule.

`delta_prepare` makes queries, keys, decays and the strengths of updates ready, a head of a row at a time. In
`delta_scan` a work item is 32 columns of one head's state, [k_dim][32] float32, which stay in the first cache while its
thread takes all rows of the pass in order; lanes are columns, so no sum runs across lanes and how columns are shared
out leaves no trace. The state of a slot is [n_heads][v_dim / 32][k_dim][32].
"""

from __future__ import annotations

import numpy as np

from phobos.kernels.cpu.code.access import load_f32, load_i32, load_i64, vload, vstore
from phobos.kernels.cpu.code.elementary import exponential, sigmoid, softplus
from phobos.kernels.cpu.code.short_conv import count_same
from phobos.kernels.cpu.code.simd import F32, fma, inlined, make_tile, splat, sum_lanes, zeros
from phobos.kernels.cpu.declaration import Float, Int, kernel
from phobos.kernels.cpu.layout import Header

COLUMNS = 32  # of a work item
_CHAINS = 4  # independent sums a vector of columns

_POSITIONS, _SLOTS = 8 * Header.POSITIONS, 8 * Header.SLOTS
new_sums, get_sum, put_sum = make_tile(F32, 2 * _CHAINS)


@inlined
def _scale_to_unit(x, dim, eps, factor):
    """x * factor / max(|x|, eps), in place."""
    total = zeros()
    for i in range(dim // 16):
        value = vload(x + 64 * i)
        total = fma(value, value, total)
    scale = splat(factor / max(np.sqrt(sum_lanes(total)), eps))
    for i in range(dim // 16):
        vstore(x + 64 * i, vload(x + 64 * i) * scale)


@kernel
def delta_prepare(
    q: Int, k: Int, q_stride: Int, k_stride: Int, decay: Int, beta: Int, rate: Int, bias: Int, n_rows_at: Int,
    n_heads: Int, n_k_heads: Int, k_dim: Int, decay_dim: Int, scale: Float, eps: Float, thread, n_threads,
):  # fmt: skip
    """Per row and key head: unit queries (times `scale`) and keys. Per row: decays [n_heads, decay_dim] and betas."""
    n_rows = load_i64(n_rows_at)
    n_items = n_rows * n_k_heads
    for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
        row, head = item // n_k_heads, item % n_k_heads
        _scale_to_unit(q + q_stride * row + 4 * k_dim * head, k_dim, eps, scale)
        _scale_to_unit(k + k_stride * row + 4 * k_dim * head, k_dim, eps, np.float32(1))
    width = n_heads * decay_dim
    stride, beta_stride = (4 * width + 63) // 64 * 64, (4 * n_heads + 63) // 64 * 64
    n_vectors = (width + 15) // 16
    n_items = n_rows * n_vectors
    for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
        row, i = item // n_vectors, item % n_vectors
        at = decay + stride * row + 64 * i
        rates = vload(rate + 64 * i) if decay_dim == 1 else splat(load_f32(rate + 4 * (16 * i // decay_dim)))
        vstore(at, exponential(rates * softplus(vload(at) + vload(bias + 64 * i))))
    n_vectors = (n_heads + 15) // 16
    n_items = n_rows * n_vectors
    for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
        at = beta + beta_stride * (item // n_vectors) + 64 * (item % n_vectors)
        vstore(at, sigmoid(vload(at)))


@inlined
def _merged(sums, part):
    return (get_sum(sums, part) + get_sum(sums, 2 + part)) + (get_sum(sums, 4 + part) + get_sum(sums, 6 + part))


@inlined
def _predict(state, k, decay, k_dim, is_each, sums):
    """Sums of the state's rows weighted by the key, each row decayed by its own factor where `is_each`."""
    for n in range(2 * _CHAINS):
        put_sum(sums, n, zeros())
    for i in range(0, k_dim, _CHAINS):
        for n in range(_CHAINS):
            at = state + 4 * COLUMNS * (i + n)
            weight = load_f32(k + 4 * (i + n))
            if is_each:
                weight *= load_f32(decay + 4 * (i + n))
            put_sum(sums, 2 * n, fma(splat(weight), vload(at), get_sum(sums, 2 * n)))
            put_sum(sums, 2 * n + 1, fma(splat(weight), vload(at + 64), get_sum(sums, 2 * n + 1)))


@inlined
def _update(state, q, k, decay, k_dim, is_each, low_change, high_change, sums):
    """Decay each row of the state and add the key's part of the change; sums of the rows weighted by the query."""
    for n in range(2 * _CHAINS):
        put_sum(sums, n, zeros())
    factor = splat(load_f32(decay))
    for i in range(0, k_dim, _CHAINS):
        for n in range(_CHAINS):
            at = state + 4 * COLUMNS * (i + n)
            if is_each:
                factor = splat(load_f32(decay + 4 * (i + n)))
            key = splat(load_f32(k + 4 * (i + n)))
            low, high = fma(key, low_change, vload(at) * factor), fma(key, high_change, vload(at + 64) * factor)
            weight = splat(load_f32(q + 4 * (i + n)))
            put_sum(sums, 2 * n, fma(weight, low, get_sum(sums, 2 * n)))
            put_sum(sums, 2 * n + 1, fma(weight, high, get_sum(sums, 2 * n + 1)))
            vstore(at, low)
            vstore(at + 64, high)


@inlined
def _step(state, out, q, k, v, decay, strength, k_dim, is_each):
    """One row of one work item."""
    sums = new_sums()
    _predict(state, k, decay, k_dim, is_each, sums)
    factor = splat(np.float32(1)) if is_each else splat(load_f32(decay))
    low = (vload(v) - _merged(sums, 0) * factor) * strength
    high = (vload(v + 64) - _merged(sums, 1) * factor) * strength
    _update(state, q, k, decay, k_dim, is_each, low, high, sums)
    vstore(out, _merged(sums, 0))
    vstore(out + 64, _merged(sums, 1))


@kernel
def delta_scan(
    out: Int, q: Int, k: Int, v: Int, q_stride: Int, k_stride: Int, v_stride: Int, decay: Int, beta: Int, states: Int,
    slot_bytes: Int, batch: Int, n_rows_at: Int, n_heads: Int, n_k_heads: Int, k_dim: Int, v_dim: Int, decay_dim: Int,
    is_tiled: Int, thread, n_threads,
):  # fmt: skip
    """All rows, in order, for this thread's columns."""
    n_rows = load_i64(n_rows_at)
    positions, slots = load_i64(batch + _POSITIONS), load_i64(batch + _SLOTS)
    decay_stride, beta_stride = (4 * n_heads * decay_dim + 63) // 64 * 64, (4 * n_heads + 63) // 64 * 64
    n_parts = v_dim // COLUMNS
    n_items = n_heads * n_parts
    for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
        head, part = item // n_parts, item % n_parts
        key_head = head % n_k_heads if is_tiled != 0 else head // (n_heads // n_k_heads)
        row = 0
        while row < n_rows:
            n_same = count_same(slots, row, n_rows)
            state = states + load_i32(slots + 4 * row) * slot_bytes + 4 * COLUMNS * k_dim * item
            if load_i32(positions + 4 * row) == 0:
                for i in range(2 * k_dim):
                    vstore(state + 64 * i, zeros())
            for r in range(row, row + n_same):
                q_row, k_row = q + q_stride * r + 4 * k_dim * key_head, k + k_stride * r + 4 * k_dim * key_head
                value = v + v_stride * r + 4 * (v_dim * head + COLUMNS * part)
                factors = decay + decay_stride * r + 4 * decay_dim * head
                strength = splat(load_f32(beta + beta_stride * r + 4 * head))
                target = out + 4 * (n_heads * v_dim * r + v_dim * head + COLUMNS * part)
                if decay_dim > 1:
                    _step(state, target, q_row, k_row, value, factors, strength, k_dim, True)
                else:
                    _step(state, target, q_row, k_row, value, factors, strength, k_dim, False)
            row += n_same
