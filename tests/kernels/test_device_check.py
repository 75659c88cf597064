"""`scripts/checks/device_check.py` on a played card: every part of it runs and its rows say what they should; and it
needs nothing but what a bare machine with a card would have."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed: pip install -e '.[dev]'")

from ptx.card import PtxCard

pytestmark = pytest.mark.timeout(300)  # the first to want a kernel compiles it
SCRIPT = Path(__file__).parents[2] / "scripts" / "checks" / "device_check.py"


class PlayedCard(PtxCard):
    """As the script's card, so small that it is quick."""

    n_processors = 1

    def __init__(self, number: int) -> None:
        super().__init__(32 << 20)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("device_check", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "device_check", module)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    spec.loader.exec_module(module)
    for name, value in {
        "NvidiaCard": PlayedCard, "missing_part": lambda: None, "COPY_BYTES": 1 << 12, "N_TURNS": 2, "N_LAUNCHES": 3,
        "N_COMPARED": 30, "N_DECODED": 4, "N_PROMPT": 30, "N_TOGETHER": 3,
    }.items():  # fmt: skip
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module, "run_tests", lambda number: ("every kernel against the reference", "3 passed", "ok"))
    monkeypatch.setattr(module, "time_best", lambda run, repeats=1: run() or 0.01)
    small = module.write_made_up
    monkeypatch.setattr(module, "write_made_up", lambda path: small(path, 2, 256, 256, 300))
    return module


@pytest.mark.slow
def test_all_parts_run(script: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """With no model there, on one that is made up."""
    code = script.main([str(tmp_path / "no models")])
    out, err = capsys.readouterr()
    assert code == 0, out + err
    for row in (
        "PTX machine", "copy, both ways counted", "mma, 8-bit", "a launch inside a recorded pass", "made-up-1.5B.gguf",
        "  decode ", "  of it launches", "  decode, 3 together", "  prompt",
    ):  # fmt: skip
        assert sum(line.startswith(row) for line in out.splitlines()) == 1, out
    ok = [line.split("  ")[0] or line.split("  ")[1] for line in out.splitlines() if line.endswith(" ok")]
    assert len(ok) == 7, out


def test_a_part_that_fails_is_a_row(script: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """And the others still run."""
    (tmp_path / "broken.gguf").write_bytes(b"GGUF no more")
    script.compile_all = lambda card: 1 / 0
    assert script.main([str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "ZeroDivisionError: division by zero" in out
    failed = [line for line in out.splitlines() if line.endswith("FAILED")]
    assert [line.split()[0] for line in failed[:2]] == ["kernels", "broken.gguf"] and len(failed) == 3
    script.LIMIT_S = 0.0
    script.main([str(tmp_path)])
    assert "left out: no time" in capsys.readouterr().out


def test_it_needs_little() -> None:
    """NumPy and the compiler's packages; not what serving is made of."""
    block = (
        "import sys, importlib.abc\n"
        "class Block(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in {names!r}: raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "sys.argv = ['device_check.py']\n"
        "import runpy; runpy.run_path({script!r}, run_name='device_check')\n"
        "import phobos.kernels.cpu.backend, phobos.kernels.placing.offload, one_op, models.family_models\n"
    )
    names = (
        "click",
        "textual",
        "jinja2",
        "tokenizers",
        "sentencepiece",
        "llguidance",
        "huggingface_hub",
        "gguf",
        "h11",
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", block.format(names=names, script=str(SCRIPT))],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
