"""The page `make bench` writes, from made-up measurements."""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "measure" / "write_benchmarks.py"
RESULTS = [
    {
        "run": "pp512",
        "median": 812.3,
        "low": 790.0,
        "high": 820.0,
        "weights_gbs": 0.0,
        "peer_median": 400.0,
        "ratio": 2.03,
    },
    {
        "run": "tg128",
        "median": 30.0,
        "low": 29.0,
        "high": 31.5,
        "weights_gbs": 30.0,
        "peer_median": None,
        "ratio": None,
    },
]
FOUND: dict[str, Any] = {
    "phobos": "1.2", "model": "a model", "quantization": "Q4_K_M", "processor": "a processor", "path": "avx2",
    "threads": 2, "limits": {"read_gbs": 40.0, "int8_gops": 900.0}, "results": RESULTS,
}  # fmt: skip


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("write_benchmarks", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_model_and_its_peer(script: Any) -> None:
    lines = script.write_table(FOUND)
    assert "The machine reads 40.0 GB/s, multiplies 900 Gop/s (int8)." in lines
    assert "| pp512 | 812.3 | 790.0-820.0 |  |  | 400.0 | 2.03 |" in lines
    assert "| tg128 | 30.0 | 29.0-31.5 | 30.0 | 75% |  |  |" in lines


def test_models_are_files_and_what_is_in_folders(script: Any, tmp_path: Path) -> None:
    for name, size in (("b.gguf", 3), ("a.gguf", 1), ("c.txt", 2)):
        (tmp_path / name).write_bytes(bytes(size))
    other = tmp_path / "other.gguf"
    other.write_bytes(bytes(2))
    folder = tmp_path / "none"
    folder.mkdir()
    assert [model.name for model in script.find_models([tmp_path])] == ["a.gguf", "other.gguf", "b.gguf"]
    assert script.find_models([folder, other]) == [other]
    with pytest.raises(SystemExit, match=r"there is no model in .*none: give the path"):
        script.find_models([folder])
    with pytest.raises(SystemExit, match=r"there is no file .*x\.gguf: check the path"):
        script.find_models([tmp_path / "x.gguf"])


def test_a_model_is_asked_for_what_was_given(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, json.dumps(FOUND), "")

    monkeypatch.setattr(script.subprocess, "run", run)
    given = argparse.Namespace(repetitions=3, against="llama.cpp", n_prompt=64, n_gen=8)
    assert script.measure(Path("m.gguf"), given, [4096], [1]) == FOUND
    assert commands[0][4:] == (
        [
            "m.gguf",
            "--json",
            "-r",
            "3",
            "-p",
            "64",
            "-n",
            "8",
            "--rows",
            "1",
            "--depth",
            "4096",
            "--against",
            "llama.cpp",
        ]
    )


def test_what_the_page_says_by_processor_stays(script: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    assert script.read_kept(page) == []
    page.write_text("# Benchmarks\n\n| old |\n")
    assert script.read_kept(page) == []
    page.write_text("# Benchmarks\n\n| old |\n\n## By processor\n\n| kept |\n")
    assert script.read_kept(page) == ["", "## By processor", "", "| kept |"]


def test_the_machine_and_the_versions(script: Any) -> None:
    first, second, date = script.describe_machine(FOUND, argparse.Namespace(against=None))
    assert first == "- processor: a processor, 2 threads, path `avx2`"
    assert "Phobos 1.2" in second and "numba" in second
    assert date.startswith("- 20")


def test_without_a_model_it_says_so_and_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "page.md"
    command = [sys.executable, str(SCRIPT), str(tmp_path / "none.gguf"), "--out", str(out), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "none.gguf: check the path" in done.stderr
    assert not out.exists()
