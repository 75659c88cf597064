"""An answer as it grows: a sign of life, the reasoning in a dim block that folds, then Markdown.

Finished blocks are printed once; the unfinished last one is drawn in the painter's region. A block longer than the
screen settles from its top while it grows, except a table, whose columns still move: of that the end is shown until it
is whole. How much of a block has settled is counted in letters, so that a resize neither loses nor repeats lines.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from phobos.printable import clean
from phobos.repl.blocks import Block, BlockPrinter, drawable, split_blocks, take_finished
from phobos.repl.exchange import Answer
from phobos.repl.painter import Painter
from phobos.sizes import format_seconds

FRAME_S = 0.033
RENDER_SHARE = 0.2  # of the time, at most, is spent drawing: the engine shares these cores
QUIET_S = 0.25  # so long nothing is shown while nothing has come
REASONING_LINES = 8  # of unfinished reasoning are shown
_WHEEL, _WHEEL_ASCII = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\"

Progress = Callable[[], tuple[int, int] | None]


class AnswerView:
    """Draws one answer; `fold` closes the reasoning to one line once it is over."""

    def __init__(self, console: Console, *, fold: bool, progress: Progress) -> None:
        self._console = console
        self._printer = BlockPrinter(console)
        self._painter = Painter(console)
        self._fold = fold
        self._progress = progress
        self._began_s = time.monotonic()
        self._next_s = 0.0
        self._reasoning_s: float | None = None
        self._reasoning_over = False
        self._n_taken = 0  # letters of the answer that are in `_rest` or printed
        self._rest = ""  # the unfinished end of the answer
        self._rest_joined = False
        self._n_settled = 0  # letters of the unfinished block that are printed for good
        self._printed_any = False

    def draw(self, answer: Answer, *, last: bool = False) -> None:
        """Show what has come; between two frames only what is needed."""
        now_s = time.monotonic()
        if not last and now_s < self._next_s:
            return
        settled: list[str] = []
        region: list[str] = []
        if not answer.text:
            region = self._waiting(answer, now_s) if not last else []
        if answer.reasoning and not self._reasoning_over and (answer.text or last):
            settled += self._close_reasoning(answer, now_s)
        if answer.text:
            finished, tail = self._advance(answer.text, last=last)
            settled += finished
            region = tail
        self._painter.paint(region, settled, now=last)
        self._next_s = now_s + max(FRAME_S, (time.monotonic() - now_s) / RENDER_SHARE)

    def _waiting(self, answer: Answer, now_s: float) -> list[str]:
        if answer.reasoning:
            if self._reasoning_s is None:
                self._reasoning_s = now_s
            lines = self._reasoning_lines(answer.reasoning, n_most=min(REASONING_LINES, self._painter.room - 1))
            return [self._dim(f"{self._wheel(now_s)} thinking {format_seconds(now_s - self._reasoning_s)}"), *lines]
        waited_s = now_s - self._began_s
        if waited_s < QUIET_S:
            return []
        progress = self._progress()
        counted = f" {progress[0]} of {progress[1]} tokens" if progress is not None else ""
        return [self._dim(f"{self._wheel(now_s)} reading{counted}, {format_seconds(waited_s)}")]

    def _wheel(self, now_s: float) -> str:
        wheel = _WHEEL_ASCII if self._console.options.ascii_only else _WHEEL
        return wheel[int(now_s * 10) % len(wheel)]

    def _dim(self, text: str) -> str:
        return (self._printer.lines(Text(text, style="dim", no_wrap=True, overflow="ellipsis")) or [""])[0]

    def _reasoning_lines(self, text: str, n_most: int | None = None) -> list[str]:
        shown = clean(text).strip()
        if n_most is not None:  # more cannot be seen: wrapping a long text anew for every frame would be slow
            shown = shown[-n_most * self._console.width * 2 :]
        lines = self._printer.lines(Text(shown, style="dim italic"))
        return lines if n_most is None else lines[-n_most:]

    def _close_reasoning(self, answer: Answer, now_s: float) -> list[str]:
        self._reasoning_over = True
        took_s = now_s - (self._reasoning_s if self._reasoning_s is not None else now_s)
        words = len(answer.reasoning.split())
        sign = ">" if self._console.options.ascii_only else "▸"
        if not self._fold:
            return [*self._reasoning_lines(answer.reasoning), self._dim(f"thought for {format_seconds(took_s)}"), ""]
        return [self._dim(f"{sign} thought for {format_seconds(took_s)}, {words} words (/think show)"), ""]

    def _advance(self, text: str, *, last: bool) -> tuple[list[str], list[str]]:
        """The lines that are now for good, and those of the unfinished block."""
        new = text[self._n_taken :] if self._n_taken else text.lstrip("\n")
        self._n_taken = len(text)
        self._rest += new
        finished: list[Block] = []
        if last:
            finished, self._rest = split_blocks(self._rest), ""
        elif "\n" in new:
            finished, self._rest = take_finished(self._rest)
        if finished:
            finished[0] = replace(finished[0], joined=self._rest_joined)
        settled: list[str] = []
        for block in finished:
            settled += self._gap(block) + self._unsettled(self._printer.block(block.text))
            self._n_settled = 0
            self._printed_any = True
        if not self._rest.strip():
            return settled, []
        if finished:
            self._rest_joined = finished[-1].text.endswith("\n") and not finished[-1].text.endswith("\n\n")
        return self._draw_rest(settled)

    def _draw_rest(self, settled: list[str]) -> tuple[list[str], list[str]]:
        tail = split_blocks(drawable(self._rest))
        if not tail:
            return settled, []
        block = Block("".join(b.text for b in tail), self._rest_joined, all(b.grows for b in tail))
        lines = self._unsettled(self._printer.block(block.text))
        gap = self._gap(block) if not self._n_settled else []
        over = len(lines) + len(gap) - self._painter.room
        if block.grows and over > 0:
            settled += gap + lines[:over]
            self._n_settled += sum(map(_count_letters, lines[:over]))
            return settled, lines[over:]
        return settled, [*gap, *lines]

    def _gap(self, block: Block) -> list[str]:
        if self._n_settled or not self._printed_any or (block.joined and self._same_list(block)):
            return []
        return [""]

    def _same_list(self, block: Block) -> bool:
        """Only items stand close; other blocks that touch are set apart for reading."""
        first = block.text.lstrip()[:4]
        return first[:2] in ("- ", "* ", "+ ") or first.split(".")[0].split(")")[0].isdigit()

    def _unsettled(self, lines: list[str]) -> list[str]:
        """The lines of a block that are not printed yet; a line of which only a part is, comes again."""
        n_letters = 0
        for index, line in enumerate(lines):
            n_letters += _count_letters(line)
            if n_letters > self._n_settled:
                return lines[index:] if self._n_settled else lines
        return [] if self._n_settled else lines


def _count_letters(line: str) -> int:
    """Letters that are no blanks: those stay the same however lines are wrapped. An empty line counts as one."""
    return sum(not letter.isspace() for letter in BlockPrinter.plain(line)) or 1
