"""Steps on rows of several streams: mixing them, matching their lengths; and the sparsity of activations.

A row's sums are taken whole by one thread, in one order, so how rows are shared out leaves no trace.
"""

from __future__ import annotations

import numpy as np

from phobos.kernels.cpu.code.access import load_f32, load_i64, vload, vstore
from phobos.kernels.cpu.code.norm import inverse_rms, mean_and_factor
from phobos.kernels.cpu.code.simd import fma, maximum, splat, zeros
from phobos.kernels.cpu.declaration import Float, Int, kernel

_SHORTEST = np.float32(1e-30)  # of a mean square: what is all zeros stays so


@kernel
def mix(
    out: Int, x: Int, coefficients: Int, residual: Int, n_rows_at: Int, width: Int, n_out: Int, n_in: Int, skipped: Int,
    offset: Float, thread, n_threads,
):  # fmt: skip
    """16 columns of one stream of one row at a time; `coefficients` and `residual` are addresses or 0, `width` that of
    a stream, a multiple of 16."""
    n_vectors = width // 16
    stride = (4 * n_out * n_in + 63) // 64 * 64
    out_row = 4 * width * (n_out + skipped)
    total = load_i64(n_rows_at) * n_out * n_vectors
    for item in range(total * thread // n_threads, total * (thread + 1) // n_threads):
        row, j, i = item // (n_out * n_vectors), item // n_vectors % n_out, item % n_vectors
        at = out_row * row + 4 * width * (j + skipped) + 64 * i
        value = zeros()
        if residual != 0:
            value = vload(residual + at)
        for k in range(n_in):
            factor = offset
            if coefficients != 0:
                factor = load_f32(coefficients + stride * row + 4 * (j * n_in + k)) + offset
            value = fma(splat(factor), vload(x + 4 * width * (n_in * row + k) + 64 * i), value)
        vstore(out + at, value)


@kernel
def match_length(x: Int, target: Int, n_rows_at: Int, n_heads: Int, dim: Int, thread, n_threads):
    """A head of a row at a time; `dim` is a multiple of 16."""
    n_items = load_i64(n_rows_at) * n_heads
    for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
        at, wanted = x + 4 * dim * item, target + 4 * dim * (item // n_heads)
        mine = inverse_rms(at, dim // 16, dim, _SHORTEST)
        factor = splat(mine / inverse_rms(wanted, dim // 16, dim, _SHORTEST))
        for i in range(dim // 16):
            vstore(at + 64 * i, vload(at + 64 * i) * factor)


@kernel
def sparsify(x: Int, n_rows_at: Int, width: Int, multiplier: Float, thread, n_threads):
    """Whole rows to threads in turn; `width` is a multiple of 16."""
    for row in range(thread, load_i64(n_rows_at), n_threads):
        at = x + 4 * width * row
        mean, factor = mean_and_factor(at, width // 16, width, _SHORTEST)
        deviation = np.sqrt(np.float32(width) / np.float32(width - 1)) / factor
        cutoff = splat(mean + multiplier * deviation)
        for i in range(width // 16):
            vstore(at + 64 * i, maximum(vload(at + 64 * i) - cutoff, zeros()))
