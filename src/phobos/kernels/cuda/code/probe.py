"""What a card can do at most with 8-bit products, apart and on tensor cores: for measuring, not for computing."""

from __future__ import annotations

import numpy as np
from numba import cuda, int32

from phobos.kernels.cuda.code.intrinsics import device, dot4_signed, multiply_signed, store_i32
from phobos.kernels.cuda.declaration import Int, Kernel, kernel
from phobos.kernels.cuda.layout import NORM_THREADS

PRODUCTS = 8  # of one turn, independent of one another
TILE_OPERATIONS = 2 * 16 * 32 * 8  # of one product on tensor cores


@device
def _dot(total, word):
    return dot4_signed(total, word, np.uint32(total))


@device
def _multiply_tile(total, word):
    a, b, c, d = multiply_signed(word, word, word, word, word, np.uint32(total), int32(0))
    return int32(a ^ b ^ c ^ d)


def _make_probe(name: str, product) -> Kernel:
    def probe(out: Int, n_turns: Int):
        sums = cuda.local.array(PRODUCTS, int32)
        word = np.uint32(cuda.threadIdx.x)
        for i in range(PRODUCTS):
            sums[i] = int32(i)
        for _ in range(n_turns):
            for i in range(PRODUCTS):
                sums[i] = product(sums[i], word)
        total = np.int64(0)
        for i in range(PRODUCTS):
            total += sums[i]
        store_i32(out + 4 * (cuda.blockIdx.x * NORM_THREADS + cuda.threadIdx.x), total)

    probe.__name__ = name
    return kernel(NORM_THREADS)(probe)


# `n_turns` times `PRODUCTS` products: dot products of four a thread; and of 16 x 32 by 32 x 8 bytes a warp, on tensor
# cores.
multiply = _make_probe("multiply", _dot)
multiply_tiles = _make_probe("multiply_tiles", _multiply_tile)
