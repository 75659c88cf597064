"""A widget made of lines of text that repaints only the lines that changed.

Five times a second most of a dashboard looks as it did before; what is not repainted costs neither this process
nor the terminal anything.
"""

from __future__ import annotations

from textual.containers import Container
from textual.content import Content
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

Lines = list[Content]


class KeptRows(Widget):
    """Textual asks every visible widget for all its rows whenever one row of one widget has changed; here, rows that
    have not changed are kept as they were made, borders included."""

    _rows: list[Strip] | None = None
    _stale_rows: frozenset[int] = frozenset()

    def render_lines(self, crop: Region) -> list[Strip]:
        """All rows of the widget, of which those are made anew that have to be."""
        width, height = self.outer_size
        if crop != Region(0, 0, width, height):
            return super().render_lines(crop)
        if self._rows is None or len(self._rows) != height:
            self._rows = super().render_lines(crop)
        elif self._stale_rows:
            first, last = min(self._stale_rows), max(self._stale_rows)
            self._rows[first : last + 1] = super().render_lines(Region(0, first, width, last + 1 - first))
        self._stale_rows = frozenset()
        return self._rows

    def _set_dirty(self, *regions: Region) -> None:
        """Take note of what is to be painted again: whatever asks for that ends here."""
        super()._set_dirty(*regions)
        if regions:
            above = self.content_offset.y
            self._stale_rows |= {above + y for region in regions for y in region.line_range}
        else:
            self._rows = None


class Box(KeptRows, Container):
    """A container of panels."""


class LineView(KeptRows):
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
        changed = [Region(0, y, width, 1) for y, (old, new) in pairs if new is not old and not new.is_same(old)]
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
