"""How loud Phobos is and where its log lines go: `PHOBOS_LOG=off|info|debug|trace`, decided here and nowhere else.

Modules write through `logging.getLogger("phobos.<part>")`. `trace` is the only level at which requests' contents
may be written (`TRACE`, below `DEBUG`). Lines go to standard error, one event a line, so that `grep` works:
`2026-11-29T21:58:08.120 info http: listening on http://127.0.0.1:8080`. A display that owns the terminal takes
the lines instead by `redirect(handler)`.

Nobody waits for a log: a line is left in a bounded queue, and a thread of its own writes it. When whoever reads
standard error falls behind, further lines are dropped, and a line says how many once it reads again.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from phobos.errors import UsageError
from phobos.printable import clean, printable

TRACE = 5
OFF = logging.CRITICAL + 10
LEVELS = {"off": OFF, "info": logging.INFO, "debug": logging.DEBUG, "trace": TRACE}
ROOT = "phobos"
MOST_LINES, MOST_CHARS = 4096, 1 << 20  # that may wait to be written; a longer line waits alone
FLUSH_S = 1.0  # how long an end waits for the lines before it


class LineFormatter(logging.Formatter):
    """Time, level, part and message on one line; a traceback follows on lines of its own. What clients and files say
    is made printable here."""

    def format(self, record: logging.LogRecord) -> str:
        """The line for one record; line breaks within the message become spaces."""
        clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(record.created))
        part = record.name.removeprefix(ROOT + ".")
        message = printable(" ".join(record.getMessage().splitlines()))
        line = f"{clock}.{int(record.msecs):03d} {record.levelname.lower()} {part}: {message}"
        if record.exc_info:
            line += "\n" + clean(self.formatException(record.exc_info))
        return line


class Writer:
    """Writes lines to whatever `sys.stderr` is at the time, on its own thread. Any thread may `add` and `flush`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lines: deque[str] = deque()  # guarded by _changed, as all below
        self._n_chars = 0
        self._n_dropped = 0
        self._is_writing = False
        self._thread: threading.Thread | None = None

    def add(self, line: str) -> None:
        """Leave a line to be written, or drop it where too many wait."""
        with self._changed:
            is_full = len(self._lines) >= MOST_LINES or self._n_chars + len(line) > MOST_CHARS
            if self._lines and is_full:
                self._n_dropped += 1
                return
            self._lines.append(line)
            self._n_chars += len(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="phobos-log", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, timeout_s: float = FLUSH_S) -> bool:
        """Wait until all lines are written; False where nobody reads them in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._lines and not self._is_writing, timeout_s)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines)
                lines, n_dropped = list(self._lines), self._n_dropped
                self._lines.clear()
                self._n_chars = self._n_dropped = 0
                self._is_writing = True
            if n_dropped:
                lines.append(_LINE_FORMATTER.format(_dropped(n_dropped)))
            with suppress(OSError, ValueError):  # nobody can read any more: that must not end the server
                _write("\n".join(lines) + "\n")


class QueueHandler(logging.Handler):
    """Formats records where they arise and leaves them to the writer."""

    def __init__(self, writer: Writer) -> None:
        super().__init__()
        self._writer = writer
        self.setFormatter(_LINE_FORMATTER)

    def emit(self, record: logging.LogRecord) -> None:
        """Leave one line."""
        try:
            self._writer.add(self.format(record))
        except Exception:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """A record that cannot be formatted must not end the server."""


def _dropped(n_lines: int) -> logging.LogRecord:
    message = "%d lines were dropped: standard error was not read fast enough"
    return logging.LogRecord(f"{ROOT}.log", logging.WARNING, __file__, 0, message, (n_lines,), None)


def _write(text: str) -> None:
    """Write to standard error; by its descriptor where it has one, since a thread that waits within a Python stream
    would keep everybody else, the end of the program too, from touching it."""
    stream, original = sys.stderr, sys.__stderr__
    if original is None or stream is not original:
        if stream is not None:
            stream.write(text)
            stream.flush()
        return
    descriptor, data = original.fileno(), memoryview(text.encode(errors="backslashreplace"))
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            select.select([], [descriptor], [])


_LINE_FORMATTER = LineFormatter()
_WRITER = Writer()
flush = _WRITER.flush
atexit.register(flush)


def level_named(name: str) -> int:
    """The number of a level's name; `UsageError` for a name that is none."""
    level = LEVELS.get(name.strip().lower())
    if level is None:
        raise UsageError(f"PHOBOS_LOG is {name!r}: use off, info, debug or trace")
    return level


def configure(name: str | None = None) -> None:
    """Set the level (`None`: from `PHOBOS_LOG`, else info) and send lines to standard error; again replaces. What
    libraries warn of goes the same way."""
    logging.addLevelName(TRACE, "TRACE")
    logger = logging.getLogger(ROOT)
    logger.setLevel(level_named(name if name is not None else os.environ.get("PHOBOS_LOG") or "info"))
    logger.propagate = False
    logger.handlers[:] = [QueueHandler(_WRITER)]
    logging.lastResort = QueueHandler(_WRITER)
    logging.lastResort.setLevel(logging.WARNING)


@contextmanager
def redirect(handler: logging.Handler) -> Iterator[None]:
    """Send Phobos's lines, and those of every library, to `handler` for a while; then all is as before."""
    mine, root = logging.getLogger(ROOT), logging.getLogger()
    before = mine.handlers[:], root.handlers[:]
    mine.handlers[:], root.handlers[:] = [handler], [handler]
    try:
        yield
    finally:
        mine.handlers[:], root.handlers[:] = before
