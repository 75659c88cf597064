"""Attention over the cache with an online softmax, in a fixed order of keys.

Theory. Keys are walked in spans of `SPAN`; within a span in blocks of `KEY_BLOCK`, whose maximum rescales what was
summed before (Milakov and Gimelshein 2018; Dao et al. 2022). Each span starts afresh and spans are merged in order, so
the arithmetic of a row is the same whether one thread walks all spans or each span has a thread. Four queries (heads
that share keys, or neighbouring rows) share each load of keys and values. Keys outside a query's range are given weight
exactly 0, so which queries share a tile leaves no trace. Rows of a fork (see `Batch`) read the blocks of keys behind
its beginning elsewhere; they are the same keys in the same blocks.
"""

from __future__ import annotations

import numpy as np

from phobos.kernels.cpu.code.access import load_f32, load_i32, load_i64, store_f32, store_i64, vload, vstore
from phobos.kernels.cpu.code.attention_tile import (
    KEY_FORMATS,
    MAXIMA,
    OUTPUTS,
    QUERIES,
    QUERY,
    TILE_BYTES,
    TOTALS,
    V_DIM_MAX,
    VALUE_FORMATS,
    soften_block,
)
from phobos.kernels.cpu.code.elementary import exponential
from phobos.kernels.cpu.code.norm import quantize_block
from phobos.kernels.cpu.code.simd import fma, inlined, splat, zeros
from phobos.kernels.cpu.code.sync import take_work
from phobos.kernels.cpu.declaration import Float, Int, Kernel, kernel
from phobos.kernels.cpu.layout import BLOCK, CACHE_TILE_BYTES, KEY_BLOCK, KEY_TILE, SPAN, SPLIT_ROWS, Header

TILE_ROWS = 8  # rows of one work item, where spans are not spread

_POSITIONS, _SLOTS = 8 * Header.POSITIONS, 8 * Header.SLOTS
_PLACES, _SHARED = 8 * Header.PLACES, 8 * Header.SHARED
_PASS, _SCRATCH, _SCRATCH_BYTES = 8 * Header.PASS, 8 * Header.SCRATCH, 8 * Header.SCRATCH_BYTES
_LOWEST = np.float32(-1e30)


def _make_walk_span(k_format: str, v_format: str):
    _, score_block = KEY_FORMATS[k_format]
    add_values = VALUE_FORMATS[v_format]
    k_tile, v_tile = CACHE_TILE_BYTES[k_format], CACHE_TILE_BYTES[v_format]

    @inlined
    def walk_span(tile, keys, values, k_dim, v_dim, first_key, last_key, shared, shift, scale, soft_cap, factors):
        """One span of keys, from a fresh state: leaves maxima, totals and unnormalized outputs in the tile. Keys from
        `shared` on lie `shift` positions further on, whole blocks."""
        for n in range(QUERIES):
            store_f32(tile + MAXIMA + 64 * n, _LOWEST)
            vstore(tile + TOTALS + 64 * n, zeros())
            for i in range(v_dim // 16):
                vstore(tile + OUTPUTS + 4 * V_DIM_MAX * n + 64 * i, zeros())
        for key in range(first_key // KEY_BLOCK * KEY_BLOCK, last_key + 1, KEY_BLOCK):
            moved = shift // KEY_TILE if key >= shared else 0
            score_block(tile, keys + k_tile * k_dim * moved, k_dim, key, scale, soft_cap)
            for n in range(QUERIES):
                vstore(factors + 64 * n, soften_block(tile, n))
            n_keys = min(KEY_BLOCK, last_key + 1 - key)
            add_values(tile, values + v_tile * v_dim * moved, v_dim, key, n_keys, factors)

    return walk_span


@inlined
def _merge_span(merged, outputs, maximum_at, totals, v_dim):
    """Fold one span's state into `merged`: 64 bytes of maximum, 64 of total, then outputs."""
    old, span = load_f32(merged), load_f32(maximum_at)
    new = max(old, span)
    keep, add = exponential(splat(old - new)), exponential(splat(span - new))
    store_f32(merged, new)
    vstore(merged + 64, fma(vload(merged + 64), keep, vload(totals) * add))
    for i in range(v_dim // 16):
        at = merged + 128 + 64 * i
        vstore(at, fma(vload(at), keep, vload(outputs + 64 * i) * add))


@inlined
def _clear(merged, v_dim):
    store_f32(merged, _LOWEST)
    for i in range(1 + v_dim // 16):
        vstore(merged + 64 + 64 * i, zeros())


@inlined
def _begin(merged, v_dim, sinks, head):
    """A fresh state, or that of having seen the head's sink: a score without a value. `sinks` is an address or 0."""
    _clear(merged, v_dim)
    if sinks != 0:
        store_f32(merged, load_f32(sinks + 4 * head))
        vstore(merged + 64, splat(np.float32(1)))


@inlined
def _write(out, merged, v_dim):
    for i in range(v_dim // 16):
        vstore(out + 64 * i, vload(merged + 128 + 64 * i) / vload(merged + 64))


@inlined
def _set_queries(tile, q, row, n_rows, head, first_query, n_queries, group, n_heads, k_dim, window, positions):
    """Fill the tile's queries; those past `n_queries` repeat the last. Returns the tile's first and last key."""
    lowest, highest = 1 << 40, 0
    for n in range(QUERIES):
        query = min(first_query + n, n_queries - 1)
        at = row + query // group
        position = np.int64(load_i32(positions + 4 * at))
        first = max(0, position - window + 1) if window > 0 else 0
        store_i64(tile + QUERY + 32 * n, q + 4 * k_dim * (n_heads * at + head * group + query % group))
        store_i64(tile + QUERY + 32 * n + 8, first)
        store_i64(tile + QUERY + 32 * n + 16, position)
        lowest, highest = min(lowest, first), max(highest, position)
    return lowest, highest


@inlined
def _shift(places, positions, row):
    return np.int64(load_i32(places + 4 * row) - load_i32(positions + 4 * row))


def _make_attention(k_format: str, v_format: str) -> Kernel:
    prepare, _ = KEY_FORMATS[k_format]
    walk_span = _make_walk_span(k_format, v_format)

    def attention(
        out: Int, parts: Int, q: Int, keys: Int, values: Int, key_slot_bytes: Int, value_slot_bytes: Int, batch: Int,
        n_rows_at: Int, work: Int, n_heads: Int, n_kv_heads: Int, k_dim: Int, v_dim: Int, window: Int, n_spans: Int,
        scale: Float, soft_cap: Float, sinks: Int, thread, n_threads,
    ):  # fmt: skip
        """Up to `SPLIT_ROWS` rows: each (row, key head, span) is a work item whose state goes to `parts`, for
        `attention_merge`. More rows: each (tile of rows, key head) is one, finished here."""
        n_rows = load_i64(n_rows_at)
        positions, slots = load_i64(batch + _POSITIONS), load_i64(batch + _SLOTS)
        places, shared = load_i64(batch + _PLACES), load_i64(batch + _SHARED)
        tile = load_i64(batch + _SCRATCH) + thread * load_i64(batch + _SCRATCH_BYTES)
        factors = tile + TILE_BYTES
        merged = factors + 64 * QUERIES
        pass_number = load_i64(batch + _PASS)
        group = n_heads // n_kv_heads
        state_bytes = 128 + 4 * v_dim
        split = n_rows <= SPLIT_ROWS
        used_spans, tile_rows = 1, TILE_ROWS
        if split:
            tile_rows = 1
            for row in range(n_rows):
                used_spans = max(used_spans, load_i32(positions + 4 * row) // SPAN + 1)
        n_tiles = (n_rows + tile_rows - 1) // tile_rows
        while True:
            item = take_work(work, pass_number, n_tiles * n_kv_heads * used_spans)
            if item < 0:
                return
            head, item = item % n_kv_heads, item // n_kv_heads
            tile_number, chosen_span = item // used_spans, item % used_spans
            row, last_row = tile_number * tile_rows, min((tile_number + 1) * tile_rows, n_rows)
            while row < last_row:
                slot = load_i32(slots + 4 * row)
                begin, shift = load_i32(shared + 4 * row), _shift(places, positions, row)
                n_same = 1
                while row + n_same < last_row and (
                    load_i32(slots + 4 * (row + n_same)) == slot
                    and load_i32(shared + 4 * (row + n_same)) == begin
                    and _shift(places, positions, row + n_same) == shift
                ):
                    n_same += 1
                head_keys = keys + slot * key_slot_bytes + head * (key_slot_bytes // n_kv_heads)
                head_values = values + slot * value_slot_bytes + head * (value_slot_bytes // n_kv_heads)
                n_queries = n_same * group
                for first_query in range(0, n_queries, QUERIES):
                    lowest, highest = _set_queries(
                        tile, q, row, n_rows, head, first_query, n_queries, group, n_heads, k_dim, window, positions
                    )
                    prepare(tile, k_dim)
                    n_tile = min(QUERIES, n_queries - first_query)
                    first_span, last_span = lowest // SPAN, highest // SPAN
                    if split:
                        first_span, last_span = max(first_span, chosen_span), min(last_span, chosen_span)
                    else:
                        for n in range(n_tile):
                            _begin(merged + n * state_bytes, v_dim, sinks, head * group + (first_query + n) % group)
                    for span in range(first_span, last_span + 1):
                        walk_span(
                            tile, head_keys, head_values, k_dim, v_dim, max(lowest, span * SPAN),
                            min(highest, (span + 1) * SPAN - 1), begin, shift, scale, soft_cap, factors,
                        )  # fmt: skip
                        for n in range(n_tile):
                            query = head * group + (first_query + n) % group
                            state = merged + n * state_bytes
                            if split:
                                state = parts + state_bytes * ((row * n_heads + query) * n_spans + span)
                                _clear(state, v_dim)
                            outputs = tile + OUTPUTS + 4 * V_DIM_MAX * n
                            _merge_span(state, outputs, tile + MAXIMA + 64 * n, tile + TOTALS + 64 * n, v_dim)
                    if not split:
                        for n in range(n_tile):
                            query = first_query + n
                            target = (row + query // group) * n_heads + head * group + query % group
                            _write(out + 4 * v_dim * target, merged + n * state_bytes, v_dim)
                row += n_same

    attention.__name__ = f"attention_{k_format}_{v_format}"
    return kernel(attention)


attention_f16_f16 = _make_attention("f16", "f16")
attention_f16_q8_0 = _make_attention("f16", "q8_0")
attention_q8_0_f16 = _make_attention("q8_0", "f16")
attention_q8_0_q8_0 = _make_attention("q8_0", "q8_0")


@inlined
def _merge_item(merged, parts, position, item, n_heads, v_dim, window, n_spans, sinks):
    """Merge one row's head into `merged`, span by span."""
    state_bytes = 128 + 4 * v_dim
    first = max(0, position - window + 1) if window > 0 else 0
    _begin(merged, v_dim, sinks, item % n_heads)
    for span in range(first // SPAN, position // SPAN + 1):
        state = parts + state_bytes * (item * n_spans + span)
        _merge_span(merged, state + 128, state, state + 64, v_dim)


@kernel
def attention_merge(
    out: Int, parts: Int, batch: Int, n_rows_at: Int, n_heads: Int, v_dim: Int, window: Int, n_spans: Int, sinks: Int,
    thread, n_threads,
):  # fmt: skip
    """Merge the spans that `attention` left in `parts`, in order."""
    n_rows = load_i64(n_rows_at)
    if n_rows > SPLIT_ROWS:
        return
    positions = load_i64(batch + _POSITIONS)
    merged = load_i64(batch + _SCRATCH) + thread * load_i64(batch + _SCRATCH_BYTES)
    for item in range(n_rows * n_heads * thread // n_threads, n_rows * n_heads * (thread + 1) // n_threads):
        position = np.int64(load_i32(positions + 4 * (item // n_heads)))
        _merge_item(merged, parts, position, item, n_heads, v_dim, window, n_spans, sinks)
        _write(out + 4 * v_dim * item, merged, v_dim)


@kernel
def attention_merge_quantize(
    out: Int, floats: Int, parts: Int, batch: Int, n_rows_at: Int, n_heads: Int, v_dim: Int, window: Int, n_spans: Int,
    sinks: Int, thread, n_threads,
):  # fmt: skip
    """The same, quantized; rows that `attention` finished itself are read from `floats`. `v_dim` is whole blocks."""
    n_rows = load_i64(n_rows_at)
    positions = load_i64(batch + _POSITIONS)
    merged = load_i64(batch + _SCRATCH) + thread * load_i64(batch + _SCRATCH_BYTES)
    width = n_heads * v_dim
    stride = (width + 16 * (width // BLOCK) + 63) // 64 * 64
    for item in range(n_rows * n_heads * thread // n_threads, n_rows * n_heads * (thread + 1) // n_threads):
        row, head = item // n_heads, item % n_heads
        source = floats + 4 * v_dim * item
        if n_rows <= SPLIT_ROWS:
            position = np.int64(load_i32(positions + 4 * row))
            _merge_item(merged, parts, position, item, n_heads, v_dim, window, n_spans, sinks)
            source = merged + 128
            for i in range(v_dim // 16):
                vstore(source + 64 * i, vload(source + 64 * i) / vload(merged + 64))
        for b in range(v_dim // BLOCK):
            low, high = vload(source + 128 * b), vload(source + 128 * b + 64)
            quantize_block(out + stride * row, width, head * (v_dim // BLOCK) + b, low, high)
