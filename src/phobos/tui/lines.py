"""A widget made of lines of text that repaints only the lines that changed.

Five times a second most of a dashboard looks as it did before; what is not repainted costs neither this process
nor the terminal anything. What is, takes a shorter way than Textual's general one: a line is put between the edges
of the row it replaces.
"""

from __future__ import annotations

from functools import lru_cache

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual.containers import Container
from textual.content import Content
from textual.geometry import Region
from textual.strip import Strip
from textual.style import Style
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
            self.make_rows(self._rows, self._stale_rows)
        self._stale_rows = frozenset()
        return self._rows

    def make_rows(self, rows: list[Strip], stale: frozenset[int]) -> None:
        """Replace the stale ones of `rows`."""
        first, last = min(stale), max(stale)
        rows[first : last + 1] = super().render_lines(Region(0, first, self.outer_size.width, last + 1 - first))

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
        return Strip(segments_of(self._lines[y], style)).adjust_cell_length(width, style.rich_style)

    def make_rows(self, rows: list[Strip], stale: frozenset[int]) -> None:
        """Each new line between the edges of the row that stood in its place; they are the same in all rows."""
        (left, above), (width, height) = self.content_offset, self.size
        if min(stale) < above or max(stale) >= above + height:
            super().make_rows(rows, stale)
            return
        filters, background = self.get_line_filters(), self.background_colors[1]
        row = rows[above]
        before, after = row.crop(0, left), row.crop(left + width, None)
        for y in stale:
            line = self.render_line(y - above)
            for line_filter in filters:
                line = line.apply_filter(line_filter, background)
            rows[y] = Strip.join((before, line, after))


def segments_of(line: Content, base: Style) -> list[Segment]:
    """`line` in pieces of one style each, over `base`: as `Content.render_segments`, and quicker where no styles
    overlap."""
    text, at = line.plain, 0
    segments: list[Segment] = []
    for start, end, style in line.spans:
        if start < at or not isinstance(style, str):
            return line.render_segments(base)
        if start > at:
            segments.append(Segment(text[at:start], base.rich_style))
        if end > start:
            segments.append(Segment(text[start:end], _over(base, style)))
        at = end
    if at < len(text):
        segments.append(Segment(text[at:], base.rich_style))
    return segments


@lru_cache(512)
def _over(base: Style, style: str) -> RichStyle:
    return Style.combine((base, Style.parse(style))).rich_style
