"""Arguments that belong together, as the host gives them and kernels take them. No Numba here.

A kernel's parameter may be such a record. In its code the record is a named tuple; in a launch its fields are arguments
like any other, in order, so a record costs nothing.
"""

from __future__ import annotations

from typing import NamedTuple


class Input(NamedTuple):
    """Rows of activations: the address of the first, that of their number, values and bytes of each, and what products
    with them are multiplied with."""

    at: int
    count_at: int
    n_in: int
    stride: int
    scale: float


class Matrix(NamedTuple):
    """A product's result, 0 where it is not stored, and its weights: three planes, bias (0: none), the first row that
    is used, and how many are; `is_second` where a kernel knows two types and they are of the second."""

    out: int = 0
    codes: int = 0
    high: int = 0
    scales: int = 0
    bias: int = 0
    first_row: int = 0
    n_out: int = 0
    is_second: int = 0


class Pairs(NamedTuple):
    """Which rows go to which of many matrices: tiles of pairs (0: one matrix), the row of the input of each pair, times
    `divisor` (0: the pair's own), and the rows of a matrix. See `code/matmul.py`."""

    tiles: int = 0
    sources: int = 0
    divisor: int = 1
    matrix_rows: int = 0


class Norm(NamedTuple):
    """An RMS norm: where its floats and its quantized record go (0: none), weight, residual (0: none), epsilon."""

    out: int
    codes: int
    weight: int
    residual: int
    eps: float


class Rotation(NamedTuple):
    """What must be known to rotate and store heads, but for the heads and the number of rows: cosines and sines, slot
    0 of the cache and the bytes from slot to slot and head to head, where each row goes, the shape, and norms of heads
    (0: none)."""

    table: int
    keys: int
    values: int
    key_slot: int
    value_slot: int
    key_head: int
    value_head: int
    places: int
    slots: int
    n_heads: int
    n_kv_heads: int
    k_dim: int
    v_dim: int
    n_pairs: int
    is_neox: int
    q_norm: int
    k_norm: int
    eps: float


Record = Input | Matrix | Pairs | Norm | Rotation
