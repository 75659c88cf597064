"""Events on their way from the engine's thread to the listener's loop.

The engine calls a sink for every event, so a sink only appends to a deque and, when no wake-up is already under way,
asks the loop for one: a burst of events costs one wake-up for the whole listener. After text has been delivered the
mailbox rests, for `REST_S` or as much longer as keeps the loop within `LOOP_SHARE` of a core: a fast model's tokens go
out a few at a time, which costs the cores it runs on a fraction of what a wake-up a token would, and nobody can see
the difference. An end does not wait, and neither does the first text of an answer. For that one the engine's thread
even gives its core away for `HANDOVER_S`, now and then: its team keeps every core busy, and who wakes up beside it
waits for a time slice. A start waits for `START_S` at most: it comes just before the pass that everybody waits for.

On the loop's side an `EventStream` hands out whole batches, so a slow reader gets its text in few large pieces. What
a stream holds is bounded by what one request may generate.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from enum import Enum
from itertools import chain, groupby

from phobos.chat.events import Event, Failed, Finished, ReasoningDelta, Sink, Started, TextDelta, ToolCallDelta
from phobos.errors import PhobosError

REST_S, LONGEST_REST_S = 0.008, 0.05
LOOP_SHARE = 0.01
START_S = 0.05
HANDOVER_S, HANDOVER_EVERY_S = 0.0005, 0.05
_DELTAS = (TextDelta, ReasoningDelta, ToolCallDelta)
_ENDS = (Finished, Failed)


class _State(Enum):
    IDLE = "idle"
    WOKEN = "woken"
    RESTING = "resting"


def choose_rest_s(used_s: float) -> float:
    """How long to rest after a round of deliveries for which the loop's thread used so much of a core."""
    return min(max(REST_S, used_s / LOOP_SHARE), LONGEST_REST_S)


class Mailbox:
    """The crossing from any thread to one loop; owned by the listener. `post` is thread safe."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._events: deque[tuple[EventStream, int, Event]] = deque()
        self._state = _State.IDLE
        self._rest: asyncio.TimerHandle | None = None
        self._used_s = 0.0
        self._handed_over_s = 0.0

    def post(self, stream: EventStream, choice: int, event: Event, *, can_wait: bool) -> None:
        """Leave an event for a stream; never blocks. One that `can_wait` may lie for as long as the mailbox rests."""
        self._events.append((stream, choice, event))
        state = self._state
        if state is _State.IDLE or (state is _State.RESTING and not can_wait):
            self._state = _State.WOKEN
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop is closed: nobody is left to read
                self._events.clear()

    def await_start(self) -> None:
        """A request goes to the engine, on the loop: look for its start in a while, unless there is a reason before."""
        if self._state is _State.IDLE:
            self._state = _State.RESTING
            self._rest = self._loop.call_later(START_S, self._deliver)

    def hand_over(self) -> None:
        """Leave this thread's core to the loop for a moment, unless that was done a moment ago."""
        now_s = time.monotonic()
        if now_s - self._handed_over_s >= HANDOVER_EVERY_S:
            self._handed_over_s = now_s
            time.sleep(HANDOVER_S)

    def _deliver(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        before_s, self._used_s = self._used_s, time.thread_time()
        events = self._events
        spoke = False
        while True:
            while events:
                stream, choice, event = events.popleft()
                spoke = spoke or isinstance(event, _DELTAS)
                stream.take(choice, event)
            self._state = _State.RESTING if spoke else _State.IDLE
            if not events:  # what lands after this look finds the new state, and wakes us if it must
                break
        if spoke:
            self._rest = self._loop.call_later(choose_rest_s(self._used_s - before_s), self._deliver)


class EventStream:
    """The events of one request's choices; used on the loop only, but for the sinks it makes."""

    def __init__(self, mailbox: Mailbox, n_choices: int) -> None:
        self._mailbox = mailbox
        self._open = set(range(n_choices))
        self._ready: list[tuple[int, Event]] = []
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._silent_until_s = 0.0

    def expect(self, n_choices: int) -> None:
        """So many choices are to end, and none has yet."""
        self._open = set(range(n_choices))

    def await_start(self) -> None:
        """The choices are about to be submitted."""
        self._mailbox.await_start()

    def sink(self, choice: int) -> Sink:
        """The sink of one choice."""
        mailbox = self._mailbox
        spoke = False

        def deliver(event: Event) -> None:
            nonlocal spoke
            is_text = isinstance(event, _DELTAS)
            mailbox.post(self, choice, event, can_wait=spoke if is_text else isinstance(event, Started))
            if is_text and not spoke:
                spoke = True
                mailbox.hand_over()

        return deliver

    def take(self, choice: int, event: Event) -> None:
        """An event arrives; what comes after a choice's end is dropped."""
        if choice not in self._open:
            return
        if isinstance(event, _ENDS):
            self._open.discard(choice)
        self._ready.append((choice, event))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def fail(self, error: PhobosError) -> None:
        """End every open choice with an error."""
        for choice in sorted(self._open):
            self.take(choice, Failed(error))

    async def next_batch(self, timeout_s: float) -> list[tuple[int, Event]]:
        """All events that have arrived, waiting for the first; empty after `timeout_s` of silence.

        A token must not cost a timer, so one timer a stream runs through and looks, when it goes off, how long it
        has been silent.
        """
        if not self._ready:
            loop = asyncio.get_running_loop()
            self._silent_until_s = loop.time() + timeout_s
            if self._timer is None:
                self._timer = loop.call_at(self._silent_until_s, self._look, loop)
            self._waiter = loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        batch, self._ready = self._ready, []
        return batch

    def close(self) -> None:
        """No more waiting; twice is fine."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._open.clear()

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._waiter is None:
            return
        if loop.time() < self._silent_until_s:
            self._timer = loop.call_at(self._silent_until_s, self._look, loop)
        elif not self._waiter.done():
            self._waiter.set_result(None)


def coalesce(batch: list[tuple[int, Event]]) -> list[tuple[int, Event]]:
    """Join neighbouring deltas of one kind and choice: a reader that is behind gets fewer, larger chunks."""
    if len(batch) < 2:
        return batch
    joined: list[tuple[int, Event]] = []
    for (choice, _, _), run in groupby(batch, _kind_of):
        events = [event for _, event in run]
        joined += [(choice, event) for event in ([_join(events)] if isinstance(events[0], _DELTAS) else events)]
    return joined


def _kind_of(item: tuple[int, Event]) -> tuple[int, type[Event], int]:
    """The same for deltas that can be one."""
    choice, event = item
    return choice, type(event), event.index if isinstance(event, ToolCallDelta) else 0


def _join(run: list[Event]) -> Event:
    """One delta that says what a run of deltas of one kind says."""
    first = run[0]
    if len(run) == 1:
        return first
    if isinstance(first, TextDelta):
        texts = [event for event in run if isinstance(event, TextDelta)]
        logprobs = tuple(chain.from_iterable(event.logprobs for event in texts))
        return TextDelta("".join([event.text for event in texts]), logprobs)
    if isinstance(first, ReasoningDelta):
        return ReasoningDelta("".join(event.text for event in run if isinstance(event, ReasoningDelta)))
    assert isinstance(first, ToolCallDelta)
    return ToolCallDelta(first.index, "".join(event.arguments for event in run if isinstance(event, ToolCallDelta)))
