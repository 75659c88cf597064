"""How loud Phobos is and where its log lines go: `PHOBOS_LOG=off|info|debug|trace`, decided here and nowhere else.

Modules write through `logging.getLogger("phobos.<part>")`. `trace` is the only level at which requests' contents
may be written (`TRACE`, below `DEBUG`). Lines go to standard error, one event a line, so that `grep` works:
`2026-11-29T21:58:08.120 info http: listening on http://127.0.0.1:8080`. A display that owns the terminal takes
the lines instead by `redirect(handler)`.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from phobos.errors import UsageError

TRACE = 5
OFF = logging.CRITICAL + 10
LEVELS = {"off": OFF, "info": logging.INFO, "debug": logging.DEBUG, "trace": TRACE}
ROOT = "phobos"


class LineFormatter(logging.Formatter):
    """Time, level, part and message on one line; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """The line for one record; line breaks within the message become spaces."""
        clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(record.created))
        part = record.name.removeprefix(ROOT + ".")
        message = " ".join(record.getMessage().splitlines())
        line = f"{clock}.{int(record.msecs):03d} {record.levelname.lower()} {part}: {message}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class StandardErrorHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to whatever `sys.stderr` is at the time, and drops lines once nobody can read them."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(LineFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        self.stream = sys.stderr
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """A closed standard error must not end the server."""


def level_named(name: str) -> int:
    """The number of a level's name; `UsageError` for a name that is none."""
    level = LEVELS.get(name.strip().lower())
    if level is None:
        raise UsageError(f"PHOBOS_LOG is {name!r}: use off, info, debug or trace")
    return level


def configure(name: str | None = None) -> None:
    """Set the level (`None`: from `PHOBOS_LOG`, else info) and send lines to standard error; again replaces."""
    logging.addLevelName(TRACE, "TRACE")
    logger = logging.getLogger(ROOT)
    logger.setLevel(level_named(name if name is not None else os.environ.get("PHOBOS_LOG") or "info"))
    logger.propagate = False
    logger.handlers[:] = [StandardErrorHandler()]


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
