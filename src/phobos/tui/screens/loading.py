"""The loading screen: the moon on its way across Mars as far as loading has come, and the figures beneath."""

from __future__ import annotations

from textual.app import ComposeResult

from phobos.tui.panels.loading import LoadingPanel
from phobos.tui.panels.log import LogPanel
from phobos.tui.panels.status import StatusPanel
from phobos.tui.screens.live import LiveScreen
from phobos.tui.screens.opening import SkyView

#: Where on its path the moon is when loading begins: just clear of the planet, with all of it on the screen.
_FIRST = 0.42


class LoadingScreen(LiveScreen):
    """Also shown for a load that failed: then the reason stands where the progress was."""

    WIDTHS = (60,)
    HEIGHTS = (18, 34)

    def compose(self) -> ComposeResult:
        yield SkyView()
        yield self.bound(LoadingPanel())
        yield self.bound(LogPanel())
        yield self.bound(StatusPanel())

    def watch_moment(self) -> None:
        """Move the moon: it stands where the load stands, in steps of a hundredth."""
        if self.moment is not None and self.query(SkyView):
            along = round(self.moment.snapshot.load.fraction, 2)
            self.query_one(SkyView).show(_FIRST + (1 - _FIRST) * max(0.0, min(1.0, along)), 1.0)

    def on_mount(self) -> None:
        self.query_one(LogPanel).focus()
        self.watch_moment()
