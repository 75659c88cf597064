"""Compiles kernels with Numba to PTX, and on to a card's machine code; needs no card.

Multiplications and additions are never contracted: what must be fused is written so, hence a formula has the same bits
in every kernel that holds it.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from phobos.kernels.cuda.declaration import Int, Kernel, fields_of

CompileTarget = tuple[int, int]


def find_kernel(name: str) -> Kernel:
    """The declared kernel "module:function"."""
    module_name, _, function_name = name.partition(":")
    found = getattr(importlib.import_module(f"phobos.kernels.cuda.code.{module_name}"), function_name)
    if not isinstance(found, Kernel):
        raise TypeError(f"{name} is not a kernel")
    return found


def compile_to_ptx(name: str, targets: Sequence[CompileTarget]) -> list[str]:
    """PTX of a kernel for each target; needs no card."""
    from numba import types

    compiler, nvvm = _module("compiler"), _module("cudadrv.nvvm")
    declared = find_kernel(name)
    kinds = tuple(_numba_type(kind) for kind in declared.declared)
    with _compiling_for(targets[0]):
        compiled = compiler.compile_cuda(
            declared.function, types.void, kinds, debug=False, lineinfo=False, fastmath=False,
            nvvm_options={"opt": 3}, cc=targets[0],
        )  # fmt: skip
    entry = compiled.fndesc.llvm_func_name
    library = compiled.library
    function = library.get_function(entry)
    library._entry_name = entry
    compiler.kernel_fixup(function, False)
    nvvm.set_launch_bounds(function, (declared.n_threads, declared.min_blocks))
    texts = []
    for target in targets:
        options = {"opt": 3, "arch": f"compute_{target[0]}{target[1]}", "fma": False}
        ptx = nvvm.compile_ir(library.llvm_strs, **options).decode().strip("\0")
        texts.append(ptx.replace(entry, entry_name(name)))
    return texts


def _numba_type(declared: type) -> Any:
    """What Numba calls the type of a parameter; the fields of a record become parameters of the compiled code."""
    from numba import types

    kinds = [types.int64 if kind is Int else types.float32 for kind in fields_of(declared)]
    if not issubclass(declared, tuple):
        return kinds[0]
    make_record: Any = types.BaseTuple.from_types
    return make_record(kinds, declared)


def _module(name: str) -> Any:
    """A module of numba-cuda, which takes the place of Numba's own `numba.cuda`."""
    return importlib.import_module(f"numba.cuda.{name}")


@contextlib.contextmanager
def _compiling_for(target: CompileTarget) -> Iterator[None]:
    """Device functions are compiled for "the current device": without one, or for another, it is this."""
    dispatcher = _module("dispatcher")
    found = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=target)
    try:
        yield
    finally:
        dispatcher.get_current_device = found


def entry_name(name: str) -> str:
    """What a kernel's entry is called in its code."""
    return name.replace(":", "_")


def assemble(ptx: str, target: CompileTarget) -> tuple[bytes, str]:
    """Machine code of a PTX text, and what the assembler says of its registers and memory; needs no card."""
    from cuda.bindings import nvjitlink

    handle = nvjitlink.create(3, [f"-arch=sm_{target[0]}{target[1]}", "-O3", "-verbose"])
    try:
        data = ptx.encode()
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), "kernel.ptx")
        nvjitlink.complete(handle)
        code = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, code)
        log = bytearray(nvjitlink.get_info_log_size(handle))
        nvjitlink.get_info_log(handle, log)
    finally:
        nvjitlink.destroy(handle)
    return bytes(code), log.decode(errors="replace").strip("\0")
