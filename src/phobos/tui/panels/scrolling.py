"""A panel whose rows are more than fit: scrolled by keys and mouse, with a thin bar at its right edge."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content

from phobos.tui.lines import Lines
from phobos.tui.panels.panel import Panel
from phobos.tui.theme import Palette


class ScrollingPanel(Panel, can_focus=True):
    """Subclasses draw with `window`; `first` is the first visible row, `n_rows` and `n_visible` as last drawn."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "move_page(-1)", "Page up", show=False),
        Binding("pagedown", "move_page(1)", "Page down", show=False),
        Binding("home", "move(-1000000)", "First", show=False),
        Binding("end", "move(1000000)", "Last", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.first = 0
        self.n_rows = 0
        self.n_visible = 1

    def scroll_rows(self, n_rows: int) -> None:
        """Show rows further down (up where negative), as far as there are any."""
        self.first = max(0, min(self.first + n_rows, self.n_rows - self.n_visible))
        self.redraw()

    def action_move(self, n_rows: int) -> None:
        """What the arrows do: scroll, unless a subclass moves a cursor."""
        self.scroll_rows(n_rows)

    def action_move_page(self, direction: int) -> None:
        self.action_move(direction * max(1, self.n_visible - 1))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.scroll_rows(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.scroll_rows(-3)

    def window(self, n_rows: int, n_visible: int) -> range:
        """The rows to draw, after taking note of how many there are and how many fit."""
        self.n_rows, self.n_visible = n_rows, max(1, n_visible)
        self.first = max(0, min(self.first, n_rows - self.n_visible))
        return range(self.first, min(n_rows, self.first + self.n_visible))

    def with_bar(self, lines: Lines, width: int, palette: Palette) -> Lines:
        """`lines` (those of the window) with the bar in column `width - 1` where not all rows are visible."""
        if self.n_rows <= self.n_visible:
            return lines
        size = max(1, self.n_visible * self.n_visible // self.n_rows)
        top = round(self.first * (self.n_visible - size) / max(1, self.n_rows - self.n_visible))
        barred = []
        for y, line in enumerate(lines):
            cut = line.truncate(width - 2, ellipsis=True)
            mark = ("┃", palette.accent) if top <= y < top + size else ("│", palette.faint)
            barred.append(Content.assemble(cut, " " * (width - 1 - cut.cell_length), mark))
        return barred
