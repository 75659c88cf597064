"""Mixtures of experts: routing, rows sorted by expert, and products in which each expert's weights are read once.

Theory. A pass makes pairs (row, expert). Sorted by expert, an expert's pairs are neighbours, so its matrix meets all of
them at once and the kernels of `matmul.py` do the rest, with the same bits for a row whoever came with it. The order of
a pass lies in one table of int32 words, see `Order`; other products of many small matrices use it too (`head_order`).
"""

from __future__ import annotations

import numpy as np

from phobos.kernels.cpu.code.access import (
    load_f32,
    load_i32,
    load_i64,
    store_f32,
    store_i32,
    store_i64,
    vload,
    vstore,
)
from phobos.kernels.cpu.code.elementary import exponential, sigmoid
from phobos.kernels.cpu.code.float_products import make_float_sums
from phobos.kernels.cpu.code.formats import FloatFormat, Format, make_lookup_of_kernels
from phobos.kernels.cpu.code.matmul import finish, make_several_rows, make_stream, make_tile_sums
from phobos.kernels.cpu.code.norm import is_mine, share_of
from phobos.kernels.cpu.code.simd import (
    inlined,
    lane_numbers,
    max_lanes,
    maximum,
    splat,
    splat_i32,
    sum_lanes,
    where_less,
    zeros,
)
from phobos.kernels.cpu.code.sync import take_work
from phobos.kernels.cpu.declaration import Float, Int, Kernel, kernel
from phobos.kernels.cpu.layout import BLOCK, GROUP, GROUP_TILE, STREAMED_ROWS, Header, Order
from phobos.kernels.cpu.packed_types import read_ahead_offset

_PASS, _SCRATCH, _SCRATCH_BYTES = 8 * Header.PASS, 8 * Header.SCRATCH, 8 * Header.SCRATCH_BYTES
_N_ACTIVE, _STARTS = Order.N_ACTIVE, Order.STARTS
SOFTMAX, SIGMOID, CHOSEN = 0, 1, 2
_LOWEST = np.float32(-1e30)
_SMALLEST_SUM = np.float32(6.103515625e-5)  # the least normal half, which sums of weights are not let below


# Routing


@inlined
def _probabilities(x, probs, n, gating):
    """Softmax or sigmoid of `n` values, or the values; lanes past `n` hold anything."""
    n_vectors = (n + 15) // 16
    if gating == SIGMOID:
        for i in range(n_vectors):
            vstore(probs + 64 * i, sigmoid(vload(x + 64 * i)))
        return
    if gating == CHOSEN:
        for i in range(n_vectors):
            vstore(probs + 64 * i, vload(x + 64 * i))
        return
    largest = splat(_LOWEST)
    for i in range(n_vectors):
        lanes = splat_i32(np.int32(16 * i)) + lane_numbers()
        value = where_less(lanes, splat_i32(np.int32(n)), vload(x + 64 * i), splat(_LOWEST))
        vstore(probs + 64 * i, value)
        largest = maximum(largest, value)
    top = splat(max_lanes(largest))
    total = zeros()
    for i in range(n_vectors):
        value = exponential(vload(probs + 64 * i) - top)
        vstore(probs + 64 * i, value)
        total = total + value
    whole = splat(sum_lanes(total))
    for i in range(n_vectors):
        vstore(probs + 64 * i, vload(probs + 64 * i) / whole)


@inlined
def _best(choice, first, last):
    """The first index in [first, last) with the largest value."""
    best, value = first, load_f32(choice + 4 * first)
    for i in range(first + 1, last):
        other = load_f32(choice + 4 * i)
        if other > value:
            best, value = i, other
    return best


@inlined
def _keep_groups(choice, spare, n, n_groups, n_groups_used):
    """Rule out all experts but those of the groups whose two best sum highest."""
    size = n // n_groups
    for g in range(n_groups):
        first = g * size
        best = _best(choice, first, first + size)
        value = load_f32(choice + 4 * best)
        store_f32(choice + 4 * best, _LOWEST)
        second = load_f32(choice + 4 * _best(choice, first, first + size))
        store_f32(choice + 4 * best, value)
        store_f32(spare + 4 * g, value + (second if size > 1 else np.float32(0)))
    for _ in range(n_groups_used):
        store_f32(spare + 4 * _best(spare, 0, n_groups), _LOWEST)
    for g in range(n_groups):
        if load_f32(spare + 4 * g) != _LOWEST:
            for i in range(g * size, (g + 1) * size):
                store_f32(choice + 4 * i, _LOWEST)


@kernel
def route(
    out: Int, logits: Int, bias: Int, n_rows_at: Int, batch: Int, n: Int, n_used: Int, gating: Int, n_groups: Int,
    n_groups_used: Int, is_normalized: Int, scale: Float, expert_scales: Int, thread, n_threads,
):  # fmt: skip
    """Whole rows to threads in turn; see `steps.Route`."""
    probs = load_i64(batch + _SCRATCH) + thread * load_i64(batch + _SCRATCH_BYTES)
    stride = (4 * n + 63) // 64 * 64
    choice, spare = probs + stride, probs + 2 * stride
    for row in range(thread, load_i64(n_rows_at), n_threads):
        _probabilities(logits + stride * row, probs, n, gating)
        for i in range(n):
            offset = load_f32(bias + 4 * i) if bias != 0 else np.float32(0)
            store_f32(choice + 4 * i, load_f32(probs + 4 * i) + offset)
        if n_groups > 1:
            _keep_groups(choice, spare, n, n_groups, n_groups_used)
        target = out + (8 * n_used + 63) // 64 * 64 * row
        weights = target + 4 * n_used
        for j in range(n_used):
            best = _best(choice, 0, n)
            store_f32(choice + 4 * best, _LOWEST * np.float32(2))
            store_f32(target + 4 * j, np.float32(best))
            store_f32(weights + 4 * j, load_f32(probs + 4 * best))
        if gating == CHOSEN:
            top = load_f32(weights)
            for j in range(n_used):
                vstore(spare, exponential(splat(load_f32(weights + 4 * j) - top)))
                store_f32(weights + 4 * j, load_f32(spare))
        if is_normalized != 0 or gating == CHOSEN:
            total = np.float32(0)
            for j in range(n_used):
                total += load_f32(weights + 4 * j)
            total = max(total, _SMALLEST_SUM)
            for j in range(n_used):
                store_f32(weights + 4 * j, load_f32(weights + 4 * j) / total)
        for j in range(n_used):
            own = np.float32(1)
            if expert_scales != 0:
                own = load_f32(expert_scales + 4 * np.int64(load_f32(target + 4 * j)))
            store_f32(weights + 4 * j, load_f32(weights + 4 * j) * scale * own)


# The order of a pass


@kernel
def sort_rows(
    order: Int, routes: Int, n_rows_at: Int, n_experts: Int, n_used: Int, active: Int, sources: Int, places: Int,
    thread, n_threads,
):  # fmt: skip
    """Pairs sorted by expert, counted and placed by one thread: `sources[s]` is the pair at place s, `places` back."""
    if thread != 0:
        return
    n_pairs = load_i64(n_rows_at) * n_used
    stride = (8 * n_used + 63) // 64 * 64
    store_i64(order, n_pairs)
    starts = order + _STARTS
    for e in range(n_experts + 1):
        store_i32(starts + 4 * e, 0)
    for pair in range(n_pairs):
        at = starts + 4 * (1 + np.int64(load_f32(routes + pair // n_used * stride + 4 * (pair % n_used))))
        store_i32(at, load_i32(at) + 1)
    n_active = 0
    for e in range(n_experts):
        count = load_i32(starts + 4 * e + 4)
        if count > 0:
            store_i32(active + 4 * n_active, e)
            n_active += 1
        store_i32(starts + 4 * e + 4, load_i32(starts + 4 * e) + count)
    store_i64(order + _N_ACTIVE, n_active)
    for pair in range(n_pairs):
        at = starts + 4 * np.int64(load_f32(routes + pair // n_used * stride + 4 * (pair % n_used)))
        place = load_i32(at)
        store_i32(at, place + 1)
        store_i32(sources + 4 * place, pair)
        store_i32(places + 4 * pair, place)
    for e in range(n_experts, 0, -1):  # each start has moved to the next one's
        store_i32(starts + 4 * e, load_i32(starts + 4 * e - 4))
    store_i32(starts, 0)


@kernel
def head_order(order: Int, n_rows_at: Int, n_heads: Int, active: Int, sources: Int, places: Int, thread, n_threads):
    """The order in which pair (row, head) goes to matrix `head`."""
    if thread != 0:
        return
    n_rows = load_i64(n_rows_at)
    store_i64(order, n_rows * n_heads)
    store_i64(order + _N_ACTIVE, n_heads if n_rows > 0 else 0)
    for head in range(n_heads):
        store_i32(order + _STARTS + 4 * head, head * n_rows)
        store_i32(active + 4 * head, head)
        for row in range(n_rows):
            store_i32(sources + 4 * (head * n_rows + row), row * n_heads + head)
            store_i32(places + 4 * (row * n_heads + head), head * n_rows + row)
    store_i32(order + _STARTS + 4 * n_heads, n_heads * n_rows)


@kernel
def gather(out: Int, x: Int, order: Int, sources: Int, stride: Int, divisor: Int, thread, n_threads):
    """out[s] = x[sources[s] // divisor], records of `stride` bytes, a multiple of 64."""
    n_pairs = load_i64(order)
    for place in range(n_pairs * thread // n_threads, n_pairs * (thread + 1) // n_threads):
        source = x + stride * (load_i32(sources + 4 * place) // divisor)
        target = out + stride * place
        for i in range(0, stride, 64):
            vstore(target + i, vload(source + i))


@kernel
def combine(
    out: Int,
    x: Int,
    routes: Int,
    residual: Int,
    n_rows_at: Int,
    width: Int,
    n_used: Int,
    places: Int,
    thread,
    n_threads,
):
    """out[row] = residual[row] + weights times the pairs of the row, best first."""
    n_rows = load_i64(n_rows_at)
    n_vectors = (width + 15) // 16
    stride = (8 * n_used + 63) // 64 * 64
    first, last = share_of(n_vectors, n_rows, thread, n_threads)
    for row in range(n_rows):
        if is_mine(row, n_rows, thread, n_threads):
            weights = routes + stride * row + 4 * n_used
            for i in range(first, last):
                total = zeros()
                for j in range(n_used):
                    place = load_i32(places + 4 * (n_used * row + j))
                    total = total + vload(x + 64 * (n_vectors * place + i)) * splat(load_f32(weights + 4 * j))
                at = 64 * (n_vectors * row + i)
                if residual != 0:
                    total = vload(residual + at) + total
                vstore(out + at, total)


# Products


@inlined
def _groups_an_item(n_active, n_groups, n_threads):
    """Groups of a work item: about 16 items a thread, an even number of groups."""
    return max(GROUP_TILE, n_active * n_groups // (16 * n_threads) // GROUP_TILE * GROUP_TILE)


def _make_matmul(form: Format) -> Kernel:
    stream = make_stream(form)
    several_rows = make_several_rows(make_tile_sums(form))
    values, record_bytes = form.kind.values, form.kind.record_bytes
    ahead_offset = read_ahead_offset(form.kind.name)

    def matmul(
        out: Int, x: Int, weight: Int, bias: Int, order: Int, active: Int, batch: Int, work: Int, n_out: Int, n_in: Int,
        expert_rows: Int, first_row: Int, thread, n_threads,
    ):  # fmt: skip
        n_groups = n_out // GROUP
        group_bytes = n_in // values * record_bytes
        x_stride = (n_in + 16 * (n_in // BLOCK) + 63) // 64 * 64
        n_active = load_i64(order + _N_ACTIVE)
        unit = _groups_an_item(n_active, n_groups, n_threads)
        n_units = (n_groups + unit - 1) // unit
        scratch = load_i64(batch + _SCRATCH) + thread * load_i64(batch + _SCRATCH_BYTES)
        pass_number, ahead = load_i64(batch + _PASS), batch + ahead_offset
        while True:
            item = take_work(work, pass_number, n_active * n_units)
            if item < 0:
                return
            e = np.int64(load_i32(active + 4 * (item // n_units)))
            start = load_i32(order + _STARTS + 4 * e)
            n_rows = load_i32(order + _STARTS + 4 * e + 4) - start
            rows = e * expert_rows + first_row
            matrix = weight + rows // GROUP * group_bytes
            source, target = x + x_stride * start, out + 4 * n_out * start
            first, last = item % n_units * unit, min((item % n_units + 1) * unit, n_groups)
            if n_rows <= STREAMED_ROWS:
                for g in range(first, last):
                    stream(matrix + g * group_bytes, source, x_stride, n_rows, n_in, ahead, scratch)
                    offsets = bias + 4 * rows + 64 * g if bias != 0 else 0
                    for row in range(n_rows):
                        at = target + 4 * n_out * row + 64 * g
                        finish(at, vload(scratch + 64 * row), offsets, 0, np.float32(1))
            else:
                for g in range(first, last, GROUP_TILE):
                    several_rows(
                        target + 64 * g, 4 * n_out, source, x_stride, matrix + g * group_bytes, group_bytes,
                        min(GROUP_TILE, last - g), bias + 4 * rows + 64 * g if bias != 0 else 0, 0, n_rows, n_in,
                        np.float32(1), ahead, scratch,
                    )  # fmt: skip

    matmul.__name__ = f"matmul_{form.kind.name}"
    return kernel(matmul)


def _make_float_matmul(name: str, form: FloatFormat) -> Kernel:
    several_rows = make_several_rows(make_float_sums(form))
    vector_bytes, ahead_offset = GROUP * form.bytes_each, read_ahead_offset(name)

    def matmul(
        out: Int, x: Int, weight: Int, bias: Int, order: Int, active: Int, batch: Int, work: Int, n_out: Int, n_in: Int,
        expert_rows: Int, first_row: Int, thread, n_threads,
    ):  # fmt: skip
        n_groups = n_out // GROUP
        n_units = (n_groups + GROUP_TILE - 1) // GROUP_TILE
        group_bytes = n_in * vector_bytes
        x_stride = (4 * n_in + 63) // 64 * 64
        n_active = load_i64(order + _N_ACTIVE)
        scratch = load_i64(batch + _SCRATCH) + thread * load_i64(batch + _SCRATCH_BYTES)
        pass_number, ahead = load_i64(batch + _PASS), batch + ahead_offset
        while True:
            item = take_work(work, pass_number, n_active * n_units)
            if item < 0:
                return
            g = item % n_units * GROUP_TILE
            e = np.int64(load_i32(active + 4 * (item // n_units)))
            start = load_i32(order + _STARTS + 4 * e)
            n_rows = load_i32(order + _STARTS + 4 * e + 4) - start
            rows = e * expert_rows + first_row
            several_rows(
                out + 4 * n_out * start + 64 * g, 4 * n_out, x + x_stride * start, x_stride,
                weight + (rows // GROUP + g) * group_bytes, group_bytes, min(GROUP_TILE, n_groups - g),
                bias + 4 * rows + 64 * g if bias != 0 else 0, 0, n_rows, n_in, np.float32(1), ahead, scratch,
            )  # fmt: skip

    matmul.__name__ = f"matmul_{name}"
    return kernel(matmul)


__getattr__ = make_lookup_of_kernels("matmul", _make_matmul, _make_float_matmul)
