"""The dashboard proper: all panels; `phobos.tcss` lays them out by the classes the size gives."""

from __future__ import annotations

from textual.app import ComposeResult

from phobos.tui.lines import Box
from phobos.tui.panels.caches import CachesPanel
from phobos.tui.panels.card import CardPanel
from phobos.tui.panels.failure import FailurePanel
from phobos.tui.panels.log import LogPanel
from phobos.tui.panels.memory import MemoryPanel
from phobos.tui.panels.model import ModelPanel
from phobos.tui.panels.network import NetworkPanel
from phobos.tui.panels.requests import RequestsPanel
from phobos.tui.panels.status import StatusPanel
from phobos.tui.panels.throughput import ThroughputPanel
from phobos.tui.screens.live import LiveScreen
from phobos.tui.screens.request import RequestScreen


class DashboardScreen(LiveScreen):
    """Facts beside or above, throughput and requests in the middle, the log beneath or at the right."""

    WIDTHS = (60, 100, 120, 170)
    HEIGHTS = (22, 29, 36, 50)

    def compose(self) -> ComposeResult:
        yield self.bound(FailurePanel())
        with Box(id="body"):
            with Box(id="facts"):
                yield self.bound(ModelPanel())
                yield self.bound(MemoryPanel())
                yield self.bound(CardPanel())
                yield self.bound(CachesPanel())
            with Box(id="main"):
                with Box(id="work"):
                    yield self.bound(ThroughputPanel())
                    yield self.bound(RequestsPanel())
                yield self.bound(LogPanel())
        yield self.bound(NetworkPanel())
        yield self.bound(StatusPanel())

    def on_mount(self) -> None:
        self.query_one(RequestsPanel).focus()

    def on_requests_panel_chosen(self, message: RequestsPanel.Chosen) -> None:
        """Enter on a request: its timings over the dashboard, kept up to date."""
        screen = RequestScreen(message.request_id)
        screen.moment = self.moment
        self.app.push_screen(screen)
