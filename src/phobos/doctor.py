"""Whether Phobos can run here, and what would make it run better: one check a row, each with what to do."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

from phobos import __version__, library
from phobos.errors import PhobosError
from phobos.host import machine
from phobos.settings import EngineSettings
from phobos.sizes import format_bytes

Status = Literal["ok", "warn", "blocked"]
SLOW_PATHS = {"portable": "no vector instructions are used", "avx2": "no VNNI instructions"}
MIN_FREE_BYTES = 500_000_000
LEAST_SHARE = 0.7  # of what the machine's own probes read, that a product has to reach
TRIAL_BYTES, LEAST_TRIAL_BYTES, TRIALS = 256 << 20, 32 << 20, 5  # of a trial of the kernels


@dataclass(frozen=True)
class Check:
    """One finding; `advice` is empty where all is well."""

    name: str
    status: Status
    text: str
    advice: str = ""


def examine(model: str | None) -> list[Check]:
    """All checks; `model` is what `--gguf` names."""
    checks: dict[str, Callable[[], Check]] = {
        "python": check_python,
        "processor": check_processor,
        "cores": check_cores,
        "memory": check_memory,
        "kernel cache": check_kernel_cache,
        "kernels": check_kernels,
        "backends": check_backends,
        "models": check_models_folder,
        "model": lambda: check_model(model),
    }
    return [_run(name, check) for name, check in checks.items()]


def is_runnable(checks: list[Check]) -> bool:
    """Whether nothing is blocked."""
    return all(check.status != "blocked" for check in checks)


def _run(name: str, check: Callable[[], Check]) -> Check:
    """A check that fails is a finding itself."""
    try:
        return check()
    except PhobosError as error:
        return Check(name, "blocked", str(error))


def check_python() -> Check:
    """The interpreter and the libraries that compile kernels."""
    versions = ", ".join(f"{name} {_version(name)}" for name in ("numba", "llvmlite", "numpy"))
    text = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}, {versions}"
    missing = [name for name in ("numba", "llvmlite", "numpy") if _version(name) == "missing"]
    if missing:
        return Check("python", "blocked", text, f"install {missing[0]}: pip install phobos")
    return Check("python", "ok", text)


def check_processor() -> Check:
    """The processor and the instruction path kernels are compiled for."""
    path = cpu_path()
    text = f"{machine.processor_name()}, kernels for {path}"
    if path in SLOW_PATHS:
        return Check("processor", "warn", text, f"{SLOW_PATHS[path]}, so models run slower than on newer processors")
    return Check("processor", "ok", text)


def check_cores() -> Check:
    """Cores this process may use, against those there are."""
    usable, there = machine.n_usable_cores(), os.cpu_count() or 1
    if usable < there:
        return Check("cores", "ok", f"{usable} of {there} may be used")
    return Check("cores", "ok", f"{usable}")


def check_memory() -> Check:
    """Whether there is memory for anything."""
    memory = machine.read_memory()
    if memory.available is None:
        return Check("memory", "ok", "unknown to this system" if memory.total is None else format_bytes(memory.total))
    limit = " (the container's limit)" if memory.limited else ""
    text = f"{format_bytes(memory.available)} free of {format_bytes(memory.total or 0)}{limit}"
    if memory.available < MIN_FREE_BYTES:
        return Check("memory", "warn", text, "close other programs: even the default model needs about 500 MB")
    return Check("memory", "ok", text)


def check_kernel_cache() -> Check:
    """Where compiled kernels are kept."""
    from phobos.kernels import code_cache
    from phobos.kernels.cpu.compiling.compiler import cache_folder

    if os.environ.get("PHOBOS_KERNEL_CACHE_DIR") == "":
        return Check(
            "kernel cache", "warn", "off", "PHOBOS_KERNEL_CACHE_DIR is empty, so every start compiles: unset it"
        )
    folder = cache_folder()
    if folder is None or not os.access(folder, os.W_OK):
        return Check(
            "kernel cache", "warn", "cannot be written", "set PHOBOS_KERNEL_CACHE_DIR to a folder you may write"
        )
    files = list(folder.glob("*.o"))
    n_damaged = sum(code_cache.read(file) is None for file in files)
    n_bytes = sum(file.stat().st_size for file in files)
    text = f"{folder}, {len(files)} kernels, {format_bytes(n_bytes)}"
    if n_damaged:
        return Check("kernel cache", "warn", f"{text}, {n_damaged} damaged", "they are compiled again when needed")
    return Check("kernel cache", "ok", text)


def check_kernels() -> Check:
    """Whether products of the types that were loaded on this machine read weights as fast as it can."""
    from phobos.bench.tensor_types import MATRIX_BYTES, measure_types
    from phobos.kernels.cpu.packed_types import PACKED
    from phobos.kernels.cpu.read_ahead import remembered
    from phobos.kernels.workers import usable_threads

    n_threads, available = usable_threads(), machine.read_memory().available
    n_bytes = TRIAL_BYTES if available is None else min(TRIAL_BYTES, available // 8)
    known = remembered(n_threads)
    kinds = {packed.name: kind for kind, packed in PACKED.items() if packed.name in known}
    if not kinds:
        return Check("kernels", "ok", "none tried yet: the first load of a model does")
    if n_bytes < LEAST_TRIAL_BYTES:
        return Check("kernels", "ok", "not tried, since there is little memory")
    region_bytes = n_bytes // MATRIX_BYTES * MATRIX_BYTES
    limits, results = measure_types(tuple(kinds.values()), n_threads, TRIALS, many=(), region_bytes=region_bytes)
    shares = ", ".join(f"{r.type} {r.share:.0%} (ahead by {r.ahead})" for r in results)
    text = f"memory gives {limits.read_gbs:.0f} GB/s; of that one row reads {shares}"
    slow = [r.type for r in results if r.share < LEAST_SHARE]
    if slow:
        advice = (
            f"decoding {', '.join(slow)} is slower than memory allows: try again with nothing beside, and report it"
        )
        return Check("kernels", "warn", text, advice)
    return Check("kernels", "ok", text)


def check_backends() -> Check:
    """What can compute."""
    if _version("numba-cuda") == "missing":
        return Check("backends", "ok", "cpu, reference")
    return Check("backends", "ok", f"cpu, reference; cuda by numba-cuda {_version('numba-cuda')}")


def check_models_folder() -> Check:
    """Whether models can be kept."""
    folder = library.models_dir()
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    free = shutil.disk_usage(existing).free
    text = f"{folder}, {len(library.list_models())} models, {format_bytes(free)} free"
    if not os.access(existing, os.W_OK):
        return Check("models", "warn", text, "the folder cannot be written: set PHOBOS_MODELS to one that can")
    return Check("models", "ok", text)


def check_model(name: str | None) -> Check:
    """The model file: sound, supported, and small enough."""
    from phobos.inspection import inspect_file
    from phobos.plan import make_plan

    path = library.resolve_model(name)
    report = inspect_file(path)
    text = f"{path.name}: {report.architecture}, {report.quantization}, {format_bytes(report.n_bytes)}"
    if report.problem is not None:
        return Check("model", "blocked", text, report.problem)
    plan = make_plan(EngineSettings(path))
    if not plan.fits:
        return Check("model", "blocked", text, plan.reason)
    return Check("model", "ok", text)


def cpu_path() -> str:
    """The name of the instruction path kernels are compiled for."""
    from phobos.kernels.cpu.features import CPU

    return CPU.name


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"


def version_text() -> str:
    """What `--version` prints: everything a report of a fault should name."""
    cache = check_kernel_cache()
    return "\n".join(
        (
            f"phobos {__version__}",
            f"numba {_version('numba')}, llvmlite {_version('llvmlite')}, Python {sys.version.split()[0]}",
            f"cpu path {cpu_path()}",
            f"kernel cache {cache.text}",
        )
    )
