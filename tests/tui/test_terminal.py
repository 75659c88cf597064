"""The dashboard in a real terminal (tmux), over a scripted engine: drawn, resized, left, and the terminal as before."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
SCRIPT = TESTS / "doubles" / "dashboard_scripted.py"
DEADLINE_S = 30.0
pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux to have a real terminal")


def slow(number: signal.Signals) -> object:
    """A parameter for the slow run only: it differs little from the one that is always run."""
    return pytest.param(number, marks=pytest.mark.slow)


class Tmux:
    """A terminal of its own: a private server with one pane that runs a shell."""

    def __init__(self, folder: Path, width: int = 100, height: int = 30) -> None:
        self._socket = str(folder / "tmux.sock")
        environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TMUX", "COLORFGBG")}
        self._environment = {**environment, "PYTHONPATH": f"{TESTS}:{TESTS.parent / 'src'}", "PS1": "$ "}
        size = ("-x", str(width), "-y", str(height))
        self("-f", "/dev/null", "new-session", "-d", *size, "sh")
        self("set-option", "-g", "window-size", "manual")

    def __call__(self, *arguments: str) -> str:
        run = subprocess.run(
            ["tmux", "-S", self._socket, *arguments], capture_output=True, text=True, check=True, env=self._environment
        )
        return run.stdout

    def screen(self, *, styled: bool = False) -> str:
        """What the pane shows; with its escape sequences where `styled`."""
        return self("capture-pane", "-p", *(["-e"] if styled else []))

    def type(self, line: str) -> None:
        self("send-keys", "-l", line)
        self("send-keys", "Enter")

    def start(self, scene: str, before: str = "") -> None:
        """Start the scripted dashboard from the shell."""
        self.type(f"clear; {before} {sys.executable} {SCRIPT} {scene}; echo rc=$?")

    def wait(self, pattern: str, deadline_s: float = DEADLINE_S) -> str:
        """The screen once it matches; the test fails with the last one otherwise."""
        until = time.monotonic() + deadline_s
        while time.monotonic() < until:
            shown = self.screen()
            if re.search(pattern, shown):
                return shown
            time.sleep(0.05)
        pytest.fail(f"the terminal never showed {pattern!r}:\n{shown}")

    def close(self) -> None:
        subprocess.run(["tmux", "-S", self._socket, "kill-server"], check=False, capture_output=True)


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    terminal = Tmux(tmp_path)
    try:
        yield terminal
    finally:
        terminal.close()


def assert_given_back(tmux: Tmux, expected: str) -> str:
    """The program has ended and the terminal works: the screen is clean, echo is on, the cursor shows."""
    shown = tmux.wait(expected)
    assert "╭" not in shown
    assert "PHOBOS" not in shown
    tmux.type("echo all''right; stty -a | tr ';' '\\n' | grep -c -w -e '-echo' -e '-icanon'")
    shown = tmux.wait(r"(?m)^allright\n0$")
    assert tmux("display-message", "-p", "#{cursor_flag} #{alternate_on} #{mouse_any_flag}").split() == ["1", "0", "0"]
    return shown


def process_of(tmux: Tmux) -> int:
    """The process id of the scripted dashboard: the child of the pane's shell."""
    shell = tmux("display-message", "-p", "#{pane_pid}").strip()
    children = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
    return int(children[0])


def test_a_request_goes_through_its_phases_while_the_terminal_is_resized(tmux: Tmux, tmp_path: Path) -> None:
    tmux.start(f"request {tmp_path}")
    tmux.wait("⣿")  # the opening
    tmux("send-keys", "x")
    tmux.wait(r"chatcmpl-first +waiting")
    (tmp_path / "prefill").touch()
    assert "PREFILL" in tmux.wait(r"chatcmpl-first .* 58%")
    (tmp_path / "rest-of-prompt").touch()
    tmux.wait(r"chatcmpl-first .* 100%")
    (tmp_path / "decode").touch()
    assert "DECODE" in tmux.wait(r"chatcmpl-first +decode")
    for width, height in ((80, 24), (120, 40), (60, 20), (140, 34), (100, 30)):
        tmux("resize-window", "-x", str(width), "-y", str(height))
        for _ in range(50):  # a picture may be taken while it is drawn anew
            shown = tmux.wait(rf"(?m)^╭─ (MODEL|THROUGHPUT)(.*\n){{{height - 1}}}.*PHOBOS")
            lines = shown.splitlines()
            is_whole = all(line.count("╭") == line.count("╮") for line in lines)
            if is_whole and len(lines) == height:
                break
            time.sleep(0.1)
        assert len(lines) == height
        assert is_whole  # no panel is torn
    tmux.wait(r"chatcmpl-first +decode +600 +41 ")
    (tmp_path / "done").touch()
    tmux.wait(r"chatcmpl-first +stop")
    tmux.wait("IDLE")
    tmux("send-keys", "q")
    assert_given_back(tmux, r"(?m)^stopped 1 time\(s\), failure: None\nrc=0$")


def test_nothing_a_library_prints_reaches_the_screen_but_through_the_log(tmux: Tmux) -> None:
    tmux("resize-window", "-x", "120", "-y", "50")
    tmux.start("noise")
    shown = tmux.wait("logged by a library")
    for words in (
        "printed by python",
        "written past the capture",
        "written to descriptor 2",
        "echoed by a child",
        "put by the C library",
    ):
        (line,) = [line for line in shown.splitlines() if words in line]
        assert line.rstrip().endswith(("│", "┃")), "a stray line must stand inside the LOG panel"
    assert len(shown.splitlines()) == 50
    tmux("send-keys", "q")
    assert_given_back(tmux, "rc=0")


@pytest.mark.parametrize("number", [signal.SIGTERM, slow(signal.SIGINT), slow(signal.SIGHUP)])
def test_a_signal_stops_the_server_in_order(number: signal.Signals, tmux: Tmux) -> None:
    tmux.start("idle")
    tmux.wait("IDLE")
    os.kill(process_of(tmux), number)
    assert_given_back(tmux, r"stopped 1 time\(s\), failure: None\nrc=0")


def test_a_process_that_was_stopped_goes_on_as_before(tmux: Tmux) -> None:
    """Stopped by a signal that cannot be caught, again and again, it has no thread more than it had."""
    tmux.start("idle", before="set +m;")
    tmux.wait("IDLE")
    process = process_of(tmux)
    threads = Path(f"/proc/{process}/task")
    n_threads = len(list(threads.iterdir()))
    for n_columns in (90, 110):
        os.kill(process, signal.SIGSTOP)
        os.kill(process, signal.SIGCONT)
        tmux("resize-window", "-x", str(n_columns), "-y", "30")
        tmux.wait(rf"(?m)^╭─ THROUGHPUT ─{{{n_columns - 15}}}╮")
    until = time.monotonic() + DEADLINE_S
    while len(list(threads.iterdir())) > n_threads and time.monotonic() < until:
        time.sleep(0.05)
    assert len(list(threads.iterdir())) == n_threads
    tmux("send-keys", "q")
    assert_given_back(tmux, r"stopped 1 time\(s\), failure: None\nrc=0")


@pytest.mark.parametrize("number", [signal.SIGKILL, slow(signal.SIGSEGV)])
def test_a_killed_or_crashed_process_leaves_a_usable_terminal(number: signal.Signals, tmux: Tmux) -> None:
    tmux.start("idle")
    tmux.wait("IDLE")
    os.kill(process_of(tmux), number)
    until = time.monotonic() + DEADLINE_S
    while tmux("display-message", "-p", "#{alternate_on}").strip() == "1" and time.monotonic() < until:
        time.sleep(0.05)
    tmux.type("clear; echo he''re")
    assert_given_back(tmux, r"(?m)^here$")


@pytest.mark.slow
def test_control_c_stops_the_server(tmux: Tmux) -> None:
    tmux.start("idle")
    tmux.wait("IDLE")
    tmux("send-keys", "C-c")
    assert_given_back(tmux, r"stopped 1 time\(s\), failure: None\nrc=0")


def test_a_second_key_leaves_a_server_that_does_not_stop(tmux: Tmux) -> None:
    tmux.start("stuck")
    tmux.wait("IDLE")
    tmux("send-keys", "q")
    tmux.wait("STOPPING")
    tmux("send-keys", "q")
    shown = assert_given_back(tmux, r"stopped 1 time\(s\), in a hurry\nrc=130")
    assert "Traceback" not in shown


def test_a_failed_load_keeps_its_reason_and_prints_the_log(tmux: Tmux) -> None:
    tmux.start("load-fails")
    shown = tmux.wait("FAILED")
    assert "is damaged: download it again" in shown
    tmux("send-keys", "Escape")
    shown = assert_given_back(tmux, r"failure: the file made-up\.gguf is damaged: download it again\nrc=1")
    assert re.search(r"error +phobos.scripted: loading failed", shown)


@pytest.mark.slow
def test_an_engine_that_dies_is_shown_and_its_log_printed(tmux: Tmux) -> None:
    tmux.start("engine-dies")
    shown = tmux.wait("the engine stopped: the worker team lost a thread")
    assert "FAILED" in shown
    tmux("send-keys", "q")
    shown = assert_given_back(tmux, "rc=1")
    assert re.search(r"error +phobos.scripted: the worker team lost a thread", shown)


def test_a_defect_in_a_panel_gives_the_terminal_back_and_says_so(tmux: Tmux) -> None:
    tmux.start("panel-breaks")
    shown = assert_given_back(tmux, "rc=1")
    assert "ZeroDivisionError: made to fail" in " ".join(shown.split())
    assert "--no-tui" in shown
    assert "stopped 1 time(s)" in shown
    assert "Traceback" not in shown


def colours_of(styled: str) -> set[str]:
    """The parameters of all colour sequences."""
    return {part for run in re.findall(r"\x1b\[([\d;]*)m", styled) for part in run.split(";") if part}


def test_no_color_gives_no_colour(tmux: Tmux) -> None:
    tmux.start("idle", before="env NO_COLOR=1")
    tmux.wait("IDLE")
    assert colours_of(tmux.screen(styled=True)) <= {"0", "1", "2", "7", "22", "27", "39", "49"}


@pytest.mark.slow
def test_sixteen_colours_where_the_terminal_has_no_more(tmux: Tmux) -> None:
    tmux.start("idle", before="env -u COLORTERM TERM=xterm")
    tmux.wait("IDLE")
    shown = colours_of(tmux.screen(styled=True))
    assert shown & {str(n) for n in (*range(30, 38), *range(90, 98))}
    assert not shown & {"38", "48"}  # palette and true colour


@pytest.mark.slow
def test_256_colours_are_not_exceeded(tmux: Tmux) -> None:
    tmux.start("idle", before="env -u COLORTERM TERM=xterm-256color")
    tmux.wait("IDLE")
    styled = tmux.screen(styled=True)
    assert re.search(r"[34]8;5;\d", styled)
    assert not re.search(r"[34]8;2;\d", styled)


@pytest.mark.slow
def test_keys_come_from_the_terminal_when_standard_input_is_closed(tmux: Tmux) -> None:
    tmux.type(f"clear; {sys.executable} {SCRIPT} idle < /dev/null; echo rc=$?")
    tmux.wait("IDLE")
    tmux("send-keys", "q")
    assert_given_back(tmux, "rc=0")
