"""Who may run: a bounded queue, first come first served, from the moment the port is open.

A request asks for `n_places` of the engine's slots (one a choice, at most all of them), of any slot or of one it
names. `plan_admissions` is the rule and touches nothing; `RequestQueue` holds the waiters and belongs to the loop.

Rules. Until the capacity is known (the model loads) everybody waits. An earlier request that any slot suits comes
before every later one, and so does one whose slot is free and that lacks other places; one pinned to an occupied slot
keeps only that slot. The limit counts those
who wait, never those who can start at once. A deadline that has passed counts even when a slot has just come free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from phobos.errors import PhobosError, QueueFullError


@dataclass(frozen=True)
class Want:
    """What one waiter asks for."""

    n_places: int
    slot: int | None


def plan_admissions(wants: Sequence[Want], n_free: int, busy_slots: frozenset[int]) -> list[int]:
    """Indices of the waiters to admit now, in order, given the free places and the slots known to be occupied."""
    admitted: list[int] = []
    busy = set(busy_slots)
    reserved: set[int] = set()
    for index, want in enumerate(wants):
        if want.slot is not None:
            if want.slot in busy or want.slot in reserved:
                reserved.add(want.slot)
                continue
            if n_free < want.n_places:
                break
            busy.add(want.slot)
        elif n_free < want.n_places:
            break
        n_free -= want.n_places
        admitted.append(index)
    return admitted


@dataclass(eq=False)
class Place:
    """The right to run; `release` gives the rest of it back, `release_one` one choice's share."""

    queue: RequestQueue
    n_places: int
    queue_wait_s: float
    slots: dict[int, int] = field(default_factory=dict)  # choice -> slot, as far as known

    def occupy(self, choice: int, slot: int) -> None:
        """Learn which slot the engine gave to a choice."""
        self.slots[choice] = slot

    def release_one(self, choice: int, n_left: int) -> None:
        """A choice has ended and `n_left` have not: keep no more places than that."""
        self.slots.pop(choice, None)
        if n_left < self.n_places:
            self.queue.give_back(self, self.n_places - n_left)

    def release(self) -> None:
        """Give everything back; twice is fine."""
        self.slots.clear()
        self.queue.give_back(self, self.n_places)


@dataclass(eq=False)
class _Waiter:
    n_choices: int
    slot: int | None
    since_s: float
    future: asyncio.Future[Place]


class RequestQueue:
    """Those who wait and those who run; used on the loop only. `capacity` is 0 until the model is ready."""

    def __init__(self, max_queue: int, queue_timeout_s: float, on_depth: Callable[[int], None]) -> None:
        self.max_queue = max_queue
        self.capacity = 0
        self.n_active = 0
        self._timeout_s = queue_timeout_s
        self._on_depth = on_depth
        self._waiters: list[_Waiter] = []
        self._places: set[Place] = set()
        self._closed: PhobosError | None = None

    @property
    def n_waiting(self) -> int:
        """Requests that wait."""
        return len(self._waiters)

    def open(self, capacity: int) -> None:
        """The model is ready."""
        self.capacity = capacity
        self._pump()

    def close(self, error: PhobosError) -> None:
        """Refuse everybody who waits, and who comes later."""
        self._closed = error
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.future.done():
                waiter.future.set_exception(error)
        self._on_depth(0)

    async def enter(
        self, n_choices: int, slot: int | None, beat: Callable[[], Awaitable[None]] | None, beat_s: float
    ) -> Place:
        """Wait for a place; `beat` is awaited every `beat_s` of waiting. Raises `QueueFullError` or why it closed."""
        if self._closed is not None:
            raise self._closed
        loop = asyncio.get_running_loop()
        waiter = _Waiter(n_choices, slot, loop.time(), loop.create_future())
        self._waiters.append(waiter)
        self._pump()
        if not waiter.future.done() and len(self._waiters) > self.max_queue:
            self._drop(waiter)
            raise QueueFullError(
                f"{self.max_queue} requests wait already (--max-queue): try again in a moment",
                retry_after_s=self._retry_after(),
            )
        try:
            return await self._wait(waiter, beat, beat_s)
        except BaseException:
            self._abandon(waiter)
            raise

    async def _wait(self, waiter: _Waiter, beat: Callable[[], Awaitable[None]] | None, beat_s: float) -> Place:
        loop = asyncio.get_running_loop()
        deadline = waiter.since_s + self._timeout_s
        next_beat = waiter.since_s + beat_s
        while not waiter.future.done():
            now = loop.time()
            if now >= deadline:
                self._drop(waiter)
                raise self._expired()
            if beat is not None and now >= next_beat:
                await beat()
                next_beat = loop.time() + beat_s
                continue
            until = deadline if beat is None else min(deadline, next_beat)
            await asyncio.wait({waiter.future}, timeout=until - now)
        return waiter.future.result()

    def give_back(self, place: Place, n_places: int) -> None:
        """Return some of a place's share."""
        if place not in self._places or n_places <= 0:
            return
        place.n_places -= n_places
        self.n_active -= n_places
        if place.n_places <= 0:
            self._places.discard(place)
        self._pump()

    def _pump(self) -> None:
        """Admit whoever can start."""
        if self.capacity and self._waiters:
            loop = asyncio.get_running_loop()
            now = loop.time()
            for waiter in [w for w in self._waiters if now - w.since_s >= self._timeout_s]:
                self._drop(waiter)
                if not waiter.future.done():
                    waiter.future.set_exception(self._expired())
            live = [w for w in self._waiters if not w.future.done()]
            wants = [Want(min(w.n_choices, self.capacity), w.slot) for w in live]
            busy = frozenset(slot for place in self._places for slot in place.slots.values())
            for index in plan_admissions(wants, self.capacity - self.n_active, busy):
                self._admit(live[index], wants[index], now)
        self._on_depth(len(self._waiters))

    def _admit(self, waiter: _Waiter, want: Want, now: float) -> None:
        place = Place(self, want.n_places, now - waiter.since_s)
        if want.slot is not None:
            place.slots[0] = want.slot
        self._places.add(place)
        self.n_active += want.n_places
        self._waiters.remove(waiter)
        waiter.future.set_result(place)

    def _drop(self, waiter: _Waiter) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        self._on_depth(len(self._waiters))

    def _abandon(self, waiter: _Waiter) -> None:
        """The client left while it waited, perhaps just as it was admitted."""
        if waiter in self._waiters:
            self._drop(waiter)
            self._pump()
        future = waiter.future
        if future.done() and not future.cancelled() and future.exception() is None:
            future.result().release()

    def _expired(self) -> QueueFullError:
        return QueueFullError(
            f"no slot came free within {self._timeout_s:g} s (--queue-timeout): try again later",
            code="queue_timeout",
            retry_after_s=self._retry_after(),
        )

    def _retry_after(self) -> int:
        return 1 if self.capacity and not self._waiters else 5
