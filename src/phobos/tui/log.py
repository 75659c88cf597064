"""The log lines the dashboard shows: a bounded ring that any thread may add to.

`LogRing` is a `logging.Handler`, so attaching it to the root logger makes every library's line part of the LOG
panel instead of a mark across the picture. The dashboard also adds what was printed past `logging`.
Owner: whoever starts the dashboard; every method is safe from any thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass

from phobos.printable import printable


@dataclass(frozen=True)
class LogLine:
    """One line: `at_s` is wall-clock time, `level` a number of `logging`, `text` has neither line ends nor
    control characters."""

    at_s: float
    level: int
    source: str
    text: str

    def plain(self) -> str:
        """The line as it is printed when there is no dashboard."""
        clock = time.strftime("%H:%M:%S", time.localtime(self.at_s))
        return f"{clock} {logging.getLevelName(self.level).lower():<7} {self.source}: {self.text}"


class LogRing(logging.Handler):
    """The newest `capacity` lines, numbered from 0 as they come."""

    def __init__(self, capacity: int = 2000) -> None:
        super().__init__()
        self._lines: deque[LogLine] = deque(maxlen=capacity)
        self._n_added = 0
        self._guard = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record of `logging`; a traceback becomes further lines."""
        try:
            text = record.getMessage()
            if record.exc_info:
                text += "\n" + (self.formatter or logging.Formatter()).formatException(record.exc_info)
        except Exception:  # a library's broken format string must not stop the server
            text = str(record.msg)
        self.add(text, level=record.levelno, source=record.name, at_s=record.created)

    def add(self, text: str, *, level: int = logging.INFO, source: str = "phobos", at_s: float | None = None) -> None:
        """Append `text`, one line of the ring for each of its lines."""
        at = time.time() if at_s is None else at_s
        lines = [LogLine(at, level, source, printable(part)) for part in text.splitlines() if part.strip()]
        with self._guard:
            self._lines.extend(lines)
            self._n_added += len(lines)

    def since(self, n_seen: int) -> tuple[tuple[LogLine, ...], int]:
        """The lines added after the first `n_seen`, as far as they are still held, and how many there are by now."""
        with self._guard:
            if n_seen >= self._n_added:
                return (), self._n_added
            n_new = min(self._n_added - n_seen, len(self._lines))
            held = list(self._lines)
            return tuple(held[len(held) - n_new :]), self._n_added

    def last(self, n_lines: int) -> tuple[LogLine, ...]:
        """The newest `n_lines`, oldest first."""
        with self._guard:
            return tuple(self._lines)[-n_lines:] if n_lines else ()
