"""Compiles kernels with Numba to PTX and on to a card's machine code, and keeps that.

A kernel is a Python function whose annotated parameters (`Int`, `Float`) are 8-byte integers (addresses are integers)
and float32. `kernel(n)` says how many threads a block of it has. Multiplications and additions are never contracted:
what must be fused is written so, hence a formula has the same bits in every kernel that holds it.

Code is kept under the user's cache directory (`PHOBOS_KERNEL_CACHE_DIR`; empty turns it off), in a folder named by a
hash of the versions of the compiler and toolkit and by the compute capability; a file's name ends in a hash of the
sources its kernel is made of. A warm start reads those files and never imports Numba.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.metadata
import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from phobos.errors import PhobosError
from phobos.kernels import code_cache
from phobos.kernels.workers import Compiled, compile_in_processes, print_compiled

Int = int
Float = float
CompileTarget = tuple[int, int]


@dataclass(frozen=True)
class Kernel:
    """A kernel's source, its parameters in order, the threads of a block, and how many blocks a multiprocessor should
    hold at least, which bounds the registers."""

    function: Callable[..., None]
    parameters: tuple[type, ...]
    n_threads: int
    min_blocks: int

    @property
    def name(self) -> str:
        """Module and function, as `load_code` takes it."""
        return f"{self.function.__module__.rpartition('.')[2]}:{self.function.__name__}"


def kernel(n_threads: int, min_blocks: int = 1) -> Callable[[Callable[..., None]], Kernel]:
    """Declare a kernel; it is compiled when first loaded."""

    def declare(function: Callable[..., None]) -> Kernel:
        hints = inspect.get_annotations(function, eval_str=True)
        return Kernel(
            function, tuple(hints[name] for name in inspect.signature(function).parameters), n_threads, min_blocks
        )

    return declare


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
    kinds = tuple(types.int64 if kind is Int else types.float32 for kind in declared.parameters)
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


# The cache


@cache
def _toolkit_hash() -> str:
    """A hash of the versions of what makes code."""
    packages = ("numba-cuda", "numba", "cuda-bindings", "nvidia-nvvm", "nvidia-nvjitlink")
    return hashlib.sha256("\0".join(map(_version, packages)).encode()).hexdigest()[:12]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


@cache
def _source_hash(module: str) -> str:
    """A hash of a module's source and of all it imports from this package."""
    return code_cache.hash_sources("phobos.kernels.cuda", Path(__file__).parent, [f"code.{module}"])


def _path(root: Path, name: str, target: CompileTarget, suffix: str) -> Path:
    """The file that holds something of a kernel: its "ptx", "cubin", or the assembler's "log"."""
    module, _, function = name.partition(":")
    folder = root / f"cuda-{code_cache.FORMAT}-{_toolkit_hash()}-sm{target[0]}{target[1]}"
    return folder / f"{module}.{function}-{_source_hash(module)}.{suffix}"


@dataclass(frozen=True)
class CompiledKernel:
    """What loading one kernel gave: its machine code, its PTX, what the assembler said, and the seconds of compiling, 0
    when all came from the cache."""

    name: str
    code: bytes
    ptx: str
    log: str
    seconds: float

    @property
    def cached(self) -> bool:
        """Whether the code was there already."""
        return self.seconds == 0.0


def load_code(
    names: Iterable[str],
    targets: Sequence[CompileTarget],
    report: Callable[[CompiledKernel], None] = lambda kernel: None,
) -> Mapping[tuple[str, CompileTarget], CompiledKernel]:
    """Code of kernels named "module:function" for each target, compiled by several processes where the cache has none;
    `report` hears of the first target's."""
    wanted = list(dict.fromkeys(names))
    loaded: dict[tuple[str, CompileTarget], CompiledKernel] = {}
    root = code_cache.find_root()

    def load(name: str, seconds: float, pieces: tuple[bytes, ...] | None) -> bool:
        if pieces is None:
            return False
        for i, target in enumerate(targets):
            code, ptx, log = pieces[len(_SUFFIXES) * i : len(_SUFFIXES) * (i + 1)]
            loaded[name, target] = CompiledKernel(name, code, ptx.decode(), log.decode(), seconds)
        report(loaded[name, targets[0]])
        return True

    missing = [name for name in wanted if not load(name, 0.0, _read(root, name, targets))]
    arguments = [str(root or ""), ",".join(f"{major}.{minor}" for major, minor in targets)]
    for compiled in compile_in_processes(__name__, arguments, missing, lambda name: _compile_into(root, name, targets)):
        pieces = compiled.pieces or _read(root, compiled.name, targets)
        if not load(compiled.name, compiled.seconds, pieces):  # what was just written cannot be read
            load(compiled.name, compiled.seconds, _compile_into(None, compiled.name, targets).pieces)
    if missing:
        code_cache.forget_unused()
    return loaded


def _read(root: Path | None, name: str, targets: Sequence[CompileTarget]) -> tuple[bytes, ...] | None:
    """The pieces of a kernel's code for all targets, as `_compile_into` orders them; None unless all are there."""
    if root is None:
        return None
    pieces = [code_cache.read(_path(root, name, target, suffix)) for target in targets for suffix in _SUFFIXES]
    return tuple(piece for piece in pieces if piece is not None) if None not in pieces else None


_SUFFIXES = ("cubin", "ptx", "log")


def _compile_into(root: Path | None, name: str, targets: Sequence[CompileTarget]) -> Compiled:
    """Compile a kernel into the cache's folders. Its code is returned where the cache cannot take it."""
    started = time.perf_counter()
    pieces: list[bytes] = []
    n_kept = 0
    try:
        for target, ptx in zip(targets, compile_to_ptx(name, targets), strict=True):
            code, log = assemble(ptx, target)
            for suffix, data in zip(_SUFFIXES, (code, ptx.encode(), log.encode()), strict=True):
                pieces.append(data)
                n_kept += root is not None and code_cache.write(_path(root, name, target, suffix), data)
    except Exception as error:
        versions = " and ".join(f"{major}.{minor}" for major, minor in targets)
        raise PhobosError(
            f"the kernel {name} does not compile for compute capability {versions} ({error}): "
            "install the newest phobos[cuda], or use --device cpu"
        ) from error
    return Compiled(name, time.perf_counter() - started, () if n_kept == len(pieces) else tuple(pieces))


def main(arguments: list[str]) -> None:
    """A worker: compile kernels into a folder for some targets, and print each name with its seconds."""
    root, listed, *names = arguments
    targets = [(int(major), int(minor)) for major, minor in (text.split(".") for text in listed.split(","))]
    print_compiled(names, lambda name: _compile_into(Path(root) if root else None, name, targets))
