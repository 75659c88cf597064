"""The types that are floats in the file and in memory: F32, F16, BF16."""

from __future__ import annotations

from phobos.kernels.cpu.code.access import load_u32, store_u32, vload, vload_bf16, vload_f16
from phobos.kernels.cpu.code.simd import inlined
from phobos.kernels.cpu.code.types.record import FloatFormat, put_half


@inlined
def _pack_f32(out, source, table, lane):
    store_u32(out + 4 * lane, load_u32(source))


@inlined
def _pack_f16(out, source, table, lane):
    put_half(out, source, lane)


FORMATS = {"f32": FloatFormat(vload, 4), "f16": FloatFormat(vload_f16, 2), "bf16": FloatFormat(vload_bf16, 2)}
PACKERS = {"f32": _pack_f32, "f16": _pack_f16, "bf16": _pack_f16}
