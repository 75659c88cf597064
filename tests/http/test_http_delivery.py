"""The crossing between the engine's thread and the loop: nothing lost, in order, few wake-ups; deltas joined."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phobos.chat.events import (
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    Timings,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from phobos.errors import UnavailableError
from phobos.http import delivery
from phobos.http.delivery import HANDOVER_S, LONGEST_REST_S, REST_S, EventStream, Mailbox, choose_rest_s, coalesce

END = Finished("stop", Usage(1, 0, 1), Timings(0.0, 0.0, 1))


async def collect(stream):
    events = []
    while not (events and isinstance(events[-1][1], Finished)):
        events += await stream.next_batch(5)
    return events


def test_every_event_arrives_in_order_from_many_threads():
    async def run():
        mailbox = Mailbox(asyncio.get_running_loop())
        streams = [EventStream(mailbox, 1) for _ in range(4)]

        def produce(stream):
            sink = stream.sink(0)
            for index in range(2000):
                sink(TextDelta(str(index)))
                if index % 500 == 0:
                    time.sleep(0.001)
            sink(END)

        threads = [threading.Thread(target=produce, args=(stream,)) for stream in streams]
        for thread in threads:
            thread.start()
        try:
            return await asyncio.gather(*(collect(stream) for stream in streams))
        finally:
            for thread in threads:
                thread.join()

    for events in asyncio.run(run()):
        assert [event.text for _, event in events[:-1]] == [str(index) for index in range(2000)]


def test_a_fast_engine_costs_few_wakeups():
    async def run():
        loop = asyncio.get_running_loop()
        stream = EventStream(Mailbox(loop), 1)
        sink = stream.sink(0)

        def produce():
            for _ in range(100):
                sink(TextDelta("x"))
                time.sleep(0.001)
            sink(END)

        thread = threading.Thread(target=produce)
        thread.start()
        n_batches = 0
        done = False
        while not done:
            batch = await stream.next_batch(5)
            n_batches += 1
            done = isinstance(batch[-1][1], Finished)
        thread.join()
        return n_batches

    assert asyncio.run(run()) < 60


def test_text_goes_out_less_often_the_more_of_a_core_it_takes():
    assert choose_rest_s(0.0) == choose_rest_s(0.00005) == REST_S
    assert choose_rest_s(0.0003) == pytest.approx(0.03)
    assert choose_rest_s(1.0) == LONGEST_REST_S


def test_the_first_text_of_an_answer_does_not_wait_for_the_rest_after_that_of_others(monkeypatch):
    monkeypatch.setattr(delivery, "REST_S", 30.0)
    monkeypatch.setattr(delivery, "LONGEST_REST_S", 30.0)

    async def run():
        mailbox = Mailbox(asyncio.get_running_loop())
        first, second = EventStream(mailbox, 1), EventStream(mailbox, 1)
        for stream in (first, second):
            stream.sink(0)(TextDelta("a"))
            assert await stream.next_batch(5) == [(0, TextDelta("a"))]
        third = EventStream(mailbox, 2)
        one, two = third.sink(0), third.sink(1)
        one(TextDelta("b"))
        assert await third.next_batch(5) == [(0, TextDelta("b"))]
        one(TextDelta("c"))
        assert await third.next_batch(0.1) == []
        two(TextDelta("d"))
        return await third.next_batch(5)

    assert asyncio.run(run()) == [(0, TextDelta("c")), (1, TextDelta("d"))]


def test_a_start_comes_with_the_first_text_or_in_a_while(monkeypatch):
    monkeypatch.setattr(delivery, "START_S", 0.2)
    start = Started(0, 1, 0, 1, 0.0)

    async def run():
        stream = EventStream(Mailbox(asyncio.get_running_loop()), 1)
        stream.await_start()
        sink = stream.sink(0)
        sink(start)
        assert await stream.next_batch(0.05) == []
        sink(TextDelta("x"))
        assert await stream.next_batch(5) == [(0, start), (0, TextDelta("x"))]
        await asyncio.sleep(2 * LONGEST_REST_S)
        began = time.monotonic()
        stream.await_start()
        sink(start)
        assert await stream.next_batch(5) == [(0, start)]
        assert time.monotonic() - began > 0.19

    asyncio.run(run())


def test_the_engine_hands_its_core_over_for_a_first_text_and_seldom(monkeypatch):
    naps = []
    monkeypatch.setattr(delivery.time, "sleep", naps.append)

    async def run():
        mailbox = Mailbox(asyncio.get_running_loop())
        for _ in range(50):
            sink = EventStream(mailbox, 1).sink(0)
            sink(Started(0, 1, 0, 1, 0.0))
            sink(TextDelta("x"))
            sink(TextDelta("y"))

    asyncio.run(run())
    assert naps[0] == HANDOVER_S and len(naps) < 25


def test_silence_gives_an_empty_batch_and_text_resets_it():
    async def run():
        stream = EventStream(Mailbox(asyncio.get_running_loop()), 1)
        began = time.monotonic()
        assert await stream.next_batch(0.1) == []
        assert 0.09 < time.monotonic() - began < 1
        asyncio.get_running_loop().call_later(0.05, stream.sink(0), TextDelta("x"))
        assert await stream.next_batch(0.1) == [(0, TextDelta("x"))]
        began = time.monotonic()
        assert await stream.next_batch(0.1) == []
        assert time.monotonic() - began > 0.09

    asyncio.run(run())


def test_what_comes_after_the_end_is_dropped():
    async def run():
        stream = EventStream(Mailbox(asyncio.get_running_loop()), 2)
        stream.take(0, END)
        stream.take(0, TextDelta("late"))
        stream.fail(UnavailableError("over"))
        return [(choice, type(event).__name__) for choice, event in await stream.next_batch(1)]

    assert asyncio.run(run()) == [(0, "Finished"), (1, "Failed")]


def test_a_sink_outlives_its_loop():
    async def make():
        return EventStream(Mailbox(asyncio.get_running_loop()), 1).sink(0)

    sink = asyncio.run(make())
    sink(TextDelta("nobody listens"))


EVENTS = st.one_of(
    st.builds(TextDelta, st.text(max_size=3)),
    st.builds(ReasoningDelta, st.text(max_size=3)),
    st.builds(ToolCallDelta, st.integers(0, 1), st.text(max_size=3)),
    st.builds(ToolCallStart, st.integers(0, 1), st.just("id"), st.just("f")),
    st.just(Started(0, 1, 0, 1, 0.0)),
    st.just(END),
)


def spell(batch):
    """What a batch says, a character at a time."""
    said = []
    for choice, event in batch:
        text = getattr(event, "text", getattr(event, "arguments", None))
        if text is None:
            said.append((choice, event))
        else:
            said += [(choice, type(event).__name__, getattr(event, "index", 0), character) for character in text]
    return said


@given(st.lists(st.tuples(st.integers(0, 1), EVENTS), max_size=30))
def test_joining_changes_nothing_that_is_said(batch):
    joined = coalesce(batch)
    assert spell(joined) == spell(batch)
    kinds = [(choice, type(event), getattr(event, "index", 0)) for choice, event in joined]
    for first, second in itertools.pairwise(kinds):
        assert first != second or first[1] not in (TextDelta, ReasoningDelta, ToolCallDelta)
