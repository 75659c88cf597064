"""What a card can do at most with 8-bit products, apart and on tensor cores: for measuring, not for computing."""

from __future__ import annotations

import numpy as np
from numba import cuda, int32

from phobos.kernels.cuda.compiler import Int, kernel
from phobos.kernels.cuda.intrinsics import dot4_signed, multiply_signed, store_i32
from phobos.kernels.cuda.layout import NORM_THREADS

PRODUCTS = 8  # of one turn, independent of one another
TILE_OPERATIONS = 2 * 16 * 32 * 8  # of one product on tensor cores


@kernel(NORM_THREADS)
def multiply(out: Int, n_turns: Int):
    """`n_turns` times `PRODUCTS` dot products of four a thread."""
    sums = cuda.local.array(PRODUCTS, int32)
    word = np.uint32(cuda.threadIdx.x)
    for i in range(PRODUCTS):
        sums[i] = int32(i)
    for _ in range(n_turns):
        for i in range(PRODUCTS):
            sums[i] = dot4_signed(sums[i], word, np.uint32(sums[i]))
    total = np.int64(0)
    for i in range(PRODUCTS):
        total += sums[i]
    store_i32(out + 4 * (cuda.blockIdx.x * NORM_THREADS + cuda.threadIdx.x), total)


@kernel(NORM_THREADS)
def multiply_tiles(out: Int, n_turns: Int):
    """`n_turns` times `PRODUCTS` products of 16 x 32 by 32 x 8 bytes a warp, on tensor cores."""
    sums = cuda.local.array(PRODUCTS, int32)
    word = np.uint32(cuda.threadIdx.x)
    for i in range(PRODUCTS):
        sums[i] = int32(i)
    for _ in range(n_turns):
        for i in range(PRODUCTS):
            a, b, c, d = multiply_signed(word, word, word, word, word, np.uint32(sums[i]), int32(0))
            sums[i] = int32(a ^ b ^ c ^ d)
    total = np.int64(0)
    for i in range(PRODUCTS):
        total += sums[i]
    store_i32(out + 4 * (cuda.blockIdx.x * NORM_THREADS + cuda.threadIdx.x), total)
