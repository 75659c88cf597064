"""What the repository promises beside its code: generated docs, listed variables, the budget check, the frame."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load_script(path: str) -> ModuleType:
    name = Path(path).name
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{path}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_cli_docs_are_what_the_commands_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = load_script("write_cli_docs")
    assert docs.main(["--check"]) == 0
    monkeypatch.setattr(docs, "PATH", tmp_path / "cli.md")
    assert docs.main(["--check"]) == 1
    assert docs.main([]) == 0
    assert docs.main(["--check"]) == 0


def named_variables() -> set[str]:
    """Every `PHOBOS_…` the package reads from the environment by name."""
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            value = node.value if isinstance(node, ast.Constant) else None
            if isinstance(value, str) and re.fullmatch(r"PHOBOS_[A-Z0-9_]+", value):
                found.add(value)
    return found


def test_every_variable_is_documented() -> None:
    text = (ROOT / "docs/environment.md").read_text() + (ROOT / "docs/cli.md").read_text()
    listed = set(re.findall(r"PHOBOS_[A-Z0-9_]+", text))
    assert named_variables() <= listed


def test_budget_check(tmp_path: Path) -> None:
    budget = load_script("checks/check_budget")
    source = tmp_path / "m.py"
    long_function = "def f():\n" + "    x = 1\n" * 60
    source.write_text(long_function)
    assert budget.measure_file(source, "src/phobos/m.py") == ["src/phobos/m.py:1: f has 61 lines, at most 60"]
    assert budget.measure_file(source, "src/phobos/kernels/cpu/code/m.py") == []
    for folder, found in (("mixed", ["src/mixed: 21 modules, at most 20"]), ("families", [])):
        made = tmp_path / folder / "src" / folder
        made.mkdir(parents=True)
        for i in range(21):
            (made / f"m{i}.py").touch()
        assert budget.check_tree(tmp_path / folder) == found
    source.write_text("x = 1\n" * 501)
    assert budget.measure_file(source, "src/m.py") == ["src/m.py: 501 lines, at most 500"]
    source.write_text("x = 1\n" * 500)
    assert budget.measure_file(source, "src/m.py") == []


def test_ci_runs_check_and_test() -> None:
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    assert "make check test" in script.read_text()
    done = subprocess.run(["make", "-n", "check", "test"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 127:
        pytest.skip("make is not here")
    assert done.returncode == 0, done.stderr
    for word in ("ruff format --check", "ruff check", "mypy", "lint-imports", "check_budget.py", "pytest"):
        assert word in done.stdout


def test_weights_are_not_committed() -> None:
    assert "/models/*.gguf" in (ROOT / ".gitignore").read_text().splitlines()


def test_engineering_notes_have_a_whole_index() -> None:
    text = (ROOT / "docs" / "engineering-notes.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (.+)$", text, re.MULTILINE)
    linked = re.findall(r"\[([^\]]+)\]\(#", text.partition("\n## ")[0])
    assert sorted(linked) == sorted(sections)
