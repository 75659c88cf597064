"""The cache of compiled kernels on disk: what is in use stays, what nobody has read for long goes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from phobos.kernels import code_cache

OLD_DAYS = code_cache.KEPT_DAYS + 1


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PHOBOS_KERNEL_CACHE_DIR", str(tmp_path / "kernels"))
    code_cache.find_root.cache_clear()
    found = code_cache.find_root()
    assert found == tmp_path / "kernels"
    yield found
    code_cache.find_root.cache_clear()


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
    assert path.read_bytes() == b"second"
    assert [other.name for other in path.parent.iterdir()] == [path.name]


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
