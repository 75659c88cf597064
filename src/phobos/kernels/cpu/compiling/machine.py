"""The machine that object code is for."""

from __future__ import annotations

from functools import cache

import llvmlite.binding as llvm

from phobos.kernels.cpu.features import target


@cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def make_target_machine() -> llvm.TargetMachine:
    """LLVM's description of this processor, with the options that all kernels are compiled and loaded with."""
    _initialize()
    cpu, features = target()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=cpu, features=features, opt=3, reloc="default", codemodel="jitdefault", jit=True
    )
