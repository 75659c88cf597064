"""The program in a real pseudo-terminal: dashboard or log lines, colours, the progress bar, what Ctrl-C does."""

from __future__ import annotations

import re
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pexpect
import pytest

from command_line import CommandLine
from models.tiny_models import RECIPES, write_tiny_model

PROGRAM = [str(Path(__file__).with_name("serve_scripted.py"))]
CLI = ["-m", "phobos.cli"]


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny_model(RECIPES["llama"], tmp_path / "tiny.gguf")


def spawn(tmp_path: Path, program: list[str], *args: str, **env: str) -> Any:
    environment = {**CommandLine(tmp_path).environment(env), "TERM": "xterm-256color"}
    del environment["COLUMNS"]
    environment.setdefault("LANG", "C.UTF-8")
    return pexpect.spawn(
        sys.executable, [*program, *args], env=environment, dimensions=(30, 100), timeout=30, encoding="utf-8",
        preexec_fn=restore_interrupt,
    )  # fmt: skip


def restore_interrupt() -> None:
    """Tests started in the background inherit an ignored SIGINT, which a terminal's own child would not have."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def end(child: Any) -> int:
    child.expect(pexpect.EOF)
    child.close()
    assert child.signalstatus is None
    return int(child.exitstatus)


def test_serving_on_a_terminal_draws_the_dashboard(tmp_path: Path, tiny: Path) -> None:
    flags = ("--listen", "127.0.0.1:0", "--no-animation", "--theme", "light")
    child = spawn(tmp_path, PROGRAM, "--gguf", str(tiny), *flags, COLORTERM="truecolor")
    child.expect("\x1b\\[\\?1049h")  # the other screen
    child.expect(r"48;2;251;246;240")  # the light background
    child.expect("IDLE")
    child.send("q")
    child.expect("\x1b\\[\\?1049l")
    assert end(child) == 0


@pytest.mark.parametrize(
    ("flags", "env", "redirected", "reason"),
    [
        (("--no-tui",), {}, False, "--no-tui was given"),
        ((), {"PHOBOS_VRAM": "1"}, False, "PHOBOS_VRAM is set and its report prints to the terminal"),
        ((), {"PHOBOS_PASS_REPORT": "1"}, False, "PHOBOS_PASS_REPORT is set and its report prints to the terminal"),
        ((), {"TERM": "dumb"}, False, "the terminal says it is dumb (TERM=dumb; --tui forces it)"),
        ((), {}, True, "standard output is not a terminal (--tui forces it)"),
    ],
    ids=["no-tui", "vram", "pass-report", "dumb", "redirected"],
)
def test_where_it_is_off_standard_error_says_why_in_lines_for_grep(
    tmp_path: Path, tiny: Path, flags: tuple[str, ...], env: dict[str, str], redirected: bool, reason: str
) -> None:
    errors, output = tmp_path / "errors", tmp_path / "output"
    parts = [sys.executable, *PROGRAM, "--gguf", str(tiny), "--listen", "127.0.0.1:0", *flags]
    line = f"exec {shlex.join(parts)} 2>{errors} {f'>{output}' if redirected else ''}"
    environment = {**CommandLine(tmp_path).environment(), "TERM": "xterm-256color", **env}
    child = pexpect.spawn("/bin/sh", ["-c", line], env=environment, timeout=30, preexec_fn=restore_interrupt)
    until = time.monotonic() + 30
    while "ready in" not in (errors.read_text() if errors.exists() else "") and time.monotonic() < until:
        time.sleep(0.02)
    child.sendintr()
    assert end(child) == 130
    assert not child.before.strip(b"^C\r\n"), "standard output stays empty"
    lines = errors.read_text().splitlines()
    assert [x for x in lines if x.endswith(f" info serve: the dashboard is off: {reason}")]
    logged = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} (info|warning|error) \w+: \S.*")
    assert all(logged.fullmatch(x) for x in lines)


def test_ctrl_c_ends_an_answer_with_130(tmp_path: Path, tiny: Path) -> None:
    args = ("--gguf", str(tiny), "--backend", "reference", "--temp", "1", "-c", "1536", "--raw", "the")
    child = spawn(tmp_path, CLI, *args)
    child.expect("\x1b\\[2K")  # the line that shows loading goes away
    child.expect("[a-z]")
    child.sendintr()
    assert end(child) == 130


@pytest.mark.parametrize(("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_help_has_colours_only_where_they_are_wanted(tmp_path: Path, env: dict[str, str], coloured: bool) -> None:
    environment = {**CommandLine(tmp_path).environment(), "TERM": "xterm-256color", **env}
    child = pexpect.spawn(
        sys.executable, [*CLI, "--help"], env=environment, dimensions=(200, 80), timeout=30, encoding="utf-8"
    )  # fmt: skip
    text = child.read()
    child.close()
    assert child.exitstatus == 0
    assert ("\x1b[3" in text) is coloured
    assert "--ctx-size" in text


def test_nothing_to_do_says_what_could_be_done(tmp_path: Path) -> None:
    child = spawn(tmp_path, CLI, "--temp", "0")
    child.expect("nothing to do: give a prompt")
    assert end(child) == 2
    child = spawn(tmp_path, CLI)
    child.expect("Usage")
    assert end(child) == 0


@pytest.mark.parametrize(("typed", "says"), [("n", "run `phobos-cli pull qwen3-0.6b`"), ("y", "HF_HUB_OFFLINE is set")])
def test_a_model_that_is_not_here_is_offered(tmp_path: Path, typed: str, says: str) -> None:
    """With its size; what comes then is what `pull` says."""
    environment = {**CommandLine(tmp_path / "models").environment(), "HF_HUB_OFFLINE": "1"}
    child = pexpect.spawn(
        sys.executable, [*CLI, "--gguf", "qwen3-0.6b", "Hello"], env=environment, encoding="utf-8", timeout=20
    )
    child.expect_exact("qwen3-0.6b is not on this machine. Fetch it now (~645 MB)? [y/N]:")
    child.sendline(typed)
    child.expect_exact(says)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 1
