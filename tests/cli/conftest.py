"""Fixtures of the command-line tests: the program as a process, and a models folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from phobos import library

Run = Callable[..., subprocess.CompletedProcess[str]]
SMOLLM2_BYTES = 98_362_432


@pytest.fixture
def models_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty models folder, named by `PHOBOS_MODELS`."""
    folder = tmp_path / "models"
    folder.mkdir()
    monkeypatch.setenv("PHOBOS_MODELS", str(folder))
    return folder


@pytest.fixture
def run_cli(tmp_path: Path) -> Run:
    """Run `phobos-cli` as a process with nothing of the user's environment but what it needs."""

    def run(
        *args: str, env: Mapping[str, str] | None = None, stdin: str | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PHOBOS_", "HF_"))}
        kept |= {"PHOBOS_MODELS": str(tmp_path / "models"), "COLUMNS": "100", **(env or {})}
        given = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
        return subprocess.run(
            [sys.executable, "-m", "phobos.cli", *args],
            env=kept, text=True, capture_output=True, timeout=timeout, check=False, **given,
        )  # fmt: skip

    return run


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The default model's file, or skip."""
    folders = [Path(os.environ["PHOBOS_TEST_MODELS"])] if "PHOBOS_TEST_MODELS" in os.environ else []
    for folder in (*folders, Path(__file__).resolve().parents[2] / "models"):
        path = folder / str(library.load_catalog()["smollm2"].file)
        if path.exists() and path.stat().st_size == SMOLLM2_BYTES:
            return path
    pytest.skip("the default model is not here: run `make test`, or `phobos-cli pull smollm2`")
