"""Fixtures of the command-line tests: the program as a process, and a models folder of its own."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from command_line import CommandLine
from phobos import cli, library

SMOLLM2_BYTES = 98_362_432


@pytest.fixture
def models_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty models folder, named by `PHOBOS_MODELS`."""
    folder = tmp_path / "models"
    folder.mkdir()
    monkeypatch.setenv("PHOBOS_MODELS", str(folder))
    return folder


@pytest.fixture
def run_cli(tmp_path: Path) -> CommandLine:
    """`phobos-cli` with an empty models folder."""
    return CommandLine(tmp_path / "models")


Call = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def call(models_folder: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Call]:
    """`phobos-cli` within the test's own process: quicker than `run_cli`, with the same kind of answer."""
    logger = logging.getLogger("phobos")
    before = logger.level, logger.handlers[:], logger.propagate

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        code = cli.main(args)
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(args, code, out, err)

    yield run
    logger.level, logger.handlers[:], logger.propagate = before


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The default model's file, or skip."""
    folders = [Path(os.environ["PHOBOS_TEST_MODELS"])] if "PHOBOS_TEST_MODELS" in os.environ else []
    for folder in (*folders, Path(__file__).resolve().parents[2] / "models"):
        path = folder / str(library.load_catalog()["smollm2"].file)
        if path.exists() and path.stat().st_size == SMOLLM2_BYTES:
            return path
    pytest.skip("the default model is not here: run `make test`, or `phobos-cli pull smollm2`")
