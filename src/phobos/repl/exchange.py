"""One question and its answer: the request goes to the partner, its events come back through a queue.

The events arrive on another thread; everything here runs on the main one. While nothing comes, `on_tick` is called
`TICK_S` apart so that a display can move, and `stopped` is asked whether the user has had enough.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass

from phobos.chat.events import (
    Event,
    Failed,
    Finished,
    ReasoningDelta,
    Sink,
    Started,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
)
from phobos.chat.messages import GenerationRequest
from phobos.errors import PhobosError, UnavailableError
from phobos.repl.partner import Partner

TICK_S = 0.03


@dataclass
class Answer:
    """What has come back; times are seconds since the question was sent."""

    text: str = ""
    reasoning: str = ""
    started: Started | None = None
    finished: Finished | None = None
    error: PhobosError | None = None
    stopped: bool = False
    first_s: float | None = None
    total_s: float = 0.0
    n_deltas: int = 0

    def take(self, event: Event, now_s: float) -> None:
        """Fold one event in. A call the model makes unasked is shown as the text it is."""
        match event:
            case Started():
                self.started = event
            case TextDelta(text=text) if text:
                self._note(now_s)
                self.text += text
            case ReasoningDelta(text=text) if text:
                self._note(now_s)
                self.reasoning += text
            case ToolCallStart(name=name):
                self._note(now_s)
                self.text += f"\n\n{name} "
            case ToolCallDelta(arguments=arguments):
                self._note(now_s)
                self.text += arguments
            case Finished():
                self.finished = event
            case Failed(error=error):
                self.error = error

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.finished is not None or self.error is not None or self.stopped

    @property
    def rate(self) -> float | None:
        """Tokens a second while answering: the engine's own figure, else what was seen here."""
        finished = self.finished
        if finished is not None and finished.timings.decode_s > 0:
            return finished.usage.n_generated / finished.timings.decode_s
        n_tokens = finished.usage.n_generated if finished is not None else self.n_deltas
        if self.first_s is None or self.total_s <= self.first_s or n_tokens < 2:
            return None
        return (n_tokens - 1) / (self.total_s - self.first_s)

    def _note(self, now_s: float) -> None:
        self.n_deltas += 1
        if self.first_s is None:
            self.first_s = now_s


def run_exchange(
    partner: Partner,
    request: GenerationRequest,
    *,
    on_event: Callable[[Answer], None],
    on_tick: Callable[[Answer], None],
    stopped: Callable[[], bool],
) -> Answer:
    """Ask and wait for the end; whatever ends the wait, the request does not run on. Raises nothing of its own: what
    went wrong is in the answer's `error`."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    answer, began_s = Answer(), time.monotonic()
    sink: Sink = events.put
    try:
        ticket = partner.submit(request, sink)
    except PhobosError as error:
        answer.error = error
        return answer
    try:
        while not answer.is_over:
            try:
                event = events.get(timeout=TICK_S)
            except queue.Empty:
                if partner.failure is not None and events.empty():
                    answer.error = partner.failure or UnavailableError("no answer came: try again")
            else:
                answer.take(event, time.monotonic() - began_s)
                on_event(answer)
            answer.stopped = not answer.is_over and stopped()
            on_tick(answer)
    finally:
        answer.total_s = time.monotonic() - began_s
        if answer.finished is None:
            ticket.cancel()
    return answer
