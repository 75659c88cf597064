"""From a kernel's Python to object code: Numba types it and writes LLVM code, LLVM optimizes the whole of it once.

Left to itself Numba optimizes and assembles each function a kernel is made of as a library of its own, and again at
every level of calls, which is two thirds of the time. Here its libraries keep what they are given; they are linked into
one module in which calls are inlined (kernels never recurse; `keep_own_frame` is the exception), and that is optimized
once.

Numba knows no other way than to lend its processor's context another code generator meanwhile. The names used for that
are not part of its published interface: `pyproject.toml` holds it to releases this was tested with.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cache

import llvmlite.binding as llvm
from numba import njit, types
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.registry import cpu_target

from phobos.kernels.cpu.code.simd import inlined
from phobos.kernels.cpu.compiling.entry import make_argument_loader

# Loops of constant length are unrolled up to this many instructions, for the tiles: LLVM's own bound is 300.
_UNROLL = 4000


class _UnoptimizedLibrary(JITCodeLibrary):
    """A function's LLVM code as Numba wrote it."""

    def _optimize_functions(self, module):
        pass

    def finalize(self):
        self._finalized = True

    def get_pointer_to_function(self, name):
        return 0  # nothing of this library is ever run

    def reached(self, found):
        """This library and all it calls, added to `found`; not Numba's runtime, since kernels allocate nothing."""
        if self not in found:
            found[self] = self._final_module
            for library in self._linking_libraries:
                if isinstance(library, _UnoptimizedLibrary):
                    library.reached(found)
        return found


class _UnoptimizedCodegen(JITCPUCodegen):
    _library_class = _UnoptimizedLibrary

    def set_env(self, name, env):
        pass


@cache
def _lent():
    """What the context is lent: a code generator, and a table for the functions Numba makes of its own accord."""
    return {"_internal_codegen": _UnoptimizedCodegen("phobos"), "cached_internal_func": {}}


@contextlib.contextmanager
def _lend(context) -> Iterator[None]:
    context.refresh()  # what it compiles for itself, once, is run
    kept = {name: getattr(context, name) for name in _lent()}
    vars(context).update(_lent())
    try:
        yield
    finally:
        vars(context).update(kept)


def write_module(function: Callable[..., None], parameters: tuple[type, ...]) -> llvm.ModuleRef:
    """A kernel and all it calls, not optimized; its C function is named `entry`."""
    body = inlined(function)
    load_arguments = make_argument_loader(parameters)

    def entry(step: int, thread: int, n_threads: int) -> None:
        body(*load_arguments(step), thread, n_threads)

    signature = (types.int64, types.int64, types.int64)
    with _lend(cpu_target.target_context):
        compiled = njit(signature, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(entry)
    result = compiled.overloads[signature]
    module = llvm.parse_assembly("")
    for part in result.library.reached({}).values():
        module.link_in(part, preserve=True)
    module.link_in(llvm.parse_assembly(_ENTRY.replace("NAME", result.fndesc.mangled_name)))
    for defined in module.functions:
        if not defined.is_declaration and defined.name != "entry":
            defined.linkage = "internal"
            if not any(b"noinline" in group for group in defined.attributes):
                defined.add_function_attribute("alwaysinline")
    module.verify()
    return module


# Numba's functions return a status and take the places of a result and of an error; kernels have neither.
_ENTRY = """
declare i32 @"NAME"(ptr, ptr, i64, i64, i64)
define void @entry(i64 %step, i64 %thread, i64 %n_threads) {
  %result = alloca ptr
  %error = alloca ptr
  %status = call i32 @"NAME"(ptr %result, ptr %error, i64 %step, i64 %thread, i64 %n_threads)
  ret void
}
"""


@cache
def _unroll_fully() -> None:
    llvm.set_option("phobos", f"-unroll-threshold={_UNROLL}")


def optimize(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    """Optimize a module for a machine, in place; floats are neither reassociated nor contracted."""
    _unroll_fully()
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    tuning = llvm.create_pipeline_tuning_options(speed_level=3)
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(module, builder)
