"""Compile a kernel for any processor on any machine, and print its assembly.

    python assembly.py PATH KERNEL

PATH is an instruction path of `features.py`, KERNEL "module:function". A process of its own, because the path is fixed
once kernels are imported.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import llvmlite.binding as llvm

from phobos.kernels.cpu import features

#: What LLVM is told for each path: triple, processor, features.
TARGETS = {
    "avx512vnni": ("x86_64-unknown-linux-gnu", "sapphirerapids", ""),
    "avx2": ("x86_64-unknown-linux-gnu", "haswell", ""),
    "neon-i8mm": ("aarch64-unknown-linux-gnu", "generic", "+neon,+i8mm"),
    "neon": ("aarch64-unknown-linux-gnu", "generic", "+neon,+dotprod"),
}


def assemble(code: str, path: str) -> str:
    """Assembly of LLVM code."""
    triple, processor, told = TARGETS[path]
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=processor, features=told, opt=3)
    module = llvm.parse_assembly(code)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    return str(machine.emit_assembly(module))


def assembly_of(path: str, kernel: str) -> str:
    """A kernel's assembly, made in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, str(Path(__file__)), path, kernel]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


@dataclass(frozen=True)
class Work:
    """What the blocks of straight code around a kind of instruction take: how many of it, of all, and of those that
    touch the stack."""

    n_wanted: int
    n_instructions: int
    n_stack: int


def count_work(assembly: str, mnemonic: str) -> Work:
    """Over all blocks that have the instruction at least four times: the hot loops, unrolled."""
    wanted = instructions = stack = 0
    for block in re.split(r"^[^\s#][^\n]*:.*$", assembly, flags=re.MULTILINE):
        lines = [line for line in block.splitlines() if re.match(r"\t[a-z]", line)]
        n = sum(line.startswith("\t" + mnemonic) for line in lines)
        if n >= 4:
            wanted += n
            instructions += len(lines)
            stack += sum("(%rsp" in line or "(%rbp" in line for line in lines)
    return Work(wanted, instructions, stack)


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


def main(path: str, name: str) -> None:
    """Print the assembly."""
    is_arm = TARGETS[path][0].startswith("aarch64")
    if not is_arm and features.paths_of(platform.machine()) == features.PATHS:
        import numba  # it optimizes for a processor too: for this one, whatever runs here

        numba.config.CPU_NAME, numba.config.CPU_FEATURES = TARGETS[path][1], ""
    machine = "aarch64" if is_arm else "x86_64"
    features.CPU = next(p for p in features.paths_of(machine) if p.name == path)  # type: ignore[misc]
    platform.machine = lambda: machine
    print(assemble(lower(name), path))


if __name__ == "__main__":
    main(*sys.argv[1:])
