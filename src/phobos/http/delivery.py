"""Events on their way from the engine's thread to the listener's loop.

The engine calls a sink for every event and must never wait, so a sink only appends to a deque and, when no wake-up
is already under way, asks the loop for one: a burst of events costs one wake-up for the whole listener. On the
loop's side an `EventStream` hands out whole batches, so a slow reader gets its text in few large pieces. What a
stream holds is bounded by what one request may generate.
"""

from __future__ import annotations

import asyncio
from collections import deque

from phobos.chat.events import Event, Failed, Finished, ReasoningDelta, Sink, TextDelta, ToolCallDelta
from phobos.errors import PhobosError


class Mailbox:
    """The crossing from any thread to one loop; owned by the listener. `post` is thread safe."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._events: deque[tuple[EventStream, int, Event]] = deque()
        self._awake = False

    def post(self, stream: EventStream, choice: int, event: Event) -> None:
        """Leave an event for a stream; never blocks."""
        self._events.append((stream, choice, event))
        if not self._awake:
            self._awake = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop is closed: nobody is left to read
                self._events.clear()

    def _deliver(self) -> None:
        # Cleared first: an event that lands while we empty the deque at worst causes one idle wake-up.
        self._awake = False
        events = self._events
        while events:
            stream, choice, event = events.popleft()
            stream.take(choice, event)


class EventStream:
    """The events of one request's choices; used on the loop only, but for the sinks it makes."""

    def __init__(self, mailbox: Mailbox, n_choices: int) -> None:
        self._mailbox = mailbox
        self._open = set(range(n_choices))
        self._ready: list[tuple[int, Event]] = []
        self._waiter: asyncio.Future[None] | None = None

    def sink(self, choice: int) -> Sink:
        """The sink of one choice."""
        mailbox = self._mailbox

        def deliver(event: Event) -> None:
            mailbox.post(self, choice, event)

        return deliver

    def take(self, choice: int, event: Event) -> None:
        """An event arrives; what comes after a choice's end is dropped."""
        if choice not in self._open:
            return
        if isinstance(event, Finished | Failed):
            self._open.discard(choice)
        self._ready.append((choice, event))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def fail(self, error: PhobosError) -> None:
        """End every open choice with an error."""
        for choice in sorted(self._open):
            self.take(choice, Failed(error))

    async def next_batch(self, timeout_s: float) -> list[tuple[int, Event]]:
        """All events that have arrived, waiting for the first; empty after `timeout_s` of silence."""
        if not self._ready:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(timeout_s, _expire, self._waiter)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        batch, self._ready = self._ready, []
        return batch


def _expire(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def coalesce(batch: list[tuple[int, Event]]) -> list[tuple[int, Event]]:
    """Join neighbouring deltas of one kind and choice: a reader that is behind gets fewer, larger chunks."""
    if len(batch) < 2:
        return batch
    joined: list[tuple[int, Event]] = []
    run: list[Event] = []
    run_key: tuple[int, type[Event], int] | None = None
    run_choice = 0
    for choice, event in batch:
        key = (choice, type(event), event.index if isinstance(event, ToolCallDelta) else 0)
        if run and key != run_key:
            joined.append((run_choice, _join(run)))
            run = []
        if isinstance(event, TextDelta | ReasoningDelta | ToolCallDelta):
            run.append(event)
            run_key, run_choice = key, choice
        else:
            joined.append((choice, event))
    if run:
        joined.append((run_choice, _join(run)))
    return joined


def _join(run: list[Event]) -> Event:
    """One delta that says what a run of deltas of one kind says."""
    first = run[0]
    if len(run) == 1:
        return first
    if isinstance(first, TextDelta):
        texts = [event for event in run if isinstance(event, TextDelta)]
        logprobs = tuple(entry for event in texts for entry in event.logprobs)
        return TextDelta("".join(event.text for event in texts), logprobs)
    if isinstance(first, ReasoningDelta):
        return ReasoningDelta("".join(event.text for event in run if isinstance(event, ReasoningDelta)))
    assert isinstance(first, ToolCallDelta)
    return ToolCallDelta(first.index, "".join(event.arguments for event in run if isinstance(event, ToolCallDelta)))
