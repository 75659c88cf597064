"""What files and clients call things never commands a terminal: not in sentences, logs, tables or JSON."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from jinja2 import TemplateSyntaxError

from hostile_files import sound, write
from phobos.archs import build_program
from phobos.cli import main
from phobos.errors import FileError
from phobos.gguf.reader import open_gguf
from phobos.kernels.placing.opening import open_backend
from phobos.log import LineFormatter
from phobos.printable import clean, printable
from phobos.settings import EngineSettings

ESCAPES = "\x1b]0;mine\x07\x1b[2J\x9b31m\r\u202e"


def is_safe(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """A model whose every text is hostile, under a hostile file name."""
    case = sound("llama")
    texts = {"general.name": f"a{ESCAPES}b", "tokenizer.chat_template": f"{{{{ 1 }}}}{ESCAPES}", "x.note": ESCAPES}
    return write(replace(case, metadata=case.metadata | texts), tmp_path / f"m{ESCAPES}.gguf")


def test_errors_and_log_lines_are_printable() -> None:
    assert is_safe(str(FileError(f"bad {ESCAPES}\nfile"))) and "\n" not in str(FileError("a\nb"))
    record = logging.LogRecord("phobos.x", logging.INFO, "x", 1, "it says %s", (ESCAPES,), None)
    assert is_safe(LineFormatter().format(record))
    try:
        raise TemplateSyntaxError(ESCAPES, 1)
    except TemplateSyntaxError as error:
        record = logging.LogRecord("phobos.x", logging.INFO, "x", 1, "no", (), (type(error), error, None))
    assert "\x1b" not in LineFormatter().format(record) and "\x9b" not in LineFormatter().format(record)


@pytest.mark.parametrize("flags", [[], ["--tensors"], ["--json"]])
def test_inspect_shows_no_escapes(named: Path, capsys: pytest.CaptureFixture[str], flags: list[str]) -> None:
    assert main(["inspect", str(named), *flags]) == 0
    shown = capsys.readouterr().out
    assert is_safe(shown) and "general.name" in shown
    if flags == ["--json"]:
        assert json.loads(shown)["template"].endswith(ESCAPES)  # JSON escapes, and loses nothing


def test_an_error_about_a_file_shows_no_escapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(tmp_path / f"none{ESCAPES}.gguf")]) == 1
    assert is_safe(capsys.readouterr().err)
    case = sound("llama")
    path = tmp_path / "m.gguf"
    write(replace(case, metadata=case.metadata | {"general.architecture": f"x{ESCAPES}"}), path, with_data=False)
    assert main(["plan", str(path)]) == 1
    assert is_safe(capsys.readouterr().err)


def test_the_dashboards_name_of_a_model_is_printable(named: Path) -> None:
    with open_gguf(named) as gguf:
        backend, info = open_backend(
            build_program(gguf), gguf, EngineSettings(named, backend="reference"), lambda progress: None
        )
        assert info.name.isprintable() and info.name.startswith("a")
        backend.close()


def test_texts_keep_what_writing_needs() -> None:
    assert clean("a\tb\r\nc\x1b[0m") == "a\tb\nc\N{REPLACEMENT CHARACTER}[0m"
    assert clean("👩\u200d🚀") == "👩\u200d🚀"
    assert printable("a\u202eb\tc") == "a\N{REPLACEMENT CHARACTER}b c"
