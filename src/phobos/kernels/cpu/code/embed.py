"""The embedding: rows of a packed matrix, one for each token.

Whole vectors of the matrix's groups of rows are read and the token's lane kept.
"""

from __future__ import annotations

import numpy as np

from phobos.kernels.cpu.code.access import load_f32, load_i32, load_i64, load_u8, store_f32, vstore, vstore_u8
from phobos.kernels.cpu.code.formats import FloatFormat, Format, make_lookup_of_kernels
from phobos.kernels.cpu.code.norm import is_mine, share_of
from phobos.kernels.cpu.code.simd import inlined
from phobos.kernels.cpu.declaration import Float, Int, Kernel, kernel
from phobos.kernels.cpu.layout import GROUP, Header

_TOKENS, _SCRATCH, _SCRATCH_BYTES = 8 * Header.TOKENS, 8 * Header.SCRATCH, 8 * Header.SCRATCH_BYTES


def _make_embed(form: Format) -> Kernel:
    codes, block_scale, block_minimum = form.codes, form.scale, form.minimum
    values, record_bytes, block = form.kind.values, form.kind.record_bytes, form.kind.block
    n_blocks, n_slices = values // block, block // 4

    def embed(out: Int, weight: Int, batch: Int, n_rows_at: Int, width: Int, scale: Float, thread, n_threads):
        n_rows = load_i64(n_rows_at)
        n_records = width // values
        spare = load_i64(batch + _SCRATCH) + thread * load_i64(batch + _SCRATCH_BYTES)
        tokens = load_i64(batch + _TOKENS)
        first, last = share_of(n_records, n_rows, thread, n_threads)
        for row in range(n_rows):
            if is_mine(row, n_rows, thread, n_threads):
                token = load_i32(tokens + 4 * row)
                lane = token % GROUP
                start = weight + token // GROUP * (n_records * record_bytes)
                for record in range(first, last):
                    w = start + record * record_bytes
                    target = out + 4 * (width * row + record * values)
                    for b in range(n_blocks):
                        vstore(spare + 64, block_scale(w, b))
                        vstore(spare + 128, block_minimum(w, b))
                        factor, offset = load_f32(spare + 64 + 4 * lane), load_f32(spare + 128 + 4 * lane)
                        for j in range(n_slices):
                            vstore_u8(spare, codes(w, b, j))
                            for i in range(4):
                                code = np.float32(load_u8(spare + 4 * lane + i))
                                store_f32(target + 4 * (b * block + 4 * j + i), (factor * code + offset) * scale)

    embed.__name__ = f"embed_{form.kind.name}"
    return kernel(embed)


def _make_float_embed(name: str, form: FloatFormat) -> Kernel:
    load, vector_bytes = form.load, GROUP * form.bytes_each

    @inlined
    def value_at(address, spare, lane):
        vstore(spare, load(address))
        return load_f32(spare + 4 * lane)

    def embed(out: Int, weight: Int, batch: Int, n_rows_at: Int, width: Int, scale: Float, thread, n_threads):
        n_rows = load_i64(n_rows_at)
        spare = load_i64(batch + _SCRATCH) + thread * load_i64(batch + _SCRATCH_BYTES)
        tokens = load_i64(batch + _TOKENS)
        stride = (4 * width + 63) // 64 * 64
        first, last = share_of(width, n_rows, thread, n_threads)
        for row in range(n_rows):
            if is_mine(row, n_rows, thread, n_threads):
                token = load_i32(tokens + 4 * row)
                start = weight + token // GROUP * (width * vector_bytes)
                for k in range(first, last):
                    value = value_at(start + k * vector_bytes, spare, token % GROUP)
                    store_f32(out + stride * row + 4 * k, value * scale)

    embed.__name__ = f"embed_{name}"
    return kernel(embed)


__getattr__ = make_lookup_of_kernels("embed", _make_embed, _make_float_embed)
