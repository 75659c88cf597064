"""A screen that is handed moments and passes them to its panels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual import events
from textual.reactive import reactive
from textual.screen import Screen

from phobos.tui.log import LogLine
from phobos.tui.panels.log import LogPanel
from phobos.tui.panels.panel import Panel
from phobos.tui.rates import Moment


class LiveScreen(Screen[None]):
    """The app sets `moment`; panels are bound to it. Log lines come by `add_log`.

    The size gives classes to lay out by: `-w100` from 100 columns on, `-h36` from 36 rows on, and so forth.
    """

    WIDTHS: ClassVar[tuple[int, ...]] = ()
    HEIGHTS: ClassVar[tuple[int, ...]] = ()

    moment: reactive[Moment | None] = reactive(None, repaint=False, init=False)

    def on_resize(self, event: events.Resize) -> None:
        for n_columns in self.WIDTHS:
            self.set_class(event.size.width >= n_columns, f"-w{n_columns}")
        for n_rows in self.HEIGHTS:
            self.set_class(event.size.height >= n_rows, f"-h{n_rows}")

    def bound(self, panel: Panel) -> Panel:
        """`panel`, following this screen's moment."""
        return panel.data_bind(LiveScreen.moment)

    def __init__(self) -> None:
        super().__init__()
        self._early_lines: list[LogLine] = []

    def on_mount(self) -> None:
        self.add_log(self._early_lines)

    def add_log(self, lines: Iterable[LogLine]) -> None:
        """Hand new lines to the LOG panel; those that come before there is one wait for it."""
        panels = list(self.query(LogPanel))
        if not panels:
            self._early_lines.extend(lines)
        for panel in panels:
            panel.add(lines)

    def clear_log(self) -> None:
        """Empty the LOG panel."""
        for panel in self.query(LogPanel):
            panel.clear_lines()
