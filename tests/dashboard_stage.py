"""A dashboard on a stage: an app over made-up snapshots, without a terminal, and what it shows as text."""

from __future__ import annotations

from dashboard_moments import STATES, history
from phobos.counters import Snapshot
from phobos.tui.app import PhobosApp
from phobos.tui.log import LogRing

#: Wall-clock time of the first made-up log line.
_LOG_FROM_S = 1_700_000_000.0


class Stage:
    """An app over a made-up state, what it was told, and how often it was asked to quit."""

    def __init__(self, state: str, **options: object) -> None:
        self.snapshots = history(STATES[state]())
        self.log = LogRing()
        self.n_quits = 0
        self.now_s = 0.0
        self.current: Snapshot = self.snapshots[0]
        arguments: dict[str, object] = {"animate": False, "wanted_theme": "dark", "ticking": False, **options}
        self.app = PhobosApp(
            lambda: self.current,
            self.log,
            on_quit=self._quit,
            clock=lambda: self.now_s,
            **arguments,  # type: ignore[arg-type]
        )

    def play(self) -> None:
        """Let the app take in the history, and draw the end of it."""
        for snapshot in self.snapshots[:-1]:
            self.app._meter.observe(snapshot)
        self.current = self.snapshots[-1]
        self.app.tick()

    def write_log(self, n_lines: int = 12) -> None:
        """Add lines of several levels."""
        lines = ("listening on http://127.0.0.1:8080", "POST /v1/chat/completions 200", "GET /nowhere 404", "mapped")
        for i in range(n_lines):
            self.log.add(f"{lines[i % 4]} #{i}", level=(20, 20, 30, 10)[i % 4], source="http", at_s=_LOG_FROM_S + i)

    def _quit(self) -> None:
        self.n_quits += 1


def screen_text(app: PhobosApp) -> str:
    """What the terminal shows, as plain lines without trailing spaces."""
    strips = app.screen._compositor.render_strips()
    return "\n".join(strip.text.replace("\u2800", " ").rstrip() for strip in strips) + "\n"
