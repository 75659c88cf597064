"""Sizes as people write them, log lines as `grep` reads them, and what the machine says of its memory."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import time
from pathlib import Path

import pytest

from phobos import log, sizes
from phobos.errors import UsageError
from phobos.host import machine


@pytest.mark.parametrize(
    ("n", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (98_362_432, "98.4 MB"), (1_117_320_768, "1.12 GB")]
)
def test_format_bytes(n: int, text: str) -> None:
    assert sizes.format_bytes(n) == text


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ("0", 0),
        ("4194304", 4 << 20),
        ("4M", 4 << 20),
        ("4MiB", 4 << 20),
        ("4MB", 4_000_000),
        ("1.5k", 1536),
        ("2 GB", 2 * 10**9),
    ],
)
def test_parse_bytes(text: str, n: int) -> None:
    assert sizes.parse_bytes(text) == n


@pytest.mark.parametrize("text", ["", "M", "-1", "4X", "four", "1e9", "4 M B"])
def test_parse_bytes_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        sizes.parse_bytes(text)


@pytest.mark.parametrize(("s", "text"), [(0.314, "0.31 s"), (12.2, "12 s"), (185, "3 min 05 s"), (7500, "2 h 05 min")])
def test_format_seconds(s: float, text: str) -> None:
    assert sizes.format_seconds(s) == text


@pytest.mark.parametrize(("n", "text"), [(8192, "8192"), (134_515_008, "135M"), (1_543_714_304, "1.54B")])
def test_format_count(n: int, text: str) -> None:
    assert sizes.format_count(n) == text


Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("level", "seen"),
    [("off", []), ("info", ["info"]), ("debug", ["info", "debug"]), ("trace", ["info", "debug", "trace"])],
)
def test_levels(capsys: Capture, monkeypatch: pytest.MonkeyPatch, level: str, seen: list[str]) -> None:
    monkeypatch.setenv("PHOBOS_LOG", level)
    log.configure()
    logger = logging.getLogger("phobos.http")
    for number in (logging.INFO, logging.DEBUG, log.TRACE):
        logger.log(number, "hello")
    assert log.flush()
    assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == seen


def test_a_line_is_one_line(capsys: Capture) -> None:
    log.configure("info")
    logging.getLogger("phobos.serve").info("listening on %s\nfoo", "http://127.0.0.1:1")
    assert log.flush()
    pattern = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} info serve: listening on http://127\.0\.0\.1:1 foo\n"
    assert re.fullmatch(pattern, capsys.readouterr().err)


def test_a_wrong_level_says_the_right_ones() -> None:
    with pytest.raises(UsageError, match="use off, info, debug or trace"):
        log.configure("loud")


def test_redirect_takes_every_line_and_gives_back(capsys: Capture) -> None:
    log.configure("info")
    elsewhere = io.StringIO()
    with log.redirect(logging.StreamHandler(elsewhere)):
        logging.getLogger("phobos.serve").info("mine")
        logging.getLogger("other.library").warning("theirs")
    logging.getLogger("phobos.serve").info("after")
    assert log.flush()
    assert elsewhere.getvalue().split() == ["mine", "theirs"]
    assert re.fullmatch(r"\S+ info serve: after\n", capsys.readouterr().err)


def test_nobody_waits_for_a_reader_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, encoding="utf-8") as lines, os.fdopen(writing, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(sys, "__stderr__", stream)
        log.configure("info")
        logger, began_s = logging.getLogger("phobos.http"), time.monotonic()
        n_lines = 3 * log.MOST_LINES
        for i in range(n_lines):
            logger.info("line %d %s", i, "x" * 40)
        assert not log.flush(0.05)
        assert time.monotonic() - began_s < 5
        for seen, line in enumerate(lines):
            if dropped := re.search(r"warning log: (\d+) lines were dropped", line):
                assert seen + int(dropped[1]) == n_lines and seen >= log.MOST_LINES
                break
        logger.info("and on")
        assert "and on" in next(lines) and log.flush()


def test_what_libraries_warn_of_goes_the_same_way(capsys: Capture) -> None:
    log.configure("info")
    assert isinstance(logging.lastResort, log.QueueHandler) and logging.lastResort.level == logging.WARNING
    logging.lastResort.handle(logging.LogRecord("asyncio", logging.ERROR, "", 0, "%s", ("broken",), None))
    assert log.flush()
    assert re.fullmatch(r"\S+ error asyncio: broken\n", capsys.readouterr().err)


def write_system(root: Path, *, total_kb: int, free_kb: int, limit: str, used: int = 0, cache: int = 0) -> None:
    (root / "proc").mkdir()
    (root / "proc/meminfo").write_text(f"MemTotal: {total_kb} kB\nMemAvailable: {free_kb} kB\n")
    (root / "group").mkdir()
    (root / "group/memory.max").write_text(limit)
    (root / "group/memory.current").write_text(str(used))
    (root / "group/memory.stat").write_text(f"anon 5\ninactive_file {cache}\n")


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("max", machine.Memory(8_192_000, 4_096_000)),
        ("2000000", machine.Memory(2_000_000, 1_600_000, limited=True)),
        ("9000000000", machine.Memory(8_192_000, 4_096_000)),
    ],
)
def test_memory_is_the_containers_where_that_is_less(tmp_path: Path, limit: str, expected: machine.Memory) -> None:
    write_system(tmp_path, total_kb=8000, free_kb=4000, limit=limit, used=500_000, cache=100_000)
    assert machine.read_memory(tmp_path / "proc", tmp_path / "group") == expected


def test_memory_nobody_tells_is_unknown(tmp_path: Path) -> None:
    assert machine.read_memory(tmp_path, tmp_path).available is None
