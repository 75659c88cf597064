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


def target_machine(path: str) -> llvm.TargetMachine:
    """What code for a path is made by."""
    triple, processor, told = TARGETS[path]
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(triple).create_target_machine(cpu=processor, features=told, opt=3)


def assemble(code: str, path: str) -> str:
    """Assembly of LLVM code."""
    machine = target_machine(path)
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


def main(path: str, name: str) -> None:
    """Print the assembly."""
    machine = "aarch64" if TARGETS[path][0].startswith("aarch64") else "x86_64"
    features.CPU = next(p for p in features.paths_of(machine) if p.name == path)  # type: ignore[misc]
    platform.machine = lambda: machine
    from phobos.kernels.cpu.compiling.compiler import find_kernel
    from phobos.kernels.cpu.compiling.emit import optimize, write_module

    declared = find_kernel(name)
    module = write_module(declared.function, declared.parameters)
    target = target_machine(path)
    optimize(module, target)
    print(target.emit_assembly(module))


if __name__ == "__main__":
    main(*sys.argv[1:])
