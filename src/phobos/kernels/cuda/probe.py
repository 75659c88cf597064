"""What a card can do at most with 8-bit dot products: for measuring, not for computing."""

from __future__ import annotations

import numpy as np
from numba import cuda, int32

from phobos.kernels.cuda.compiler import Int, kernel
from phobos.kernels.cuda.intrinsics import dot4_signed, store_i32
from phobos.kernels.cuda.layout import NORM_THREADS

PRODUCTS = 8  # of one turn, independent of one another


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
