"""The dashboard proper: all panels, by the table below; `phobos.tcss` lays them out by the classes the size gives.

A new panel is a file of its own in `panels/` and a row here. Where it is to be shown only from a size on, it says so in
its `DEFAULT_CSS`, with the same classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from textual.app import ComposeResult

from phobos.tui.lines import Box
from phobos.tui.panels.caches import CachesPanel
from phobos.tui.panels.card import CardPanel
from phobos.tui.panels.failure import FailurePanel
from phobos.tui.panels.log import LogPanel
from phobos.tui.panels.memory import MemoryPanel
from phobos.tui.panels.model import ModelPanel
from phobos.tui.panels.network import NetworkPanel
from phobos.tui.panels.panel import Panel
from phobos.tui.panels.requests import RequestsPanel
from phobos.tui.panels.status import StatusPanel
from phobos.tui.panels.throughput import ThroughputPanel
from phobos.tui.screens.live import LiveScreen
from phobos.tui.screens.request import RequestScreen

PANELS: Mapping[str, tuple[type[Panel], ...]] = {
    "top": (FailurePanel,),
    "facts": (ModelPanel, MemoryPanel, CardPanel, CachesPanel),
    "work": (ThroughputPanel, RequestsPanel),
    "beside the work": (LogPanel,),
    "bottom": (NetworkPanel, StatusPanel),
}


class DashboardScreen(LiveScreen):
    """Facts beside or above, throughput and requests in the middle, the log beneath or at the right."""

    WIDTHS = (60, 100, 120, 170)
    HEIGHTS = (22, 29, 36, 50)

    def compose(self) -> ComposeResult:
        yield from self._panels("top")
        with Box(id="body"):
            with Box(id="facts"):
                yield from self._panels("facts")
            with Box(id="main"):
                with Box(id="work"):
                    yield from self._panels("work")
                yield from self._panels("beside the work")
        yield from self._panels("bottom")

    def _panels(self, place: str) -> Iterator[Panel]:
        return (self.bound(panel()) for panel in PANELS[place])

    def on_mount(self) -> None:
        self.query_one(RequestsPanel).focus()

    def on_requests_panel_chosen(self, message: RequestsPanel.Chosen) -> None:
        """Enter on a request: its timings over the dashboard, kept up to date."""
        screen = RequestScreen(message.request_id)
        screen.moment = self.moment
        self.app.push_screen(screen)
