"""Products of few rows with what follows them, in one launch: several matrices of one input side by side, rotation and
storing of their heads, a gated activation at the end of gate and up, a norm at the end of a product. The bits are those
of the kernels apart.

Theory. What follows needs values of several blocks of threads, so the last of those to come (see `arrives_last`) does
it: four blocks have 32 gates and 32 ups, which are a block of the quantized record; some neighbours have a head to
rotate; all blocks have the row to norm. Blocks of gate and up lie by turns in the grid, so that the four run at about
the same time.

Kernels are named by types, rows of activations at once and what follows, and made when first asked for:
`joined_q4_k_q6_k_1`, `rotated_q4_k_q6_k_1_f16_f16`, `gated_q4_k_8_silu`, `normed_q6_k_1`. Grid: x by 16 outputs, matrix
after matrix, y by rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from numba import boolean, cuda, float32

from phobos.gguf.quants import GGMLType
from phobos.kernels.cuda.code.activations import ALL_GATES
from phobos.kernels.cuda.code.formats import FLOAT_FORMATS, FORMATS
from phobos.kernels.cuda.code.intrinsics import arrives_last, device, load_f32, load_i32
from phobos.kernels.cuda.code.matmul import ROW_COUNTS, find_tile, make_outputs, make_rows
from phobos.kernels.cuda.code.moe import combine_value
from phobos.kernels.cuda.code.norm import N_WARPS, make_rms_row, put_value
from phobos.kernels.cuda.code.rope import STORE_KEY, STORE_VALUE, make_rotate_head
from phobos.kernels.cuda.declaration import Int, Kernel, kernel
from phobos.kernels.cuda.layout import BLOCK, ROWS_OF_BLOCK, THREADS, WARP
from phobos.kernels.cuda.packed_types import PACKED
from phobos.kernels.cuda.records import Input, Matrix, Norm, Pairs, Rotation

_KINDS = (*FORMATS, *FLOAT_FORMATS)
_norm_row = make_rms_row(THREADS)


def _make_put_joined(first_kind: GGMLType, second_kind: GGMLType, n_tile: int):
    """`put_joined(...)`: this block's outputs of one of three matrices; returns which, and its number among theirs."""
    put_first, put_second = make_outputs(first_kind, n_tile), make_outputs(second_kind, n_tile)
    are_alike = first_kind == second_kind

    @device
    def put_joined(x_at, row, last, x, first, second, third):
        matrix, block, chosen = 0, np.int64(cuda.blockIdx.x), first
        n_blocks = (first.n_out + ROWS_OF_BLOCK - 1) // ROWS_OF_BLOCK
        n_blocks_1 = (second.n_out + ROWS_OF_BLOCK - 1) // ROWS_OF_BLOCK
        if block >= n_blocks + n_blocks_1:
            matrix, block, chosen = 2, block - n_blocks - n_blocks_1, third
        elif block >= n_blocks:
            matrix, block, chosen = 1, block - n_blocks, second
        n_out = chosen.n_out
        o = block * ROWS_OF_BLOCK + (cuda.threadIdx.x >> 3)
        weight_row = chosen.first_row + min(o, n_out - 1)
        if are_alike or chosen.is_second == 0:
            put_first(
                x_at, chosen.codes, chosen.high, chosen.scales, chosen.bias, 0, chosen.out, weight_row, o, n_out,
                x.n_in, row, last, 4 * n_out, x.scale,
            )  # fmt: skip
        else:
            put_second(
                x_at, chosen.codes, chosen.high, chosen.scales, chosen.bias, 0, chosen.out, weight_row, o, n_out,
                x.n_in, row, last, 4 * n_out, x.scale,
            )  # fmt: skip
        return matrix, block

    return put_joined


def _make_joined(first_kind: GGMLType, second_kind: GGMLType, n_tile: int) -> Kernel:
    put_joined, find_rows = _make_put_joined(first_kind, second_kind, n_tile), make_rows(n_tile)

    def joined(x: Input, first: Matrix, second: Matrix, third: Matrix):
        """Up to three matrices; those of the second type say so, one that is not there has no outputs."""
        row, last = np.int64(cuda.blockIdx.y) * n_tile, load_i32(x.count_at)
        if row >= last:
            return
        x_at = cuda.local.array(n_tile, np.int64)
        find_rows(x_at, x.at, row, last, x.stride, 0, 1)
        put_joined(x_at, row, last, x, first, second, third)

    return _declare(joined, f"joined_{first_kind.name.lower()}_{second_kind.name.lower()}_{n_tile}")


def _make_rotated(first_kind: GGMLType, second_kind: GGMLType, n_tile: int, k_format: str, v_format: str) -> Kernel:
    put_joined, find_rows = _make_put_joined(first_kind, second_kind, n_tile), make_rows(n_tile)
    rotate_head = make_rotate_head(k_format, v_format)

    def rotated(x: Input, q: Matrix, k: Matrix, v: Matrix, rotation: Rotation, counters: Int):
        """Queries, keys and values, whose heads the last of their blocks rotate and store; see `rope.py`."""
        row, last = np.int64(cuda.blockIdx.y) * n_tile, load_i32(x.count_at)
        if row >= last:
            return
        flag = cuda.shared.array(1, boolean)
        x_at = cuda.local.array(n_tile, np.int64)
        find_rows(x_at, x.at, row, last, x.stride, 0, 1)
        matrix, block = put_joined(x_at, row, last, x, q, k, v)
        n_heads, n_kv_heads = rotation.n_heads, rotation.n_kv_heads
        n_blocks = (rotation.v_dim if matrix == 2 else rotation.k_dim) // ROWS_OF_BLOCK
        head = block // n_blocks + (0 if matrix == 0 else n_heads if matrix == 1 else n_heads + n_kv_heads)
        counter = counters + 4 * (cuda.blockIdx.y * (n_heads + 2 * n_kv_heads) + head)
        if arrives_last(counter, n_blocks, flag):
            for i in range(0, n_tile, THREADS // WARP):
                m = i + (cuda.threadIdx.x >> 5)
                if m < n_tile and row + m < last:
                    rotate_head(head, row + m, q.out, k.out, v.out, rotation)
                    cuda.syncwarp()

    kinds = f"{first_kind.name.lower()}_{second_kind.name.lower()}"
    return _declare(rotated, f"rotated_{kinds}_{n_tile}_{k_format}_{v_format}")


def _make_gated(kind: GGMLType, n_tile: int, activation: str) -> Kernel:
    put_outputs, find_rows, gate_of = make_outputs(kind, n_tile), make_rows(n_tile), ALL_GATES[activation]

    def gated(x: Input, gate: Matrix, up: Matrix, out: Int, out_codes: Int, counters: Int, pairs: Pairs):
        """Four blocks have 32 outputs: two of the gate, two of up."""
        matrix, row, last = find_tile(x.count_at, pairs.tiles, n_tile)
        if row >= last:
            return
        flag = cuda.shared.array(1, boolean)
        x_at = cuda.local.array(n_tile, np.int64)
        find_rows(x_at, x.at, row, last, x.stride, pairs.sources, pairs.divisor)
        number, n_out = np.int64(cuda.blockIdx.x) >> 2, gate.n_out
        chosen = gate
        if cuda.blockIdx.x & 2 != 0:
            chosen = up
        o = BLOCK * number + ROWS_OF_BLOCK * (cuda.blockIdx.x & 1) + (cuda.threadIdx.x >> 3)
        put_outputs(
            x_at, chosen.codes, chosen.high, chosen.scales, chosen.bias, 0, chosen.out,
            chosen.first_row + matrix * pairs.matrix_rows + o, o, n_out, x.n_in, row, last, 4 * n_out, x.scale,
        )  # fmt: skip
        counter = counters + 4 * (cuda.blockIdx.y * (n_out // BLOCK) + number)
        if arrives_last(counter, 4, flag):
            i = BLOCK * number + (cuda.threadIdx.x & 31)
            for r in range(row + (cuda.threadIdx.x >> 5), min(row + n_tile, last), THREADS // WARP):
                at = 4 * (n_out * r + i)
                put_value(out, out_codes, n_out, r, i, gate_of(load_f32(gate.out + at), load_f32(up.out + at)))

    return _declare(gated, f"gated_{kind.name.lower()}_{n_tile}_{activation}")


def _make_normed(kind: GGMLType) -> Kernel:
    put_outputs, find_rows = make_outputs(kind, 1), make_rows(1)

    def normed(x: Input, product: Matrix, residual: Int, norm: Norm, counters: Int):
        """One row."""
        last = load_i32(x.count_at)
        if last == 0:
            return
        flag, shared = cuda.shared.array(1, boolean), cuda.shared.array(N_WARPS, float32)
        x_at = cuda.local.array(1, np.int64)
        find_rows(x_at, x.at, np.int64(0), last, x.stride, 0, 1)
        o, n_out = np.int64(cuda.blockIdx.x) * ROWS_OF_BLOCK + (cuda.threadIdx.x >> 3), product.n_out
        put_outputs(
            x_at, product.codes, product.high, product.scales, product.bias, residual, product.out,
            product.first_row + min(o, n_out - 1), o, n_out, x.n_in, np.int64(0), last, 4 * n_out, x.scale,
        )  # fmt: skip
        if arrives_last(counters, np.int64(cuda.gridDim.x), flag):
            _norm_row(
                norm.out, norm.codes, product.out, norm.weight, norm.residual, np.int64(0), n_out, norm.eps, shared
            )

    return _declare(normed, f"normed_{kind.name.lower()}_1")


def _make_combined(kind: GGMLType) -> Kernel:
    put_outputs, find_rows = make_outputs(kind, 1), make_rows(1)

    def combined(
        x: Input, product: Matrix, pairs: Pairs, out: Int, routes: Int, residual: Int, n_used: Int, counters: Int
    ):
        """Experts' last product, a pair a tile as `moe.route` makes them, and `moe.combine`: the last of a row's pairs
        to come to 16 outputs adds them up."""
        matrix, row, last = find_tile(x.count_at, pairs.tiles, 1)
        if row >= last:
            return
        flag = cuda.shared.array(1, boolean)
        x_at = cuda.local.array(1, np.int64)
        find_rows(x_at, x.at, row, last, x.stride, 0, 1)
        o, n_out = np.int64(cuda.blockIdx.x) * ROWS_OF_BLOCK + (cuda.threadIdx.x >> 3), product.n_out
        put_outputs(
            x_at, product.codes, product.high, product.scales, product.bias, 0, product.out,
            matrix * pairs.matrix_rows + min(o, n_out - 1), o, n_out, x.n_in, row, last, 4 * n_out, np.float32(1),
        )  # fmt: skip
        row //= n_used
        counter = counters + 4 * (np.int64(cuda.gridDim.x) * row + cuda.blockIdx.x)
        if arrives_last(counter, n_used, flag):
            i = np.int64(cuda.blockIdx.x) * ROWS_OF_BLOCK + cuda.threadIdx.x
            if cuda.threadIdx.x < ROWS_OF_BLOCK and i < n_out:
                combine_value(out, product.out, routes, residual, row, i, n_out, n_used, 0)

    return _declare(combined, f"combined_{PACKED[kind].name}_1")


def _declare(function: Callable[..., None], name: str, min_blocks: int = 3) -> Kernel:
    function.__name__ = name
    return kernel(THREADS, min_blocks=min_blocks)(function)


def _makers() -> dict[str, Callable[[], Kernel]]:
    """How each kernel is made, by its name."""
    makers: dict[str, Callable[[], Kernel]] = {}
    for kind in _KINDS:
        name = PACKED[kind].name
        makers[f"normed_{name}_1"] = lambda kind=kind: _make_normed(kind)
        makers[f"combined_{name}_1"] = lambda kind=kind: _make_combined(kind)
        for n in ROW_COUNTS:
            for other in _KINDS:
                both = f"{name}_{PACKED[other].name}_{n}"
                makers[f"joined_{both}"] = lambda k=kind, o=other, n=n: _make_joined(k, o, n)
                for keys, values in itertools.product(STORE_KEY, STORE_VALUE):
                    makers[f"rotated_{both}_{keys}_{values}"] = lambda k=kind, o=other, n=n, f=keys, g=values: (
                        _make_rotated(k, o, n, f, g)
                    )
            for activation in ALL_GATES:
                makers[f"gated_{name}_{n}_{activation}"] = lambda k=kind, n=n, a=activation: _make_gated(k, n, a)
    return makers


_MAKERS = _makers()


def __getattr__(name: str) -> Kernel:
    if name not in _MAKERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = _MAKERS[name]()
    return found
