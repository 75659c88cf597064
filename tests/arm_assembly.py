"""Compile a kernel for 64-bit ARM on any machine, and print its assembly.

    python arm_assembly.py PATH FEATURES KERNEL

PATH is one of `features.ARM_PATHS`, FEATURES what LLVM is told of the processor, KERNEL "module:function". A process of
its own, because the path is fixed once kernels are imported.
"""

from __future__ import annotations

import platform
import sys

import llvmlite.binding as llvm

from phobos.kernels.cpu import features


def lower(name: str) -> str:
    """The kernel's LLVM code, which no machine code is made of here."""
    from numba import types
    from numba.core import compiler
    from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.cpu import CPUContext
    from numba.core.registry import cpu_target

    from phobos.kernels.cpu.compiler import find_kernel
    from phobos.kernels.cpu.entry import make_argument_loader
    from phobos.kernels.cpu.simd import inlined

    # What stands for a compiled function's address; a fresh object each, since Numba tells functions apart by it.
    CPUContext.get_executable = lambda self, library, description, environment: [].append
    JITCodeLibrary._finalize_specific = lambda self: None
    JITCPUCodegen._add_module = lambda self, module: None
    declared = find_kernel(name)
    body = inlined(declared.function)
    load_arguments = make_argument_loader(declared.parameters)

    def entry(step: int, thread: int, n_threads: int) -> None:
        body(*load_arguments(step), thread, n_threads)

    flags = compiler.Flags()
    flags.no_compile = True
    flags.error_model = "numpy"
    context, target = cpu_target.typing_context, cpu_target.target_context
    arguments = (types.int64, types.int64, types.int64)
    library = compiler.compile_extra(context, target, entry, arguments, types.void, flags, {}).library
    with global_compiler_lock:
        library.finalize()
    return str(library.get_llvm_str())


def assemble(code: str, told: str) -> str:
    """Assembly of LLVM code for a 64-bit ARM processor that can what LLVM is told."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple("aarch64-unknown-linux-gnu").create_target_machine(features=told, opt=3)
    module = llvm.parse_assembly(code)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    return str(machine.emit_assembly(module))


def main(path: str, told: str, name: str) -> None:
    """Print the assembly."""
    features.CPU = next(p for p in features.ARM_PATHS if p.name == path)  # type: ignore[misc]
    platform.machine = lambda: "aarch64"
    print(assemble(lower(name), told))


if __name__ == "__main__":
    main(*sys.argv[1:])
