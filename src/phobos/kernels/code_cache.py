"""Where compiled kernels are kept between starts: a folder of the user's, one file a kernel, named by its sources.

A new version of Phobos, of what compiles or of the processor asks for other files; those nobody has asked for in
`KEPT_DAYS` are removed when something is compiled. Each load of a file notes that it is in use, by its time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path

KEPT_DAYS = 60
_DAY_S = 86400
_OURS = re.compile(r"\w+\.\w+-[0-9a-f]{12}\.(o|lock|cubin|ptx|log)(\.\d+\.part)?")


@cache
def find_root() -> Path | None:
    """The folder for all kinds of code, or None where there is to be none or it cannot be made."""
    named = os.environ.get("PHOBOS_KERNEL_CACHE_DIR")
    if named == "":
        return None
    root = Path(named or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "phobos" / "kernels")
    with contextlib.suppress(OSError):
        root.mkdir(parents=True, exist_ok=True)
    return root if os.access(root, os.W_OK) else None


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


def read(path: Path) -> bytes:
    """A file of the cache, which is in use from now on."""
    data = path.read_bytes()
    with contextlib.suppress(OSError):  # a cache that came with an image may be another user's
        if time.time() - path.stat().st_mtime > _DAY_S:
            os.utime(path)
    return data


def write(path: Path, data: bytes) -> None:
    """A file of the cache, whole or not at all: of several writers, each of which writes aside, the last wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(f"{path.suffix}.{os.getpid()}.part")
    aside.write_bytes(data)
    aside.replace(path)


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
