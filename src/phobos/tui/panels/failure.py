"""FAILED: why the engine stopped, over all other panels; not there while it runs."""

from __future__ import annotations

from textual.content import Content

from phobos.tui.lines import Lines
from phobos.tui.panels.panel import Panel
from phobos.tui.rates import Moment
from phobos.tui.theme import Palette


class FailurePanel(Panel):
    """Shows itself by the class `-failed`."""

    TITLE = "FAILED"

    def watch_moment(self) -> None:
        self.set_class(self.moment is not None and self.moment.snapshot.state == "FAILED", "-failed")
        super().watch_moment()

    def draw(self, moment: Moment, width: int, height: int, palette: Palette) -> Lines:
        snapshot = moment.snapshot
        reason = snapshot.failure or snapshot.load.error or "the engine stopped; the log may tell why"
        return Content.styled(f"{reason}  (q quits)", f"bold {palette.error}").wrap(width)
