"""The terminal while the dashboard has it: kept apart from everything else, and given back whatever happens.

`Terminal` is a context. Inside it the real terminal is a private file that only the dashboard writes to; what any
library or child process prints to the process's standard output or error arrives as lines in the log. On the way
out, by whatever road, the terminal's modes and contents are as they were; even where the process is killed or
crashes, because a waiting shell sees its pipe close and does it instead.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import termios
import threading
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self, cast

from textual.drivers.linux_driver import LinuxDriver

from phobos.tui.log import LogRing

if TYPE_CHECKING:
    from textual.app import App

#: Colours off; mouse, paste, focus and resize reports off; wrapping on; keyboard protocol popped; screen left;
#: cursor shown. Harmless where the driver has already said so.
_RESET = (
    "\x1b[0m\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l\x1b[?2004l\x1b[?1004l\x1b[?2048l"
    "\x1b[?7h\x1b[<u\x1b[?1049l\x1b[?25h"
)

#: What the waiting shell does: remember the modes, wait for a word, and where there is none put all back. Its own
#: session keeps signals meant for the server away from it and lets it set the modes of a terminal it no longer owns.
_WATCH = """exec 3>&1
saved=$(stty -g <&3) || exit 0
read -r word
[ "$word" ] || { printf %b "$0"; stty "$saved" <&3; }
"""


class TerminalFile:
    """What the driver writes to. A terminal that has gone away must not stop the server, so errors end here."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._file.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()


class Terminal:
    """The terminal of this process; see the module. `log` takes what others print."""

    def __init__(self, log: LogRing) -> None:
        self._log = log
        self._stack = contextlib.ExitStack()
        self.keys_fd = -1
        self.file: TerminalFile | None = None

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            sys.stdout.flush()
            sys.stderr.flush()
            screen = stack.enter_context(os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace"))
            self.file = TerminalFile(screen)
            self.keys_fd = _open_keys(stack)
            stack.callback(self._give_back, _modes(self.keys_fd))
            _watch(stack, screen)
            self._divert(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def size(self) -> tuple[int, int]:
        """Columns and rows; 80 by 24 where the terminal does not know."""
        try:
            size = os.get_terminal_size(self.file.fileno() if self.file else 1)
        except (OSError, ValueError):
            return 80, 24
        return size.columns or 80, size.lines or 24

    def _give_back(self, modes: list[Any] | None) -> None:
        if self.file is not None:
            self.file.write(_RESET)
            self.file.flush()
        if modes is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self.keys_fd, termios.TCSANOW, modes)

    def _divert(self, stack: contextlib.ExitStack) -> None:
        """Point descriptors 1 and 2 at a pipe into the log; a standard error that goes to a file stays there."""
        reading, writing = os.pipe()
        diverted = [fd for fd in (1, 2) if fd == 1 or os.isatty(fd)]
        kept = [(fd, os.dup(fd)) for fd in diverted]
        reader = threading.Thread(target=self._read_lines, args=(reading,), name="phobos-stray-output", daemon=True)

        def restore() -> None:
            sys.stdout.flush()
            sys.stderr.flush()
            for fd, saved in kept:
                os.dup2(saved, fd)
                os.close(saved)
            reader.join(timeout=1.0)  # a child that still holds the pipe must not keep us

        for fd in diverted:
            os.dup2(writing, fd)
        os.close(writing)
        reader.start()
        stack.callback(restore)

    def _read_lines(self, reading: int) -> None:
        with os.fdopen(reading, "r", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                self._log.add(line.rstrip("\n"), level=logging.INFO, source="output")


class TerminalDriver(LinuxDriver):
    """Textual's driver on a `Terminal`'s file and keys instead of the process's standard streams."""

    def __init__(self, app: App[Any], **options: Any) -> None:
        super().__init__(app, **options)
        terminal: Terminal | None = getattr(app, "terminal", None)
        if terminal is None or terminal.file is None:
            raise RuntimeError("the driver needs an app whose terminal is entered")
        self._terminal = terminal
        self._file = cast(Any, terminal.file)
        self.fileno = terminal.keys_fd
        self.input_tty = os.isatty(terminal.keys_fd)

    def _get_terminal_size(self) -> tuple[int, int]:
        return self._terminal.size()

    def _sigcont_application(self, *_: object) -> None:
        """Go on after a stop. One that could not be caught (SIGSTOP) has left the terminal to nobody and our threads as
        they were: they end first, or each stop would add another two."""
        if self._auto_restart and not self._must_signal_resume:
            self.suspend_application_mode()
        super()._sigcont_application()


def _watch(stack: contextlib.ExitStack, screen: IO[str]) -> None:
    """Start the shell that puts the terminal back when this process ends without having done so."""
    if not screen.isatty():
        return
    reset = _RESET.replace("\x1b", "\\033")
    try:
        watcher = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, reset],
            stdin=subprocess.PIPE,
            stdout=screen,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:  # no shell: then only a kill leaves the terminal as it is
        return

    def dismiss() -> None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            watcher.communicate(b"done\n", timeout=2.0)

    stack.callback(dismiss)


def _open_keys(stack: contextlib.ExitStack) -> int:
    """A descriptor to read keys from: standard input, else the controlling terminal, else one that stays silent."""
    if os.isatty(0):
        return 0
    try:
        keys_fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        keys_fd, writing = os.pipe()
        stack.callback(os.close, writing)
    stack.callback(os.close, keys_fd)
    return keys_fd


def _modes(fd: int) -> list[Any] | None:
    try:
        return termios.tcgetattr(fd)
    except termios.error:
        return None
