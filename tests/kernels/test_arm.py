"""The paths of 64-bit ARM: their meaning, run here with the instruction replaced by plain code, and their assembly."""

from __future__ import annotations

import ctypes

import llvmlite.binding as llvm
import numpy as np
import pytest
from llvmlite import ir

import assembly
from phobos.errors import UsageError
from phobos.kernels.cpu.features import ARM_PATHS, InstructionPath, choose_path

I8, I32 = ir.IntType(8), ir.IntType(32)
DOT = {"sdot": "sext", "usdot": "zext"}  # how the first operand is widened
ENTRIES = tuple((37 * i + 5) % 256 for i in range(16))
FAST = ARM_PATHS[:2]


def emit(path: InstructionPath) -> str:
    """LLVM code of `dot(acc, unsigned, signed)`, in place, and `look_up(codes)`."""
    module = ir.Module()
    words, codes = ir.VectorType(I32, 16), ir.VectorType(I8, 64)
    kind = ir.FunctionType(ir.VoidType(), [words.as_pointer(), codes.as_pointer(), codes.as_pointer()])
    function = ir.Function(module, kind, "dot")
    builder = ir.IRBuilder(function.append_basic_block())
    operands = [builder.load(argument, align=1) for argument in function.args]
    builder.store(path.emit_dot4(builder, *operands), function.args[0], align=1)
    builder.ret_void()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [codes.as_pointer()]), "look_up")
    builder = ir.IRBuilder(function.append_basic_block())
    table = ir.Constant(codes, [ir.Constant(I8, entry) for entry in ENTRIES * 4])
    builder.store(path.emit_lookup(builder, table, builder.load(function.args[0], align=1)), function.args[0], align=1)
    builder.ret_void()
    return str(module)


def replace_instructions(code: str) -> str:
    """The same with the instructions of ARM written out, so that this machine can run it."""
    plain = []
    for name, widen in DOT.items():
        operands = '(<4 x i32> %".1", <16 x i8> %".2", <16 x i8> %".3")'
        declared = f'declare <4 x i32> @"llvm.aarch64.neon.{name}.v4i32.v16i8"{operands}'
        if declared in code:
            lines = [
                f'define <4 x i32> @"plain.{name}"(<4 x i32> %acc, <16 x i8> %a, <16 x i8> %b) {{',
                f"%wa = {widen} <16 x i8> %a to <16 x i32>",
                "%wb = sext <16 x i8> %b to <16 x i32>",
                "%p = mul <16 x i32> %wa, %wb",
            ]
            for i in range(4):
                lanes = ", ".join(f"i32 {4 * lane + i}" for lane in range(4))
                lines.append(f"%p{i} = shufflevector <16 x i32> %p, <16 x i32> undef, <4 x i32> <{lanes}>")
            lines += [
                "%s0 = add <4 x i32> %p0, %p1", "%s1 = add <4 x i32> %p2, %p3", "%s2 = add <4 x i32> %s0, %s1",
                "%s3 = add <4 x i32> %acc, %s2", "ret <4 x i32> %s3", "}",
            ]  # fmt: skip
            plain.append("\n".join(lines))
            code = code.replace(declared, "").replace(f'@"llvm.aarch64.neon.{name}.v4i32.v16i8"', f'@"plain.{name}"')
    look_up = 'declare <16 x i8> @"llvm.aarch64.neon.tbl1.v16i8"(<16 x i8> %".1", <16 x i8> %".2")'
    lines = ['define <16 x i8> @"plain.tbl"(<16 x i8> %table, <16 x i8> %index) {']
    for i in range(16):
        before = "undef" if i == 0 else f"%v{i - 1}"
        lines += [
            f"%i{i} = extractelement <16 x i8> %index, i32 {i}",
            f"%e{i} = extractelement <16 x i8> %table, i8 %i{i}",
            f"%v{i} = insertelement <16 x i8> {before}, i8 %e{i}, i32 {i}",
        ]
    lines += ["ret <16 x i8> %v15", "}"]
    assert look_up in code
    code = code.replace(look_up, "").replace('@"llvm.aarch64.neon.tbl1.v16i8"', '@"plain.tbl"')
    return "\n".join([code, *plain, *lines])


@pytest.mark.parametrize("path", FAST, ids=lambda path: path.name)
def test_the_instructions_are_used(path: InstructionPath) -> None:
    text = assembly.assemble(emit(path), path.name)
    assert "\tusdot\t" in text if path.name == "neon-i8mm" else "\tsdot\t" in text
    assert "\ttbl\t" in text


@pytest.mark.parametrize("path", FAST, ids=lambda path: path.name)
def test_they_give_the_exact_integers(path: InstructionPath) -> None:
    """Every code against every other, the largest together included."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(replace_instructions(emit(path))), machine)
    engine.finalize_object()
    pointer = ctypes.c_void_p
    dot = ctypes.CFUNCTYPE(None, pointer, pointer, pointer)(engine.get_function_address("dot"))
    draw = np.random.default_rng(4)
    for _ in range(200):
        unsigned = draw.integers(0, 256, 64, dtype=np.uint8)
        signed = draw.integers(-128, 128, 64, dtype=np.int8)
        unsigned[:4], signed[:4] = 255, -128
        acc = draw.integers(-1000, 1000, 16, dtype=np.int32)
        want = acc + (unsigned.astype(np.int32) * signed).reshape(16, 4).sum(axis=1)
        dot(acc.ctypes.data, unsigned.ctypes.data, signed.ctypes.data)
        assert np.array_equal(acc, want)
    codes = draw.integers(0, 16, 64, dtype=np.uint8)
    want_entries = np.array(ENTRIES, np.uint8)[codes]
    ctypes.CFUNCTYPE(None, pointer)(engine.get_function_address("look_up"))(codes.ctypes.data)
    assert np.array_equal(codes, want_entries)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["matmul:matmul_q4_k", "matmul:matmul_iq4_nl", "attention:attention_q8_0_q8_0"])
@pytest.mark.parametrize("path", FAST, ids=lambda path: path.name)
def test_whole_kernels_compile(path: InstructionPath, kernel: str) -> None:
    text = assembly.assembly_of(path.name, kernel)
    assert ("\tusdot\t" if path.name == "neon-i8mm" else "\tsdot\t") in text


def test_choice() -> None:
    everything = frozenset({"neon", "dotprod", "i8mm"})
    assert choose_path(None, everything, "aarch64").name == "neon-i8mm"
    assert choose_path(None, frozenset({"neon", "dotprod"}), "arm64").name == "neon"
    assert choose_path(None, frozenset({"neon"}), "aarch64").name == "portable"
    assert choose_path("neon", everything, "ARM64").name == "neon"
    with pytest.raises(UsageError, match="PHOBOS_CPU_PATH=avx2 is unknown: use one of neon-i8mm, neon, portable"):
        choose_path("avx2", everything, "aarch64")
    with pytest.raises(UsageError, match="PHOBOS_CPU_PATH=neon needs dotprod, which this processor lacks"):
        choose_path("neon", frozenset({"neon"}), "aarch64")
