"""Serving: the port first, then the model behind it, and an orderly end.

The listener is bound before anything heavy is imported, so that a request sent at once waits instead of failing.
A loader thread brings the engine; the main thread waits for the end, or draws the dashboard meanwhile. The first
SIGINT or SIGTERM stops accepting and gives running requests `drain_s` seconds; the second ends at once.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from phobos import log
from phobos.counters import Counters
from phobos.errors import PhobosError, UnavailableError
from phobos.host import servers
from phobos.http.listener import Listener
from phobos.settings import EngineSettings, ServeSettings
from phobos.tui.choose import dashboard_reason_off

if TYPE_CHECKING:
    from phobos.engine.engine import Engine

logger = logging.getLogger("phobos.serve")
SWITCH_INTERVAL_S = 0.0005  # so that the engine waits little for the interpreter while the dashboard draws
WATCH_S = 0.5
STOPPING = ("SIGINT", "SIGTERM", "SIGHUP")  # each drains and keeps what is to be kept; not every system has the last


@dataclass(frozen=True)
class Display:
    """What the flags say of the dashboard; `tui` `None`: drawn where it can be; `theme` `None`: the terminal's."""

    tui: bool | None = None
    animation: bool = True
    theme: str | None = None


class Stop:
    """The end that somebody asked for. Owner: the main thread, which waits; any thread or signal handler may `ask`:
    that sets a flag and writes to a descriptor, and takes no lock that the interrupted code may hold."""

    def __init__(self) -> None:
        self.is_asked = False
        self.exit_code = 0
        self._bell, self._push = socket.socketpair()
        self._push.setblocking(False)

    def ask(self, exit_code: int = 0) -> None:
        """Ask once for an orderly end."""
        if not self.is_asked:
            self.exit_code = exit_code
            self.is_asked = True
            with suppress(OSError):  # closed: nobody waits any more
                self._push.send(b"!")

    def wait(self, timeout_s: float) -> bool:
        """Wait for somebody to ask; whether one has."""
        if not self.is_asked:
            select.select([self._bell], [], [], timeout_s)
        return self.is_asked

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Ask for the end; at the second signal make it."""
        if self.is_asked:
            os._exit(130)
        self.ask(130 if number == signal.SIGINT else 0)

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Take SIGINT, SIGTERM and SIGHUP for a while. If an end was asked for, the next one ends the process, whatever
        it does by then."""
        numbers = [number for name in STOPPING if (number := getattr(signal, name, None)) is not None]
        before = [signal.signal(number, self.on_signal) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, signal.SIG_DFL if self.is_asked else handler)
            self._bell.close()
            self._push.close()


class Loader(threading.Thread):
    """Brings the engine and hands it to the listener. Daemon: a compile in progress never holds the end up."""

    def __init__(self, settings: EngineSettings, counters: Counters, listener: Listener, stop: Stop) -> None:
        super().__init__(name="phobos-loader", daemon=True)
        self._settings = settings
        self._counters = counters
        self._listener = listener
        self._end = stop
        self.engine: Engine | None = None
        self.failure: Exception | None = None

    def run(self) -> None:
        """Load; a failure is told to the waiting requests and ends the program."""
        began_s = time.monotonic()
        try:
            from phobos.runtime import LoadLog, log_ready, start_engine

            engine = start_engine(self._settings, self._counters, LoadLog())
            self.engine = engine
            self._listener.attach(engine)
            engine.model.warm()
            log_ready(engine, self._counters, time.monotonic() - began_s)
            gc.freeze()  # what was loaded stays: no collection looks through it again, which takes tens of ms
        except Exception as error:
            logger.debug("loading failed", exc_info=True)
            self.failure = error
            masked = error if isinstance(error, PhobosError) else UnavailableError("the model could not be loaded")
            self._listener.fail(masked)
            self._end.ask(1)


def serve(settings: EngineSettings, serve_settings: ServeSettings, display: Display) -> int:
    """Serve until a signal, a key of the dashboard, or a failure, which is raised."""
    reason_off = dashboard_reason_off(
        no_tui=display.tui is False,
        tui=display.tui is True,
        stdout_is_terminal=sys.stdout is not None and sys.stdout.isatty(),
        environ=os.environ,
    )
    counters = Counters()
    listener = Listener(serve_settings, counters)
    listener.bind()
    stop = Stop()
    with stop.signals(), servers.registered(counters.address, settings.model_path):
        listener.start()
        if reason_off is not None:
            logger.info("listening on %s", counters.address)
            logger.info("%s", reason_off)
        loader = Loader(settings, counters, listener, stop)
        loader.start()
        if reason_off is None:
            _draw_dashboard(counters, listener, stop, display, serve_settings.drain_s)
        else:
            _wait(loader, stop)
        return _end(listener, loader, stop, serve_settings.drain_s)


def _wait(loader: Loader, stop: Stop) -> None:
    """Until an end is asked for or the engine has died."""
    while not stop.wait(WATCH_S):
        if loader.engine is not None and not loader.engine.alive:
            return


def _draw_dashboard(counters: Counters, listener: Listener, stop: Stop, display: Display, drain_s: float) -> None:
    """Until the user quits or a signal comes; log lines are the dashboard's meanwhile."""
    from phobos.tui.log import LogRing
    from phobos.tui.run import run_dashboard

    sys.setswitchinterval(SWITCH_INTERVAL_S)

    def quit_server() -> None:
        stop.ask(0)
        listener.close(drain_s)

    ring = LogRing()
    with log.redirect(ring):
        logger.info("listening on %s", counters.address)
        try:
            run_dashboard(counters, ring, animate=display.animation, on_quit=quit_server, theme=display.theme)
        except KeyboardInterrupt:
            sys.stderr.flush()
            os._exit(130)  # as a second signal does
    stop.ask(0)


def _end(listener: Listener, loader: Loader, stop: Stop, drain_s: float) -> int:
    """Drain, close, and raise what ended the engine, if anything did."""
    died = loader.engine is not None and not loader.engine.alive
    if not died and loader.failure is None:
        logger.info("stopping: running requests have %g s to finish", drain_s)
    listener.close(drain_s)
    if died and loader.engine is not None:
        raise loader.engine.failure or UnavailableError("the engine stopped: start the server again")
    if loader.failure is not None:
        raise loader.failure
    if loader.is_alive():
        logger.info("stopped while loading")
        log.flush()
        os._exit(stop.exit_code)
    if loader.engine is not None:
        loader.engine.close(0.0)
    logger.info("stopped")
    return stop.exit_code
