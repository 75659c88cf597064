"""The cache of compiled kernels on disk: what is in use stays, what nobody has read for long goes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from phobos.kernels import code_cache
from phobos.kernels.workers import Compiled

OLD_DAYS = code_cache.KEPT_DAYS + 1


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PHOBOS_KERNEL_CACHE_DIR", str(tmp_path / "kernels"))
    code_cache.find_root.cache_clear()
    found = code_cache.find_root()
    assert found == tmp_path / "kernels"
    yield found
    code_cache.find_root.cache_clear()


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is warned of, however the log is set up by then."""
    found: list[str] = []
    monkeypatch.setattr(code_cache.logger, "warning", lambda text, *values: found.append(text % values))
    return found


def put(path: Path, days: float) -> Path:
    """A file that was written or read so many days ago."""
    code_cache.write(path, b"code")
    then_s = time.time() - 86400 * days
    os.utime(path, (then_s, then_s))
    return path


def test_what_nobody_reads_goes(root: Path) -> None:
    gone = [
        put(root / "a" / "matmul.matmul-0123456789ab.o", OLD_DAYS),
        put(root / "a" / "matmul.matmul-0123456789ab.lock", OLD_DAYS),
        put(root / "b" / "norm.rms_norm-0123456789ab.cubin.77.part", OLD_DAYS),
    ]
    kept = [
        put(root / "a" / "matmul.matmul-ba9876543210.o", code_cache.KEPT_DAYS - 1),
        put(root / "c" / "server.log", OLD_DAYS),
        put(root / "notes.log", OLD_DAYS),
    ]
    code_cache.forget_unused()
    assert not any(path.exists() for path in gone)
    assert all(path.exists() for path in kept)
    assert not (root / "b").exists()


def test_what_is_read_stays(root: Path) -> None:
    path = put(root / "a" / "matmul.matmul-0123456789ab.o", OLD_DAYS)
    assert code_cache.read(path) == b"code"
    code_cache.forget_unused()
    assert path.exists()


def test_files_come_whole(root: Path) -> None:
    """A reader never sees half of one, and nothing is left beside it."""
    path = root / "a" / "matmul.matmul-0123456789ab.o"
    code_cache.write(path, b"first")
    code_cache.write(path, b"second")
    assert code_cache.read(path) == b"second"
    assert [other.name for other in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("damage", ["empty", "half", "zeros", "bit", "longer"])
def test_damaged_code_counts_as_missing(root: Path, damage: str, warned: list[str]) -> None:
    path = root / "a" / "matmul.matmul-0123456789ab.o"
    code_cache.write(path, b"code" * 100)
    data = path.read_bytes()
    flipped = bytes([*data[:-1], data[-1] ^ 1])
    path.write_bytes(
        {"empty": b"", "half": data[:200], "zeros": bytes(len(data)), "bit": flipped, "longer": data + b"x"}[damage]
    )
    assert code_cache.read(path) is None
    assert len(warned) == 1 and str(path) in warned[0]


def test_a_disk_that_refuses_is_named_once(root: Path, warned: list[str]) -> None:
    (root / "full").write_text("a file where a folder should be")
    for name in ("matmul.matmul-0123456789ab.o", "norm.rms_norm-0123456789ab.o"):
        assert not code_cache.write(root / "full" / name, b"code")
    assert [text.count(str(root / "full")) for text in warned] == [1]


def test_compiled_code_travels_in_a_line() -> None:
    for pieces in ((), (b"\0code\n", b"", b"log")):
        compiled = Compiled("norm:quantize", 1.5, pieces)
        assert Compiled.from_line(compiled.to_line()) == compiled


def run_kernel(folder: str, first: str = "", names: Sequence[str] = ("probe:read_memory",)) -> CompletedProcess[str]:
    """Load kernels in a process of its own whose cache is `folder`, and say which came from there."""
    program = (
        f"import logging; logging.basicConfig(format='%(message)s'); {first}\n"
        "from phobos.kernels.cpu.compiling.compiler import load_kernels\n"
        f"load_kernels({list(names)}, lambda loaded: print(loaded.name, loaded.cached, loaded.address != 0))"
    )
    environment = {**os.environ, "PHOBOS_KERNEL_CACHE_DIR": folder}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)


def test_a_start_survives_a_damaged_cache(tmp_path: Path) -> None:
    """It compiles again, mends the file, and the next start is warm."""
    folder = tmp_path / "kernels"
    assert run_kernel(str(folder)).stdout == "probe:read_memory False True\n"
    (path,) = folder.glob("*/*.o")
    path.write_bytes(path.read_bytes()[:1000])
    mended = run_kernel(str(folder))
    assert (mended.returncode, mended.stdout) == (0, "probe:read_memory False True\n")
    assert "damaged" in mended.stderr
    assert run_kernel(str(folder)).stdout == "probe:read_memory True True\n"


@pytest.mark.skipif(os.name != "posix", reason="needs a limit on the size of files")
def test_a_start_survives_a_full_disk(tmp_path: Path) -> None:
    """Compiled by several processes, which hand their code over instead."""
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))"
    names = ("probe:read_memory", "probe:multiply_codes")
    done = run_kernel(str(tmp_path / "kernels"), full, names)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, [f"{name} False True" for name in sorted(names)])
    assert "Traceback" not in done.stderr
    assert done.stderr.count(str(tmp_path / "kernels")) == 1  # by whoever reads: the compiling processes are not heard
    assert not list(tmp_path.glob("kernels/*/*.o*"))


def test_a_start_survives_a_cache_that_is_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    folder.write_text("not a folder")
    done = run_kernel(str(folder))
    assert (done.returncode, done.stdout) == (0, "probe:read_memory False True\n")
    assert done.stderr.count(str(folder)) == 1 and "Traceback" not in done.stderr


def test_no_cache_is_wanted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Then nothing is looked for in anybody's folders."""
    code_cache.find_root.cache_clear()
    monkeypatch.setenv("PHOBOS_KERNEL_CACHE_DIR", "")
    stray = put(tmp_path / "a" / "matmul.matmul-0123456789ab.o", OLD_DAYS)
    assert code_cache.find_root() is None
    code_cache.forget_unused()
    assert stray.exists()
    code_cache.find_root.cache_clear()


def test_a_hash_follows_imports(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("from some.package.b import x\n")
    (tmp_path / "b.py").write_text("x = 1\n")
    (tmp_path / "c.py").write_text("y = 1\n")
    before = code_cache.hash_sources("some.package", tmp_path, ["a"])
    (tmp_path / "c.py").write_text("y = 2\n")
    assert code_cache.hash_sources("some.package", tmp_path, ["a"]) == before
    (tmp_path / "b.py").write_text("x = 2\n")
    assert code_cache.hash_sources("some.package", tmp_path, ["a"]) != before
