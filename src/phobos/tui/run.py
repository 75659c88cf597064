"""`run_dashboard`: what the command line calls on the main thread while listener and engine run on theirs."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable

from phobos.counters import Counters
from phobos.errors import PhobosError
from phobos.tui.app import CAUGHT_SIGNALS, PhobosApp
from phobos.tui.log import LogRing
from phobos.tui.terminal import Terminal, TerminalDriver

#: Log lines printed when the end was a failure.
_LAST_LINES = 20


def run_dashboard(
    counters: Counters,
    log: LogRing,
    *,
    animate: bool,
    on_quit: Callable[[], None],
    theme: str | None = None,
) -> str | None:
    """Draw until the user quits or the process is told to end.

    `log` should be the only handler of the root logger meanwhile. `on_quit` stops the server: it is called once, on
    a thread of its own while the dashboard shows STOPPING, and may block. `theme` is "dark", "light" or `None`.

    Returns why loading or the engine failed, if it did, having printed the last log lines to standard error; the
    caller prints the sentence and chooses the exit code. A defect of the dashboard itself is a `PhobosError`.
    `KeyboardInterrupt`: the user asked a second time and will not wait for the server to stop.
    """
    with Terminal(log) as terminal:
        app = PhobosApp(counters.snapshot, log, animate=animate, on_quit=on_quit, wanted_theme=theme, terminal=terminal)
        app.driver_class = TerminalDriver
        before = [(number, signal.getsignal(number)) for number in CAUGHT_SIGNALS]
        try:
            app.run()
        except Exception as error:  # raised by Textual around the app, not inside it
            app.crash = app.crash or error
        finally:
            for number, handler in before:
                signal.signal(number, handler)
    if app.hurried:
        raise KeyboardInterrupt
    if not app.quit_called:
        on_quit()
    snapshot = counters.snapshot()
    failure = snapshot.failure or snapshot.load.error
    if failure or app.crash is not None:
        for line in log.last(_LAST_LINES):
            print(line.plain(), file=sys.stderr)
    if app.crash is not None:
        where = traceback.extract_tb(app.crash.__traceback__)[-1:]
        place = f" in {where[0].name}" if where else ""
        raise PhobosError(
            f"the dashboard failed{place} ({type(app.crash).__name__}: {app.crash}); serve without it: --no-tui"
        ) from app.crash
    return failure
