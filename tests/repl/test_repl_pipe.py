"""The chat in a pipe: a message a line, answers and nothing else on standard output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import SCRIPT, chat_environment


def pipe(folder: Path, model: Path, text: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, str(SCRIPT), "chat", "--no-attach", "--gguf", str(model), *arguments]
    return subprocess.run(
        command, env=chat_environment(folder), input=text, capture_output=True, timeout=60, check=False
    )


def test_a_message_a_line(tmp_path: Path, model_file: Path) -> None:
    done = pipe(tmp_path, model_file, "hello\n\nGrüße\r\nlast without an end".encode(), "--system", "be kind")
    assert done.returncode == 0 and done.stderr == b""
    assert done.stdout.decode().split("\n") == [
        "Answer 1: 1 lines, 5 letters, hello <system><user>",
        "Answer 2: 1 lines, 5 letters, Grüße <system><user><assistant><user>",
        "Answer 3: 1 lines, 19 letters, last without an end <system><user><assistant><user><assistant><user>",
        "",
    ]


def test_commands_work_and_speak_on_standard_error(tmp_path: Path, model_file: Path) -> None:
    path = tmp_path / "talk.json"
    lines = f"hello\n/save {path}\n/clear\n//nosuch is a message\nthink of a document\n/quit\nnever asked\n"
    done = pipe(tmp_path, model_file, lines.encode())
    out = done.stdout.decode()
    assert done.returncode == 0
    assert "Answer 1: 1 lines, 20 letters, /nosuch is a message <user>" in out
    assert "# A heading\n\nSome **bold** words" in out  # as the model wrote it
    assert "\x1b" not in out and "saved" not in out and "never asked" not in out and "first this" not in out
    assert b"saved 2 messages" in done.stderr and b"\x1b" not in done.stderr
    assert path.exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"hello\nplease fail\nnever asked\n", b"the engine fell over"),
        (b"hello\n/set temp hot\n", b"temp must be a number"),
        (b"hello\n/edit\n", b"/edit needs a terminal"),
        (b"hello\n/nosuch is no message\n", b"there is no /nosuch"),
        (b"hello\n\xff\xfe\n", b"not valid UTF-8"),
    ],
)
def test_the_first_failure_ends_it(tmp_path: Path, model_file: Path, text: bytes, sentence: bytes) -> None:
    done = pipe(tmp_path, model_file, text)
    assert done.returncode in (1, 2)
    assert done.stdout == b"Answer 1: 1 lines, 5 letters, hello <user>\n"
    assert done.stderr.startswith(b"phobos-cli: ") and sentence in done.stderr and done.stderr.count(b"\n") == 1


def test_nothing_asked_nothing_said(tmp_path: Path, model_file: Path) -> None:
    done = pipe(tmp_path, model_file, b"")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
