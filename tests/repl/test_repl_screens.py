"""What stands on the screen and in its scrollback afterwards, at several widths, read back from tmux."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from .conftest import Tmux

StartTmux = Callable[[int, int], Tmux]


def answer_of(shown: str, question: str) -> list[str]:
    """The lines between a question and its footer."""
    _, _, rest = shown.partition(f"> {question}\n")
    return re.split(r"\n\d+ tokens · ", rest)[0].rstrip("\n").split("\n")


@pytest.mark.parametrize("width", [80, 200])
def test_a_document_in_a_window(start_tmux: StartTmux, width: int) -> None:
    terminal = start_tmux(width, 40)
    terminal.type("show a document")
    lines = answer_of(terminal.wait(r"context \d+%"), "show a document")
    assert [line.strip() for line in lines] == [
        *("A heading", "", "Some bold words, code, and vector<int> with 中文字 and é.", "A second line.", ""),
        *("1 first", "2 second", "• inner", "3 third", ""),
        *("name        value", "─────────────────", "one             1", "twenty-two     22", ""),
        *("def f(x: int) -> int:", "", "return x + 1", "", "<div>not lost</div>", "", "Last words."),
    ]
    assert "╭" not in "".join(lines)  # nothing that copying would pick up
    footer = [line for line in terminal.screen().splitlines() if "tok/s" in line]
    assert len(footer) == 1 and "context" in footer[0]


def test_scrollback_holds_every_line_once(start_tmux: StartTmux) -> None:
    terminal = start_tmux(80, 16)
    terminal.type("show long code")
    lines = answer_of(terminal.wait(r"context \d+%", history=True), "show long code")
    expected = [f"  line {n}" if n % 7 else "" for n in range(1, 101)]
    assert lines == [*expected, "", "Done."]
    terminal.type("show long table")  # its columns move until it is whole
    shown = terminal.wait(r"long table\n[\s\S]*context \d+%", history=True)
    lines = answer_of(shown, "show long table")
    numbers = [int(found[1]) for line in lines if (found := re.match(r" (\d+) ", line))]
    assert numbers == list(range(1, 61))
    assert lines[-1] == "End."


@pytest.mark.slow  # what tmux keeps while its window changes depends on when it is asked
def test_resizing_in_the_middle_loses_nothing(start_tmux: StartTmux) -> None:
    terminal = start_tmux(100, 20)
    terminal.type("go on forever")
    terminal.wait(r"tick60\b")
    for width, height in ((60, 20), (120, 30), (44, 12), (80, 24)):
        terminal("resize-window", "-x", str(width), "-y", str(height))
        time.sleep(0.15)
    terminal.wait(r"tick200\b", history=True)
    terminal("send-keys", "C-c")
    shown = terminal.wait("stopped", history=True)
    ticks = [int(n) for n in re.findall(r"tick(\d+)", " ".join(answer_of(shown, "go on forever")))]
    assert ticks[-1] >= 200
    assert set(range(1, ticks[-1] + 1)) <= set(ticks)
    terminal.type("/quit")
    terminal.wait("rc=0")
    assert terminal("display-message", "-p", "#{cursor_flag} #{alternate_on}").split() == ["1", "0"]
