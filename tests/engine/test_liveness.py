"""Whatever comes, every request ends, each with one start and one end, within a bounded number of passes.

The real engine on a scripted backend, under any arrivals: long and short prompts, several choices, pins, scorings that
fork, cancels, sinks that fail, memory that is short.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from doubles.scripted_backend import Collector
from phobos.chat.events import Finished, Started
from phobos.chat.messages import ScoreRequest
from phobos.engine.slots import residency

MakeBench = Callable[..., Any]
N_SLOTS, N_CTX, BLOCK = 3, 96, 8
ENOUGH_TURNS = 4000  # more passes than all rows of a run can need


@dataclass(frozen=True)
class Arrival:
    """One request: after how many passes it comes, what it is, and after how many events its client leaves or fails."""

    after: int
    kind: str
    n_prompt: int
    max_tokens: int | None
    n: int
    pinned: int | None
    leaves_at: int | None
    fails: bool


arrivals = st.lists(
    st.builds(
        Arrival,
        after=st.integers(0, 30),
        kind=st.sampled_from(["write", "write", "score"]),
        n_prompt=st.integers(1, 80),
        max_tokens=st.none() | st.integers(1, 90),
        n=st.integers(1, 3),
        pinned=st.none() | st.none() | st.integers(0, N_SLOTS - 1),
        leaves_at=st.none() | st.none() | st.integers(0, 6),
        fails=st.sampled_from([False] * 5 + [True]),
    ),
    min_size=1,
    max_size=14,
)


class Client:
    """Takes the events of one choice, and leaves or fails when it is told to."""

    def __init__(self, arrival: Arrival) -> None:
        self.arrival = arrival
        self.collector = Collector()
        self.ticket: Any = None
        self.gone = threading.Event()

    def __call__(self, event: Any) -> None:
        leaves_at = self.arrival.leaves_at
        if leaves_at is not None and len(self.collector.events) >= leaves_at:
            self.gone.set()
            if self.arrival.fails:
                raise RuntimeError("a sink that fails")
            if self.ticket is not None:
                self.ticket.cancel()
                return
        self.collector(event)

    def has_ended(self) -> bool:
        return self.gone.is_set() or self.collector._done.is_set()


def submit(bench: Any, arrival: Arrival, order: list[Client]) -> None:
    prompt = "abcdefgh" * 12
    for choice in range(arrival.n if arrival.kind == "write" else 1):
        client = Client(arrival)
        order.append(client)
        if arrival.kind == "score":
            tokens = bench.tokenizer.encode(prompt[: arrival.n_prompt] + "xyz")
            last = len(tokens) - 1
            request = ScoreRequest(f"s{len(order)}", tuple(tokens), ((last, (3,)),), n_shared=max(1, last - 2))
            client.ticket = bench.engine.read(request, client)
        else:
            request = bench.request(
                prompt[: arrival.n_prompt], max_tokens=arrival.max_tokens, n=arrival.n, cache_slot=arrival.pinned
            )
            client.ticket = bench.engine.submit(bench.model.prepare(request), client, choice=choice)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arrivals, st.sampled_from([96, 130, 288]), st.booleans())
def test_every_request_ends(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, comers: list[Arrival], cache_rows: int, can_cut: bool
) -> None:
    monkeypatch.setattr(residency, "EXPECTED_TOKENS", 4)
    bench = make_bench(
        n_ctx=N_CTX, n_slots=N_SLOTS, max_rows=24, chunk_rows=16, cache_rows=cache_rows, can_cut=can_cut,
        fork_block=BLOCK if can_cut else 0, archive_bytes=4000,
    )  # fmt: skip
    waiting = sorted(comers, key=lambda arrival: arrival.after)
    clients: list[Client] = []
    run = bench.backend.run

    def run_and_let_in(batch: Any) -> Any:
        assert len(bench.backend.batches) < ENOUGH_TURNS, "somebody never ends"
        while waiting and waiting[0].after <= len(bench.backend.batches):
            submit(bench, waiting.pop(0), clients)
        return run(batch)

    bench.backend.run = run_and_let_in
    while waiting or not all(client.has_ended() for client in clients):
        if all(client.has_ended() for client in clients):  # nothing runs that could let them in
            submit(bench, waiting.pop(0), clients)
        for client in list(clients):
            client.collector._done.wait(0.01) or client.gone.wait(0.01)
        assert bench.engine.alive
    stayed = [c for c in clients if c.arrival.leaves_at is None]
    assert all(isinstance(client.collector.events[-1], Finished) for client in stayed)
    assert all(sum(isinstance(e, Started) for e in client.collector.events) == 1 for client in stayed)
    bench.engine.close()
