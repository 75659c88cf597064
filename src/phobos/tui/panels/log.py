"""LOG: the newest lines last, coloured by level; it follows the end until one scrolls up."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable

from textual.content import Content

from phobos.tui.lines import Lines
from phobos.tui.log import LogLine
from phobos.tui.panels.scrolling import ScrollingPanel
from phobos.tui.rates import Moment
from phobos.tui.theme import Palette

_CAPACITY = 1000


class LogPanel(ScrollingPanel):
    """Lines are wrapped to the width and wrapped anew when it changes."""

    TITLE = "LOG"

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[LogLine] = deque(maxlen=_CAPACITY)
        self.follows = True
        self._wrapped: list[Content] = []
        self._wrapped_for: tuple[int, Palette] | None = None

    def add(self, lines: Iterable[LogLine]) -> None:
        """Append lines; the view moves on only where it stood at the end."""
        self.lines.extend(lines)
        self._wrapped_for = None
        self.redraw()

    def clear_lines(self) -> None:
        """Forget all lines."""
        self.lines.clear()
        self.follows = True
        self._wrapped_for = None
        self.redraw()

    def scroll_rows(self, n_rows: int) -> None:
        self.follows = self.first + n_rows >= self.n_rows - self.n_visible
        super().scroll_rows(n_rows)

    def draw(self, moment: Moment, width: int, height: int, palette: Palette) -> Lines:
        if self._wrapped_for != (width, palette):
            self._wrapped = [row for line in self.lines for row in wrap_line(line, width - 2, palette)]
            self._wrapped_for = (width, palette)
        if self.follows:
            self.first = len(self._wrapped)
        rows = self.window(len(self._wrapped), height)
        return self.with_bar([self._wrapped[i] for i in rows], width, palette)


def wrap_line(line: LogLine, width: int, palette: Palette) -> list[Content]:
    """Time, level mark and text; what goes over the width continues under the text."""
    clock = time.strftime("%H:%M:%S", time.localtime(line.at_s)) if width >= 50 else ""
    mark, colour = level_mark(line.level, palette)
    head = Content.assemble((f"{clock} " if clock else "", palette.dim), (f"{mark} ", colour))
    text_colour = palette.text if line.level < logging.WARNING else colour
    if line.level < logging.INFO:
        text_colour = palette.dim
    rows = Content.styled(line.text, text_colour).wrap(max(8, width - head.cell_length)) or [Content()]
    return [head + rows[0], *(Content.assemble(" " * head.cell_length, row) for row in rows[1:])]


def level_mark(level: int, palette: Palette) -> tuple[str, str]:
    """A sign and a colour for a level of `logging`."""
    if level >= logging.ERROR:
        return "✗", palette.error
    if level >= logging.WARNING:
        return "!", palette.warn
    return ("·", palette.good) if level >= logging.INFO else ("·", palette.faint)
