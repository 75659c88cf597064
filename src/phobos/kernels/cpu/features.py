"""Which processor the kernels are compiled for, and the instructions that depend on it.

`CPU` is made once, at import. `PHOBOS_CPU_PATH` forces a narrower path than the host's: `avx512vnni`, `avxvnni`, `avx2`
on x86, `neon-i8mm`, `neon` on 64-bit ARM, `portable`. All paths give the same integers, and `fma` is fused everywhere,
so all give the same bits.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from phobos.errors import UsageError

_I8, _I16, _I32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
_V16I32 = ir.VectorType(_I32, 16)
_V64I8 = ir.VectorType(_I8, 64)


def _call(builder: Any, name: str, result: ir.Type, *args: Any) -> Any:
    function_type = ir.FunctionType(result, [a.type for a in args])
    module = builder.module
    function = module.globals.get(name) or ir.Function(module, function_type, name)
    return builder.call(function, args)


def _slice(builder: Any, value: Any, start: int, count: int) -> Any:
    mask = ir.Constant(ir.VectorType(_I32, count), list(range(start, start + count)))
    return builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), mask)


def _join(builder: Any, low: Any, high: Any) -> Any:
    mask = ir.Constant(ir.VectorType(_I32, 2 * low.type.count), list(range(2 * low.type.count)))
    return builder.shuffle_vector(low, high, mask)


def _dot4_avx512(builder: Any, acc: Any, unsigned: Any, signed: Any) -> Any:
    return _call(
        builder,
        "llvm.x86.avx512.vpdpbusd.512",
        _V16I32,
        acc,
        builder.bitcast(unsigned, _V16I32),
        builder.bitcast(signed, _V16I32),
    )


def _dot4_avxvnni(builder: Any, acc: Any, unsigned: Any, signed: Any) -> Any:
    """Two 256-bit halves of the same instruction."""
    u, s = builder.bitcast(unsigned, _V16I32), builder.bitcast(signed, _V16I32)
    parts = [
        _call(
            builder,
            "llvm.x86.avx512.vpdpbusd.256",
            ir.VectorType(_I32, 8),
            *(_slice(builder, v, start, 8) for v in (acc, u, s)),
        )
        for start in (0, 8)
    ]
    return _join(builder, *parts)


def _dot4_words(builder: Any, acc: Any, unsigned: Any, signed: Any) -> Any:
    """Even and odd bytes apart as 16-bit words, multiplied pairwise and added by `pmaddwd` (plain IR elsewhere).

    `pmaddubsw` would saturate for codes over 127, so it is not used.
    """
    v32i16 = ir.VectorType(_I16, 32)
    eight = ir.Constant(v32i16, [8] * 32)
    u, s = builder.bitcast(unsigned, v32i16), builder.bitcast(signed, v32i16)
    total = acc
    for u_words, s_words in (
        (builder.and_(u, ir.Constant(v32i16, [255] * 32)), builder.ashr(builder.shl(s, eight), eight)),
        (builder.lshr(u, eight), builder.ashr(s, eight)),
    ):
        products = builder.mul(
            builder.sext(u_words, ir.VectorType(_I32, 32)), builder.sext(s_words, ir.VectorType(_I32, 32))
        )
        undefined = ir.Constant(products.type, ir.Undefined)
        even, odd = (
            builder.shuffle_vector(products, undefined, ir.Constant(_V16I32, list(range(start, 32, 2))))
            for start in (0, 1)
        )
        total = builder.add(total, builder.add(even, odd))
    return total


def _quarters(builder: Any, value: Any) -> list[Any]:
    """A vector of 512 bits as four of 128."""
    count = value.type.count // 4
    return [_slice(builder, value, start, count) for start in range(0, 4 * count, count)]


def _join_quarters(builder: Any, parts: list[Any]) -> Any:
    return _join(builder, _join(builder, *parts[:2]), _join(builder, *parts[2:]))


def _make_neon_dot(instruction: str) -> Callable[[Any, Any, Any, Any], Any]:
    """`acc + dot(a, b)` by an instruction of 128 bits: `sdot` (both signed) or `usdot` (the first unsigned)."""
    v4i32 = ir.VectorType(_I32, 4)
    name = f"llvm.aarch64.neon.{instruction}.v4i32.v16i8"

    def dot(builder: Any, acc: Any, a: Any, b: Any) -> Any:
        parts = zip(*(_quarters(builder, v) for v in (acc, a, b)), strict=True)
        return _join_quarters(builder, [_call(builder, name, v4i32, *part) for part in parts])

    return dot


_dot4_usdot = _make_neon_dot("usdot")
_sdot = _make_neon_dot("sdot")


def _dot4_sdot(builder: Any, acc: Any, unsigned: Any, signed: Any) -> Any:
    """With codes less 128, which are signed; what that takes away, 128 times the other side, is taken away again from
    the sum with the sign turned. Its products are the same for all groups of a tile, so they are computed once."""
    least = ir.Constant(_V64I8, [-128] * 64)
    moved = _sdot(builder, acc, builder.xor(unsigned, least), signed)
    return builder.sub(moved, _sdot(builder, ir.Constant(_V16I32, [0] * 16), least, signed))


def _lookup_neon(builder: Any, table: Any, codes: Any) -> Any:
    first = _slice(builder, table, 0, 16)
    v16i8 = ir.VectorType(_I8, 16)
    parts = [_call(builder, "llvm.aarch64.neon.tbl1.v16i8", v16i8, first, part) for part in _quarters(builder, codes)]
    return _join_quarters(builder, parts)


def _lookup_avx512(builder: Any, table: Any, codes: Any) -> Any:
    return _call(builder, "llvm.x86.avx512.pshuf.b.512", _V64I8, table, codes)


def _lookup_avx2(builder: Any, table: Any, codes: Any) -> Any:
    halves = [
        _call(
            builder,
            "llvm.x86.avx2.pshuf.b",
            ir.VectorType(_I8, 32),
            *(_slice(builder, v, at, 32) for v in (table, codes)),
        )
        for at in (0, 32)
    ]
    return _join(builder, *halves)


def _lookup_select(builder: Any, table: Any, codes: Any) -> Any:
    """Four rounds of choosing between neighbours by a bit of the code; `table` is a constant."""
    entries = [ir.Constant(_V64I8, [table.constant[i].constant] * 64) for i in range(16)]
    for bit in range(4):
        mask = ir.Constant(_V64I8, [1 << bit] * 64)
        is_set = builder.icmp_unsigned("!=", builder.and_(codes, mask), ir.Constant(_V64I8, [0] * 64))
        entries = [builder.select(is_set, entries[i + 1], entries[i]) for i in range(0, len(entries), 2)]
    return entries[0]


@dataclass(frozen=True)
class InstructionPath:
    """A way to compile kernels: the LLVM target it is for, and how `dot4` and `look_up` are said in it."""

    name: str
    needs: frozenset[str]
    llvm_cpu: str | None  # None: the host itself
    llvm_features: str | None
    emit_dot4: Callable[[Any, Any, Any, Any], Any]
    has_f16c: bool
    emit_lookup: Callable[[Any, Any, Any], Any] = _lookup_select


_AVX2 = frozenset({"avx2", "fma", "f16c"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni"}
PATHS = (
    InstructionPath(
        "avx512vnni",
        _AVX512,
        None,
        None,
        _dot4_avx512,
        True,
        _lookup_avx512,
    ),
    InstructionPath(
        "avxvnni",
        _AVX2 | {"avxvnni"},
        "haswell",
        "+avx2,+fma,+f16c,+avxvnni,+bmi,+bmi2",
        _dot4_avxvnni,
        True,
        _lookup_avx2,
    ),
    InstructionPath("avx2", _AVX2, "haswell", "+avx2,+fma,+f16c,+bmi,+bmi2", _dot4_words, True, _lookup_avx2),
    InstructionPath("portable", frozenset(), "generic", "", _dot4_words, False),
)
# Half floats are part of every 64-bit ARM processor's instructions.
ARM_PATHS = (
    InstructionPath("neon-i8mm", frozenset({"neon", "i8mm"}), None, None, _dot4_usdot, True, _lookup_neon),
    InstructionPath("neon", frozenset({"neon", "dotprod"}), None, None, _dot4_sdot, True, _lookup_neon),
    InstructionPath("portable", frozenset(), None, None, _dot4_words, True),
)
_OTHER_PATHS = ARM_PATHS[-1:]


def paths_of(machine: str) -> tuple[InstructionPath, ...]:
    """The paths of a kind of machine, as `platform.machine` names it, widest first."""
    if machine in ("x86_64", "AMD64"):
        return PATHS
    return ARM_PATHS if machine in ("aarch64", "arm64", "ARM64") else _OTHER_PATHS


def choose_path(forced: str | None, features: frozenset[str], machine: str) -> InstructionPath:
    """The forced path, else the widest the host can run."""
    paths = paths_of(machine)
    if not forced:
        return next(path for path in paths if path.needs <= features)
    for path in paths:
        if path.name == forced:
            missing = path.needs - features
            if missing:
                raise UsageError(
                    f"PHOBOS_CPU_PATH={forced} needs {', '.join(sorted(missing))}, which this processor lacks"
                )
            return path
    raise UsageError(f"PHOBOS_CPU_PATH={forced} is unknown: use one of {', '.join(p.name for p in paths)}")


def host_features() -> frozenset[str]:
    """LLVM's names of what the host processor can do."""
    return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)


CPU = choose_path(os.environ.get("PHOBOS_CPU_PATH"), host_features(), platform.machine())


def target() -> tuple[str, str]:
    """LLVM's processor name and feature string for `CPU`."""
    if CPU.llvm_cpu is None:
        return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    return CPU.llvm_cpu, CPU.llvm_features or ""
