"""Markdown in blocks: what is finished stays finished, however the text is cut, and no letter is lost."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from doubles.chat_scripted import DOCUMENT, LONG_CODE, LONG_TABLE
from phobos.repl.blocks import Block, BlockPrinter, clean, drawable, split_blocks, take_finished
from phobos.repl.desk import LOOKS
from phobos.repl.exchange import Answer
from phobos.repl.view import AnswerView


def make_console(width: int = 60, height: int = 12) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, theme=LOOKS, force_terminal=True, color_system=None)
    return console, out


def printer(width: int = 60) -> BlockPrinter:
    return BlockPrinter(make_console(width)[0])


def grow(text: str, cuts: list[int]) -> list[Block]:
    """The finished blocks of a text that arrives in pieces, and the rest as blocks."""
    found: list[Block] = []
    rest, begin = "", 0
    for end in [*sorted(cuts), len(text)]:
        rest += text[begin:end]
        begin = end
        finished, rest = take_finished(rest)
        found += finished
    return found + split_blocks(rest)


@pytest.mark.parametrize("text", [DOCUMENT, LONG_CODE[-90:], LONG_TABLE[:300]])
def test_blocks_are_the_same_letter_by_letter(text: str) -> None:
    whole = [block.text for block in split_blocks(text)]
    assert "".join(whole) == text
    assert [block.text for block in grow(text, list(range(len(text))))] == whole


LINES = [
    "words",
    "- item",
    "  inner",
    "1. one",
    "2. two",
    "```",
    "# head",
    "| a | b |",
    "|---|---|",
    "> q",
    "",
    "",
    "***",
    "<b>",
]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(LINES), max_size=14), st.data())
def test_no_letter_is_lost_or_doubled(lines: list[str], data: st.DataObject) -> None:
    text = "\n".join(lines)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    joined = "".join(block.text for block in grow(text, cuts))
    assert joined.split() == text.split()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([line for line in LINES if line != "```"]), max_size=14), st.integers(1, 9))
def test_every_word_reaches_the_screen(lines: list[str], step: int) -> None:
    text = "\n".join(f"{line}{index}" if line.strip("|-*>`# ") else line for index, line in enumerate(lines))
    shown = "\n".join(stream(text, step))
    for word in re.findall(r"[a-z]+\d+", text):
        assert word in shown, (text, shown)


def stream(text: str, step: int, width: int = 60, height: int = 12) -> list[str]:
    """The lines on the terminal after an answer came in pieces and every frame was drawn."""
    console, out = make_console(width, height)
    view = AnswerView(console, fold=True, progress=lambda: None)
    answer = Answer()
    for end in range(step, len(text) + step, step):
        answer.text = text[:end]
        view._next_s = 0.0
        view.draw(answer)
    view.draw(answer, last=True)
    return replay(out.getvalue())


def replay(written: str) -> list[str]:
    """What a terminal of endless height makes of it; only the escapes the painter uses are known."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", written):
        if part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r":
            column = 0
        elif part.startswith("\x1b") and part.endswith("A"):
            row -= int(part[2:-1])
            assert row >= 0
        elif part.startswith("\x1b") and part.endswith("K"):
            lines[row] = lines[row][:column]
        elif part.startswith("\x1b") and part.endswith("J"):
            lines[row:] = [lines[row][:column]]
        elif not part.startswith("\x1b"):
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
            column += len(part)
    while lines and not lines[-1]:
        lines.pop()
    return lines


@pytest.mark.parametrize(
    ("text", "step"), [(DOCUMENT, 1), (DOCUMENT, 7), (DOCUMENT, 1 << 20), (LONG_CODE, 23), (LONG_TABLE, 97)]
)
def test_streamed_looks_like_whole(text: str, step: int) -> None:
    assert stream(text, step) == stream(text, 1 << 20)
    assert stream(text, 1 << 20) == [BlockPrinter.plain(line) for line in printed_at_once(text)]


def printed_at_once(text: str) -> list[str]:
    """The blocks one under the other, as they are when nothing is streamed."""
    lines: list[str] = []
    for index, block in enumerate(split_blocks(text)):
        lines += ([""] if index and not (block.joined and block.text[0] in "-123") else []) + printer().block(
            block.text
        )
    return lines


def test_code_keeps_its_letters() -> None:
    lines = [BlockPrinter.plain(line) for line in printer().block("```python\nif a:\n    b = '*x*'\n\n\treturn\n```")]
    assert lines == ["  if a:", "      b = '*x*'", "", "      return"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("one\ntwo", ["one", "two"]),
        ("a List<int> and <br> stay", ["a List<int> and <br> stay"]),
        ("[text](http://a.b)", ["text (http://a.b)"]),
        ("<http://a.b>", ["http://a.b"]),
        ("![alt](p.png)", ["![alt](p.png)"]),
        ("# Title", ["Title"]),
        ("- a\n- b", [" • a", " • b"]),
        ("9. a\n10. b", ["  9 a", " 10 b"]),
        ("<p>x</p>", ["  <p>x</p>"]),
    ],
)
def test_looks(text: str, shown: list[str]) -> None:
    assert [BlockPrinter.plain(line) for line in printer().block(text)] == shown


def test_nothing_commands_the_terminal() -> None:
    evil = "a\x1b]0;title\x07b\x1b[2Jc\x9b31md\r"
    assert clean(evil) == "a�]0;title�b�[2Jc�31md"
    shown = printer().block(evil + "\n\n```\n" + evil + "\n```")
    assert not any("\x1b]" in line or "\x1b[2J" in line or "\x9b" in line for line in shown)


@pytest.mark.parametrize("marks", ["-", "--", "*", "1", "12.", "#", "```", ">"])
def test_a_line_of_marks_waits(marks: str) -> None:
    assert drawable(f"words\n{marks}") == "words"
    assert drawable(f"words\n{marks} more") == f"words\n{marks} more"


def test_wide_letters_wrap_within_the_window() -> None:
    from rich.cells import cell_len

    lines = [BlockPrinter.plain(line) for line in printer(20).block("中文字" * 20)]
    assert max(map(cell_len, lines)) <= 20
    assert "".join(lines) == "中文字" * 20
