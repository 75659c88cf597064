"""Candidates for the next token, ordered and partly sorted in place: what `sampling.py` is made of.

A candidate is one int64: the integer of its logit's bits above, the complement of its id below, so one comparison
orders by logit, then by lowest id. Candidates lie in an array at `order`, the weights that belong to them in an array
of float32 at `weights`.
"""

from __future__ import annotations

import numpy as np

from phobos.kernels.cpu.code.access import load_f32, load_i32, load_i64, store_f32, store_i64
from phobos.kernels.cpu.code.simd import inlined

_ID_MASK = 0x7FFFFFFF


@inlined
def candidate_of(at, token):
    """The candidate of `token`, whose value is at an address."""
    bits = np.int64(load_i32(at))
    key = bits ^ ((bits >> 63) & 0x7FFFFFFF)
    if key == -1:  # -0.0, which equals 0.0
        key = np.int64(0)
    return (key << 32) + (_ID_MASK - token)


@inlined
def token_of(candidate):
    """The token of a candidate."""
    return _ID_MASK - (candidate & _ID_MASK)


@inlined
def swap(order, i, j):
    """Exchange two candidates."""
    held = load_i64(order + 8 * i)
    store_i64(order + 8 * i, load_i64(order + 8 * j))
    store_i64(order + 8 * j, held)


@inlined
def swap_weights(weights, i, j):
    """Exchange two weights."""
    held = load_f32(weights + 4 * i)
    store_f32(weights + 4 * i, load_f32(weights + 4 * j))
    store_f32(weights + 4 * j, held)


@inlined
def divide(order, weights, low, high):
    """Hoare's partition of candidates `low` to `high` (with their weights, unless those are at 0): returns the last
    of the greater part, which is never all of them."""
    pivot = load_i64(order + 8 * ((low + high) // 2))
    i, j = low - 1, high + 1
    while True:
        i += 1
        while load_i64(order + 8 * i) > pivot:
            i += 1
        j -= 1
        while load_i64(order + 8 * j) < pivot:
            j -= 1
        if i >= j:
            return j
        swap(order, i, j)
        if weights != 0:
            swap_weights(weights, i, j)


@inlined
def select_top(order, n, k):
    """Move the `k` greatest of the first `n` to the front, in no particular order (Hoare's selection)."""
    low, high = 0, n - 1
    while low < high:
        j = divide(order, 0, low, high)
        if k <= j:
            high = j
        elif k > j + 1:
            low = j + 1
        else:
            return


@inlined
def select_mass(order, weights, start, n, target):
    """Move the shortest run of greatest candidates whose weights reach `target` to `start`; return where it ends.

    The same selection among candidates `start` to `n`, led by the sum of the weights of the greater part.
    """
    low, high = start, n - 1
    before = 0.0
    while low < high:
        j = divide(order, weights, low, high)
        held = 0.0
        for i in range(low, j + 1):
            held += load_f32(weights + 4 * i)
        if before + held >= target:
            high = j
        else:
            before += held
            low = j + 1
    return low + 1


@inlined
def sift(order, root, n):
    """Restore the heap (least on top) below `root`."""
    while True:
        child = 2 * root + 1
        if child >= n:
            return
        if child + 1 < n and load_i64(order + 8 * child + 8) < load_i64(order + 8 * child):
            child += 1
        if load_i64(order + 8 * root) <= load_i64(order + 8 * child):
            return
        swap(order, root, child)
        root = child


@inlined
def sort_descending(order, n):
    """Heapsort of the first `n`, greatest first."""
    for i in range(n // 2):
        sift(order, n // 2 - 1 - i, n)
    for i in range(n - 1):
        swap(order, 0, n - 1 - i)
        sift(order, 0, n - 1 - i)
