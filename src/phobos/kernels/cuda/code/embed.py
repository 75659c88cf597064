"""The embedding: rows of a packed matrix, one for each token.

Grid: x along a row, y by row. A thread a block of 32 values, of float matrices a thread a value.
"""

from __future__ import annotations

import numpy as np

from phobos.kernels.cuda.code.formats import FLOAT_FORMATS, FORMATS, FloatFormat, Format
from phobos.kernels.cuda.code.intrinsics import (
    device,
    load_i32,
    place_of_thread,
    store_f32,
)
from phobos.kernels.cuda.declaration import Float, Int, kernel
from phobos.kernels.cuda.layout import BLOCK, THREADS


def _make_embed(form: Format):
    words, scales_of, is_signed, halves = form.words, form.scales_of, form.signed, form.halves
    minima, has_minima = form.minima, form.minima is not None

    @device
    def store_word(at, word, d, offset, scale):
        for i in range(4):
            byte = np.int32((word >> np.uint32(8 * i)) & np.uint32(0xFF))
            code = ((byte ^ 128) - 128) if is_signed else byte
            store_f32(at + 4 * i, (np.float32(code) * d + offset) * scale)

    def embed(out: Int, codes: Int, high: Int, scales: Int, tokens: Int, n_rows_at: Int, width: Int, scale: Float):
        row, b = place_of_thread()
        n_blocks = width // BLOCK
        if row >= load_i32(n_rows_at) or b >= n_blocks:
            return
        index = load_i32(tokens + 4 * row) * n_blocks + b
        w0, w1, w2, w3, w4, w5, w6, w7 = words(codes, high, index)
        first, other = scales_of(scales, index)
        second = other if halves else first
        offset = np.float32(0) if halves else other
        end = offset
        if has_minima:
            lower, upper = minima(high, index)
            offset = other * np.float32(lower & np.uint32(0xFF))
            end = other * np.float32(upper & np.uint32(0xFF))
        at = out + 4 * (width * row + BLOCK * b)
        store_word(at, w0, first, offset, scale)
        store_word(at + 16, w1, first, offset, scale)
        store_word(at + 32, w2, first, offset, scale)
        store_word(at + 48, w3, first, offset, scale)
        store_word(at + 64, w4, second, end, scale)
        store_word(at + 80, w5, second, end, scale)
        store_word(at + 96, w6, second, end, scale)
        store_word(at + 112, w7, second, end, scale)

    embed.__name__ = f"embed_{form.kind.name}"
    return kernel(THREADS)(embed)


def _make_float_embed(name: str, form: FloatFormat):
    load, n_bytes = form.one, form.n_bytes

    def embed(out: Int, codes: Int, high: Int, scales: Int, tokens: Int, n_rows_at: Int, width: Int, scale: Float):
        row, i = place_of_thread()
        if row < load_i32(n_rows_at) and i < width:
            at = codes + n_bytes * (load_i32(tokens + 4 * row) * width + i)
            store_f32(out + 4 * (width * row + i), load(at) * scale)

    embed.__name__ = f"embed_{name}"
    return kernel(THREADS)(embed)


for _form in FORMATS.values():
    globals()[f"embed_{_form.kind.name}"] = _make_embed(_form)
for _kind, _floats in FLOAT_FORMATS.items():
    globals()[f"embed_{_kind.name.lower()}"] = _make_float_embed(_kind.name.lower(), _floats)
