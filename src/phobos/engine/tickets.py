"""A submitted sequence, as its submitter holds it: the way back for events, and the way to call it off.

Any thread may cancel; the engine delivers. Once a cancel has returned, the sink gets no more events.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from phobos.chat.events import Event, Sink
from phobos.engine.scoring import PromptReading
from phobos.engine.sequence import Sequence

log = logging.getLogger(__name__)


class Ticket:
    """A submitted sequence, as its submitter holds it."""

    def __init__(self, sequence: Sequence | PromptReading, sink: Sink, wake: Callable[[], None]) -> None:
        self.sequence = sequence
        self._sink = sink
        self._wake = wake
        self._lock = threading.RLock()  # re-entrant: a sink may cancel
        self.is_closed = False  # nothing more is delivered
        self.is_cancelled = False

    def cancel(self) -> None:
        """End the sequence; once this returns its sink gets no more events. Any thread; twice is fine."""
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = self.is_cancelled = True
        self._wake()

    def deliver(self, events: Iterable[Event], *, last: bool = False) -> None:
        """Give events to the sink, in order; `last` closes the ticket. A sink that fails cancels its sequence."""
        with self._lock:
            for event in events:
                if self.is_closed:
                    return
                try:
                    self._sink(event)
                except Exception:
                    log.exception("request %s: its sink failed", self.sequence.request.request_id)
                    self.is_closed = self.is_cancelled = True
            self.is_closed |= last


def slot_of(ticket: Ticket) -> int:
    """The slot a running sequence has."""
    if ticket.sequence.admission is None:
        raise AssertionError("a running sequence has a slot")
    return ticket.sequence.admission.slot
