"""Compiles kernels with Numba, keeps their object code, and loads it again without Numba.

Compiled, a kernel (`declaration.py`) is a C function `void (int64 step, int64 thread, int64 n_threads)`, so the team's
loop calls any of them through the address that stands in the record.

The object code is kept under the user's cache directory (`PHOBOS_KERNEL_CACHE_DIR`; empty turns it off). The folder's
name is a hash of the versions of Numba, llvmlite and Python and of the processor; a file's name ends in a hash of the
sources its kernel is made of. A warm start reads those files and never imports Numba. Processes that want the same
kernel at once wait for one of them to compile it.

Step record: 24 words of 8 bytes: the function's address, the flags, then up to 22 arguments (a float as the bits of a
float32).
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import hashlib
import importlib
import importlib.metadata
import os
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from phobos.kernels import code_cache
from phobos.kernels.cpu.compiling.machine import make_target_machine
from phobos.kernels.cpu.declaration import Kernel
from phobos.kernels.cpu.features import CPU, target
from phobos.kernels.cpu.layout import FIRST_ARGUMENT, RECORD_WORDS
from phobos.kernels.cpu.packed_types import FAMILIES
from phobos.kernels.workers import Compiled, compile_in_processes, print_compiled


def encode_record(address: int, flags: int, arguments: Iterable[int | float]) -> bytes:
    """A step record."""
    values = tuple(arguments)
    return _record_of(tuple(map(type, values))).pack(address, flags, *values)


@cache
def _record_of(kinds: tuple[type, ...]) -> struct.Struct:
    """A record whose arguments are of these types; each has a word."""
    words = "".join("f4x" if issubclass(kind, float) else "q" for kind in kinds)
    return struct.Struct(f"<qq{words}{8 * (RECORD_WORDS - FIRST_ARGUMENT - len(kinds))}x")


# Object code


def _compile(declared: Kernel) -> bytes:
    """Object code of a kernel's C function, which is named `entry`."""
    from phobos.kernels.cpu.compiling.emit import optimize, write_module

    module = write_module(declared.function, declared.parameters)
    optimize(module, _target_machine())
    return bytes(_target_machine().emit_object(module))


_target_machine = cache(make_target_machine)


# What object code may refer to beside itself. LLVM resolves all of it or none, and in a process without Numba it knows
# none of it.
_C_FUNCTIONS = ("sched_yield", "SwitchToThread", "fmaf", "rintf", "sqrtf", "memcpy", "memmove", "memset")


@cache
def _provide_symbols() -> None:
    if os.name == "nt":
        libraries = [ctypes.CDLL("ucrtbase"), ctypes.CDLL("kernel32")]
    else:
        libraries = [ctypes.CDLL(None), ctypes.CDLL(ctypes.util.find_library("m"))]

    def address(name: str) -> int | None:
        found = (getattr(library, name) for library in libraries if hasattr(library, name))
        return next((ctypes.cast(function, ctypes.c_void_p).value for function in found), None)

    for name in _C_FUNCTIONS:
        found = address(name)
        if found is not None and llvm.address_of_symbol(name) is None:
            llvm.add_symbol(name, found)


_engines: list[Any] = []  # loaded code lives as long as the process


def _load(object_code: bytes) -> int:
    """Address of `entry` in object code."""
    _provide_symbols()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), make_target_machine())  # which it owns from now on
    engine.add_object_file(llvm.ObjectFileRef.from_data(object_code))
    engine.finalize_object()
    _engines.append(engine)
    return int(engine.get_function_address("entry"))


# The cache


@cache
def cache_folder() -> Path | None:
    """Where object code is kept, or None where the cache is off or the folder cannot be written."""
    root = code_cache.find_root()
    if root is None:
        return None
    parts = (
        code_cache.FORMAT,
        *map(importlib.metadata.version, ("numba", "llvmlite")),
        sys.version,
        CPU.name,
        *target(),
    )
    digest = hashlib.sha256("\0".join(parts).encode())
    folder = root / digest.hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        code_cache.warn_of(folder, error)
        return None
    return folder


@dataclass(frozen=True)
class LoadedKernel:
    """What loading one kernel took: `seconds` of compiling, 0 when it came from the cache."""

    name: str
    address: int
    seconds: float

    @property
    def cached(self) -> bool:
        """Whether the code was there already."""
        return self.seconds == 0.0


_loaded: dict[str, LoadedKernel] = {}


def load_kernels(
    names: Iterable[str], report: Callable[[LoadedKernel], None] = lambda loaded: None
) -> Mapping[str, int]:
    """Addresses of kernels named "module:function", compiled where the cache has no code for them: by as many
    processes as there are processors, since Numba compiles one at a time in each."""
    wanted, folder = list(dict.fromkeys(names)), cache_folder()
    missing = []
    for name in wanted:
        if name not in _loaded and not _load_file(folder, name, 0.0):
            missing.append(name)
            continue
        report(_loaded[name])
    for compiled in _compile_all(folder, missing):
        name, pieces = compiled.name, compiled.pieces
        if pieces and folder is not None:
            code_cache.warn_unkept(folder)
        if not pieces and not _load_file(folder, name, compiled.seconds):
            pieces = _compile_into(None, name).pieces  # what was just written cannot be read
        for code in pieces:
            _loaded[name] = LoadedKernel(name, _load(code), compiled.seconds)
        report(_loaded[name])
    if missing:
        code_cache.forget_unused()
    return {name: _loaded[name].address for name in wanted}


def version_of(name: str) -> str:
    """The name of a kernel's code: another where a source that it is made of is another."""
    module, _, function = name.partition(":")
    families = code_cache.find_families(function, FAMILIES)
    return f"{module}.{function}-{_source_hash(module, families)}"


def _path(folder: Path, name: str) -> Path:
    return folder / f"{version_of(name)}.o"


@cache
def _source_hash(module: str, families: tuple[str, ...]) -> str:
    """A hash of the source of a module and of some families of types, of what compiles them, and of all they import
    from this package."""
    folder = Path(__file__).parent.parent
    modules = [f"code.{module}", *(f"code.types.{family}" for family in families)]
    return code_cache.hash_sources("phobos.kernels.cpu", folder, [*modules, "compiling.emit", "compiling.machine"])


def _load_file(folder: Path | None, name: str, seconds: float) -> bool:
    """Load a kernel from the cache; False where it has no sound code for it."""
    code = code_cache.read(_path(folder, name)) if folder is not None else None
    if code is not None:
        _loaded[name] = LoadedKernel(name, _load(code), seconds)
    return code is not None


def _compile_all(folder: Path | None, names: list[str]) -> Iterator[Compiled]:
    """Compile kernels into `folder`; yields each as it is done."""
    # Longest first, dealt out in turn, so that the shares end at about the same time.
    ordered = sorted(names, key=lambda name: not name.startswith(("attention:attention", "matmul:")))
    arguments = [str(folder) if folder is not None else ""]
    yield from compile_in_processes(__name__, arguments, ordered, lambda name: _compile_into(folder, name))


def _compile_into(folder: Path | None, name: str) -> Compiled:
    """Compile a kernel into the cache, unless another process has just done it. Its code is returned where the cache
    cannot take it."""
    started = time.perf_counter()
    if folder is None:
        code = _compile(find_kernel(name))
        return Compiled(name, time.perf_counter() - started, (code,))
    path = _path(folder, name)
    pieces: tuple[bytes, ...] = ()
    with _locked(path.with_suffix(".lock")):
        if code_cache.read(path) is None:
            code = _compile(find_kernel(name))
            if not code_cache.write(path, code):
                pieces = (code,)
    return Compiled(name, time.perf_counter() - started, pieces)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock file, where the system has such locks and the disk takes the file; it goes with the process."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            file = stack.enter_context(path.open("w"))
            if os.name == "posix":
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def find_kernel(name: str) -> Kernel:
    """The declared kernel "module:function"."""
    module_name, _, function_name = name.partition(":")
    found = getattr(importlib.import_module(f"phobos.kernels.cpu.code.{module_name}"), function_name)
    if not isinstance(found, Kernel):
        raise TypeError(f"{name} is not a kernel")
    return found


ENTRY_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def main(arguments: list[str]) -> None:
    """A worker: compile kernels into a folder, and print each name with its seconds."""
    folder, *names = arguments
    print_compiled(names, lambda name: _compile_into(Path(folder) if folder else None, name))
