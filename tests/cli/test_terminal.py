"""The program in a real pseudo-terminal: dashboard or log lines, colours, the progress bar, what Ctrl-C does."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pexpect
import pytest

from command_line import CommandLine
from tiny_models import RECIPES, write_tiny_model

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
    child = spawn(tmp_path, PROGRAM, "--gguf", str(tiny), "--listen", "127.0.0.1:0", "--no-animation")
    child.expect("\x1b\\[\\?1049h")  # the other screen
    child.expect("IDLE")
    child.send("q")
    child.expect("\x1b\\[\\?1049l")
    assert end(child) == 0


def test_no_tui_on_a_terminal_writes_log_lines(tmp_path: Path, tiny: Path) -> None:
    child = spawn(tmp_path, PROGRAM, "--gguf", str(tiny), "--listen", "127.0.0.1:0", "--no-tui")
    child.expect("the dashboard is off: --no-tui was given")
    child.expect("ready in")
    child.sendintr()
    child.expect("stopped")
    assert end(child) == 130


def test_a_report_variable_turns_the_dashboard_off(tmp_path: Path, tiny: Path) -> None:
    child = spawn(tmp_path, PROGRAM, "--gguf", str(tiny), "--listen", "127.0.0.1:0", PHOBOS_VRAM="1")
    child.expect("the dashboard is off: PHOBOS_VRAM is set")
    child.sendintr()
    assert end(child) == 130


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
