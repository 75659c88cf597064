"""Loads the code of kernels, compiles what is missing, and keeps it.

Code is kept under the user's cache directory (`PHOBOS_KERNEL_CACHE_DIR`; empty turns it off), in a folder named by a
hash of the versions of the compiler and toolkit and by the compute capability; a file's name ends in a hash of the
sources its kernel is made of. A warm start reads those files and never imports Numba.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from phobos.errors import PhobosError
from phobos.kernels import code_cache
from phobos.kernels.cuda.packed_types import PACKED
from phobos.kernels.cuda.ptx import CompileTarget, assemble, compile_to_ptx
from phobos.kernels.workers import Compiled, compile_in_processes, print_compiled


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
def _source_hash(module: str, families: tuple[str, ...]) -> str:
    """A hash of the source of a module and of some families of types, of what compiles them, and of all they import
    from this package."""
    modules = [f"code.{module}", *(f"code.types.{family}" for family in families), "ptx"]
    return code_cache.hash_sources("phobos.kernels.cuda", Path(__file__).parent, modules)


def _path(root: Path, name: str, target: CompileTarget, suffix: str) -> Path:
    """The file that holds something of a kernel: its "ptx", "cubin", or the assembler's "log"."""
    module, _, function = name.partition(":")
    folder = root / f"cuda-{code_cache.FORMAT}-{_toolkit_hash()}-sm{target[0]}{target[1]}"
    families = code_cache.find_families(function, {p.name: p.family for p in PACKED.values()})
    return folder / f"{module}.{function}-{_source_hash(module, families)}.{suffix}"


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
