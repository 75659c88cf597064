"""A widget made of lines of text that repaints only the lines that changed.

Five times a second most of a dashboard looks as it did before; what is not repainted costs neither this process
nor the terminal anything.
"""

from __future__ import annotations

from textual.content import Content
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

Lines = list[Content]


class LineView(Widget):
    """Subclasses give `draw_lines`; `redraw` says that something it draws from has changed."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._lines: Lines = []
        self._drawn_as: tuple[int, int, str] | None = None

    def draw_lines(self, width: int, height: int) -> Lines:
        """At most `height` lines of at most `width` cells."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Draw anew and repaint the lines that differ."""
        width, height = self.size
        if not self.is_attached or width <= 0 or height <= 0:
            return
        before, self._lines = self._lines, self.draw_lines(width, height)
        drawn_as, self._drawn_as = self._drawn_as, (width, height, self.app.theme)
        if drawn_as != self._drawn_as or len(before) != len(self._lines):
            self.refresh()
            return
        pairs = enumerate(zip(before, self._lines, strict=True))
        changed = [Region(0, y, width, 1) for y, (old, new) in pairs if not new.is_same(old)]
        if changed:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        """One line of the content, over the widget's own colours."""
        width, height = self.size
        if self._drawn_as != (width, height, self.app.theme):
            self._lines = self.draw_lines(width, height)
            self._drawn_as = (width, height, self.app.theme)
        style = self.visual_style
        if y >= len(self._lines):
            return Strip.blank(width, style.rich_style)
        strip = Strip(self._lines[y].render_segments(style))
        return strip.adjust_cell_length(width, style.rich_style)
