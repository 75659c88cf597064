"""The Textual application: takes five snapshots a second, hands moments to the screens, and owns the keys.

It runs on the main thread and only reads. Whatever happens to the terminal or in a panel, the server is told to
stop exactly once, by `on_quit`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, ClassVar

from textual import events
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen

from phobos.counters import Snapshot
from phobos.tui.lines import LineView
from phobos.tui.log import LogLine, LogRing
from phobos.tui.rates import Moment, RateMeter
from phobos.tui.screens.dashboard import DashboardScreen
from phobos.tui.screens.help import HelpScreen
from phobos.tui.screens.live import LiveScreen
from phobos.tui.screens.loading import LoadingScreen
from phobos.tui.screens.opening import MIN_HEIGHT, MIN_WIDTH, OpeningScreen
from phobos.tui.screens.quit import QuitScreen
from phobos.tui.terminal import Terminal
from phobos.tui.theme import NIGHT, NOON, PLAIN, THEMES, choose_theme, palette_of

SNAPSHOT_INTERVAL_S = 0.2
#: What the drawing thread may take of a core while passes run and otherwise, and the slowest it gets for that.
PASSES_SHARE, IDLE_SHARE = 0.006, 0.04
SLOWEST_INTERVAL_S = 2.0
_LOG_LINES = 1000
#: They end the server in order, as the keys do.
CAUGHT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class PhobosApp(App[None]):
    """`take_snapshot` is `counters.snapshot`; without a `terminal` (in tests) no signals are caught."""

    CSS_PATH = "phobos.tcss"
    TITLE = "Phobos"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c,ctrl+q", "quit_server", "Stop the server and quit", priority=True, show=False),
        Binding("q", "ask_to_quit", "Stop the server and quit", show=False),
        Binding("escape", "quit_idle", "Stop the server and quit where nothing runs", show=False),
        Binding("c", "clear_log", "Clear the log", show=False),
        Binding("r", "reset_peaks", "Reset the peaks", show=False),
        Binding("p", "replay", "Replay the opening", show=False),
        Binding("t", "toggle_light", "Light or dark", show=False),
        Binding("question_mark", "help", "Keys", show=False),
    ]

    def __init__(
        self,
        take_snapshot: Callable[[], Snapshot],
        log: LogRing,
        *,
        animate: bool,
        on_quit: Callable[[], None],
        wanted_theme: str | None = None,
        terminal: Terminal | None = None,
        clock: Callable[[], float] = time.monotonic,
        ticking: bool = True,
    ) -> None:
        self.terminal = terminal
        monochrome = bool(os.environ.get("NO_COLOR"))
        if not monochrome:
            os.environ.pop("NO_COLOR", None)  # Textual would take an empty one for a wish
        super().__init__(ansi_color=True if monochrome else None)
        for theme in THEMES:
            self.register_theme(theme)
        chosen = PLAIN if monochrome else choose_theme(wanted_theme, self.console.color_system, os.environ)
        self.theme = chosen
        self.crash: BaseException | None = None
        self.moment: Moment | None = None
        self.quit_called = False
        self.hurried = False  # told to quit again while the server was stopping
        self._snapshot_now = take_snapshot
        self._ring = log
        self._n_log_seen = 0
        self._log_lines: deque[LogLine] = deque(maxlen=_LOG_LINES)
        self._meter = RateMeter()
        self._opens = animate
        self._stop = on_quit
        self._seconds = clock
        self._ticks = ticking
        self._base: LiveScreen | None = None
        self._ticked_s = self._asked_s = clock()
        self._used_s = time.thread_time()
        self._credit_s = 0.0

    async def on_mount(self) -> None:
        self.begin_capture_print(self)
        self.theme_changed_signal.subscribe(self, self._redraw)
        if self.terminal is not None:
            self._catch_signals()
        self.tick()
        width, height = self.size
        if self._opens and width >= MIN_WIDTH and height >= MIN_HEIGHT:
            await self.push_screen(OpeningScreen(self._leave_opening, self._seconds))
        if self._ticks:
            self.set_interval(SNAPSHOT_INTERVAL_S, self._tick_in_budget)

    def _tick_in_budget(self) -> None:
        """`tick`, unless this thread has used more than its share of a processor: then later, but within two seconds.

        The engine's team needs every core; a large terminal is drawn less often rather than at its expense.
        """
        now_s, used_s = self._seconds(), time.thread_time()
        computing = self.moment is not None and self.moment.snapshot.state in ("PREFILL", "DECODE")
        share = PASSES_SHARE if computing else IDLE_SHARE
        self._credit_s += share * (now_s - self._asked_s) - (used_s - self._used_s)
        self._credit_s = max(-share * SLOWEST_INTERVAL_S, min(self._credit_s, share * SNAPSHOT_INTERVAL_S))
        self._asked_s, self._used_s = now_s, used_s
        if self._credit_s >= 0 or now_s - self._ticked_s >= SLOWEST_INTERVAL_S:
            self._ticked_s = now_s
            self.tick()

    def tick(self) -> None:
        """Take a snapshot and the new log lines and hand them to the screens."""
        snapshot = self._snapshot_now()
        if self.quit_called and snapshot.state != "FAILED":
            snapshot = replace(snapshot, state="STOPPING")
        self.moment = self._meter.observe(snapshot)
        lines, self._n_log_seen = self._ring.since(self._n_log_seen)
        self._choose_base(self.moment)
        self._log_lines.extend(lines)
        for screen in self.screen_stack:
            if isinstance(screen, LiveScreen):
                screen.moment = self.moment
                if lines:
                    screen.add_log(lines)

    def _choose_base(self, moment: Moment) -> None:
        """Loading or dashboard; the change waits while another screen lies on top."""
        snapshot = moment.snapshot
        loading = snapshot.state == "LOADING" or (snapshot.model is None and snapshot.state != "IDLE")
        kind = LoadingScreen if loading else DashboardScreen
        if isinstance(self._base, kind) or (self._base is not None and self.screen is not self._base):
            return
        screen = kind()
        screen.moment = moment
        if self._base is None:
            self.push_screen(screen, wait_for_dismiss=False)
        else:
            self.switch_screen(screen)
        self._base = screen
        screen.add_log(self._log_lines)

    def on_print(self, event: events.Print) -> None:
        """What was printed in Python becomes part of the log."""
        level = logging.WARNING if event.stderr else logging.INFO
        self._ring.add(event.text, level=level, source="output")

    @property
    def n_requests(self) -> int:
        """Requests that run or wait now; none once the engine has failed."""
        snapshot = self._snapshot_now()
        return len(snapshot.live) + snapshot.queue_depth if snapshot.state != "FAILED" else 0

    def action_ask_to_quit(self) -> None:
        """Stop the server, having asked where that would cut requests short."""
        if self.quit_called or not self.n_requests:
            self.action_quit_server()
        else:
            self.push_screen(QuitScreen(self.n_requests), self._quit_if)

    def _quit_if(self, wanted: bool | None) -> None:
        if wanted:
            self.action_quit_server()

    def action_quit_idle(self) -> None:
        """Escape is also how a cut arrow key begins, so it ends nothing that runs."""
        if not self.quit_called and not self.n_requests:
            self.action_quit_server()

    def action_quit_server(self) -> None:
        """Stop the server, then leave; a second time leaves at once."""
        if self.quit_called:
            self.hurried = True
            self.exit()
            return
        self.quit_called = True
        self.tick()  # STOPPING shows now, not with the next snapshot
        threading.Thread(target=self._stop_server, name="phobos-quit", daemon=True).start()

    def _stop_server(self) -> None:
        try:
            self._stop()
        except Exception as error:
            self.crash = self.crash or error
        with contextlib.suppress(RuntimeError):  # where the user has not waited, the app is gone
            self.call_from_thread(self.exit)

    def action_clear_log(self) -> None:
        self._log_lines.clear()
        for screen in self.screen_stack:
            if isinstance(screen, LiveScreen):
                screen.clear_log()

    def action_reset_peaks(self) -> None:
        self._meter.reset_peaks()

    async def action_replay(self) -> None:
        if self.size.width >= MIN_WIDTH and self.size.height >= MIN_HEIGHT:
            await self.push_screen(OpeningScreen(self._leave_opening, self._seconds))

    def _leave_opening(self) -> None:
        self.pop_screen()

    def action_help(self) -> None:
        self.push_screen(HelpScreen())

    def action_toggle_light(self) -> None:
        if self.theme != PLAIN:
            self.theme = NIGHT if self.theme == NOON else NOON

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """The palette: our keys by name, themes, and a picture of the screen."""
        yield SystemCommand("Clear the log", "Empty the LOG panel", self.action_clear_log)
        yield SystemCommand("Reset the peaks", "Start new peak readings", self.action_reset_peaks)
        yield SystemCommand("Replay the opening", "Phobos over Mars once more", self.action_replay)
        yield SystemCommand("Light or dark", "Mars at noon or at night", self.action_toggle_light)
        yield SystemCommand("Theme", "Choose among all themes", self.action_change_theme)
        yield SystemCommand("Save a picture", "Write the screen as an SVG file", self.action_screenshot)
        yield SystemCommand("Keys", "Show the help", self.action_help)
        yield SystemCommand("Quit", "Stop the server and quit", self.action_quit_server)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Our style sheet's own variables, for themes that do not know them."""
        palette = palette_of(self.current_theme)
        return {
            "panel-border": palette.faint,
            "panel-title": palette.title,
            "dim": palette.dim,
            "faint": palette.faint,
        }

    def _redraw(self, _: object) -> None:
        for screen in self.screen_stack:
            for view in screen.query(LineView):
                view.redraw()

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in CAUGHT_SIGNALS:
            loop.add_signal_handler(number, self.action_quit_server)

    def _handle_exception(self, error: Exception) -> None:
        self.crash = self.crash or error
        super()._handle_exception(error)

    def _fatal_error(self) -> None:
        """Leave without Textual's own report: it shows local variables, which hold what people wrote."""
        self._close_messages_no_wait()
