"""Where compiled kernels are kept between starts: a folder of the user's, one file a kernel, named by its sources.

A file is a SHA-256 of the code, then the code. Loading damaged code would end the process, so a file that does not
match counts as missing. A full disk or a folder that cannot be written does not stop a start either: one warning names
the folder, and the code is used from memory.

A new version of Phobos, of the compiler or of the processor uses other file names; files unused for `KEPT_DAYS` are
removed when something is compiled. Loading a file updates its time.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import time
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

logger = logging.getLogger("phobos.load")

KEPT_DAYS = 60
FORMAT = "2"  # of the files; part of the names of their folders
_DIGEST_BYTES = hashlib.sha256().digest_size
_DAY_S = 86400
_OURS = re.compile(r"\w+\.\w+-[0-9a-f]{12}\.(o|lock|cubin|ptx|log)(\.\d+\.part)?")


@cache
def find_root() -> Path | None:
    """The folder for all kinds of code, or None where there is to be none or it cannot be made."""
    named = os.environ.get("PHOBOS_KERNEL_CACHE_DIR")
    if named == "":
        return None
    root = Path(named or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "phobos" / "kernels")
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        warn_of(root, error)
        return None
    return root if os.access(root, os.W_OK) else None


@cache
def _warn_once(folder: Path, reason: str) -> None:
    logger.warning(
        "compiled kernels are not kept, so every start compiles: %s: %s (PHOBOS_KERNEL_CACHE_DIR names another folder)",
        folder,
        reason,
    )


def warn_unkept(folder: Path) -> None:
    """Say once that a folder took no code from the process that compiled it, whose own words nobody hears."""
    _warn_once(folder, "the code could not be written")


def warn_of(folder: Path, error: OSError) -> None:
    """Say once why a folder holds no code."""
    _warn_once(folder, error.strerror or str(error))


def hash_sources(package: str, folder: Path, modules: Iterable[str]) -> str:
    """A hash of the sources of `modules` ("code.norm") of the package in `folder`, and of all they import from it."""
    imports = re.compile(rf"^from {re.escape(package)}\.([\w.]+) import (.+)$", re.MULTILINE)
    sources: dict[str, str] = {}
    pending = list(modules)
    while pending:
        name = pending.pop()
        if name in sources:
            continue
        path = folder / name.replace(".", "/")
        if path.is_dir():
            continue
        sources[name] = path.with_suffix(".py").read_text(encoding="utf-8")
        for module, names in imports.findall(sources[name]):
            within = folder / module.replace(".", "/")
            pending += [module, *(f"{module}.{n}" for n in re.findall(r"\w+", names) if (within / f"{n}.py").exists())]
    return hashlib.sha256("\0".join(sources[name] for name in sorted(sources)).encode()).hexdigest()[:12]


def find_families(function: str, families: Mapping[str, str]) -> tuple[str, ...]:
    """The families of the packed types that a kernel's name names, since it is made of their files too; `families` by
    the names of types."""
    words = f"_{function}_"
    return tuple(sorted({family for name, family in families.items() if f"_{name}_" in words}))


def read(path: Path) -> bytes | None:
    """A file of the cache, which is in use from now on; None where there is none or it is damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, code = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if hashlib.sha256(code).digest() != digest:
        logger.warning("the compiled kernel %s is damaged and will be compiled again", path)
        return None
    with contextlib.suppress(OSError):  # a cache that came with an image may be another user's
        if time.time() - path.stat().st_mtime > _DAY_S:
            os.utime(path)
    return code


def write(path: Path, code: bytes) -> bool:
    """Write a file of the cache, whole or not at all: each writer writes aside, and the last wins. False where the disk
    refuses."""
    aside = path.with_suffix(f"{path.suffix}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as file:
            file.write(hashlib.sha256(code).digest() + code)
            file.flush()
            os.fsync(file.fileno())  # else a crash soon after may leave a file of the right name and length, but empty
        aside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        warn_of(path.parent, error)
        return False
    return True


def forget_unused() -> None:
    """Remove what no start has read for `KEPT_DAYS`, nothing that is not by its name ours; what cannot be removed
    stays."""
    root, oldest_s = find_root(), time.time() - KEPT_DAYS * _DAY_S
    for folder in root.iterdir() if root is not None else ():
        with contextlib.suppress(OSError):
            old = [path for path in folder.iterdir() if _OURS.fullmatch(path.name) and path.stat().st_mtime < oldest_s]
            for path in old:
                path.unlink()
            if old:
                folder.rmdir()  # only where it is empty now
