"""Gate and up products with their activation and its quantization in one launch: what a gated MLP does before `down`.

The floats of gate and up never leave the caches. Same products, same epilogues and same order as the launches this
stands for, so the same bits. A work item is 32 outputs, a block of the quantized result.
"""

from __future__ import annotations

from functools import cache

from phobos.kernels.cpu.code import elementary
from phobos.kernels.cpu.code.access import load_i64, vload, vstore
from phobos.kernels.cpu.code.formats import Format, find_format
from phobos.kernels.cpu.code.matmul import make_stream, make_tile_sums
from phobos.kernels.cpu.code.norm import quantize_block
from phobos.kernels.cpu.code.sync import take_work
from phobos.kernels.cpu.declaration import Int, Kernel, kernel
from phobos.kernels.cpu.layout import BLOCK, GROUP, ROW_UNIT, STREAMED_ROWS, Header
from phobos.kernels.cpu.packed_types import PACKED, read_ahead_offset

_PASS, _SCRATCH, _SCRATCH_BYTES = 8 * Header.PASS, 8 * Header.SCRATCH, 8 * Header.SCRATCH_BYTES
_STREAM_BYTES = 64 * (STREAMED_ROWS + ROW_UNIT)  # a vector a row, for whole tiles of rows


def _make_gated(form: Format, activation, name: str) -> Kernel:
    stream, tile_sums = make_stream(form), make_tile_sums(form)
    values, record_bytes = form.kind.values, form.kind.record_bytes
    ahead_offset = read_ahead_offset(form.kind.name)

    def gated(
        out: Int, x: Int, gate: Int, up: Int, n_rows_at: Int, batch: Int, work: Int, n_out: Int, n_in: Int,
        thread, n_threads,
    ):  # fmt: skip
        n_rows = load_i64(n_rows_at)
        if n_rows == 0:
            return
        group_bytes = n_in // values * record_bytes
        x_stride = (n_in + 16 * (n_in // BLOCK) + 63) // 64 * 64
        out_stride = (n_out + 16 * (n_out // BLOCK) + 63) // 64 * 64
        n_blocks = n_out // BLOCK
        streamed = n_rows <= STREAMED_ROWS
        unit = max(1, n_blocks // (8 * n_threads)) if streamed else 1
        hidden = load_i64(batch + _SCRATCH) + thread * load_i64(batch + _SCRATCH_BYTES)  # the block's first half
        scratch = hidden + 64 * n_rows
        pass_number, ahead = load_i64(batch + _PASS), batch + ahead_offset
        while True:
            item = take_work(work, pass_number, (n_blocks + unit - 1) // unit)
            if item < 0:
                return
            for b in range(item * unit, min(item * unit + unit, n_blocks)):
                for half in range(BLOCK // GROUP):
                    at = (2 * b + half) * group_bytes
                    if streamed:
                        gates, ups, step = scratch, scratch + _STREAM_BYTES, 64
                        stream(gate + at, x, x_stride, n_rows, n_in, ahead, gates)
                        stream(up + at, x, x_stride, n_rows, n_in, ahead, ups)
                    else:
                        gates = tile_sums(gate + at, up - gate, 2, x, x_stride, n_rows, n_in, ahead, scratch)
                        ups, step = gates + 64, 128
                    for row in range(n_rows):
                        value = activation(vload(gates + step * row)) * vload(ups + step * row)
                        if half == 0:
                            vstore(hidden + 64 * row, value)
                        else:
                            quantize_block(out + out_stride * row, n_out, b, vload(hidden + 64 * row), value)

    gated.__name__ = name
    return kernel(gated)


@cache
def __getattr__(name: str) -> Kernel:
    """`gated_TYPE_ACTIVATION`: made when asked for, since there are as many as types times activations."""
    for kind in {packed.name for packed in PACKED.values()}:
        head = f"gated_{kind}_"
        activation = getattr(elementary, name.removeprefix(head), None) if name.startswith(head) else None
        form = find_format(kind) if activation is not None else None
        if isinstance(form, Format):
            return _make_gated(form, activation, name)
    raise AttributeError(f"no kernel {name}")
