"""Clients that ask an engine in turn, some of whom leave: for tests that every answer is that of a solo cold run."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

from doubles.scripted_backend import Collector
from phobos.chat.events import Finished, TextDelta
from phobos.chat.messages import GenerationRequest

N_CLIENTS = 6


def content(collector: Collector) -> list[Any]:
    """Everything a client sees but timings and what was reused."""
    seen: list[Any] = []
    for event in collector.events:
        if isinstance(event, Finished):
            seen.append((event.reason, event.usage.n_prompt, event.usage.n_generated, event.stop_text))
        elif isinstance(event, TextDelta):
            seen.append(event)
    return seen


def run_clients(
    submit: Callable[[GenerationRequest], tuple[Collector, Any]],
    requests: list[GenerationRequest],
    expected: dict[str, list[Any]],
    *,
    seed: int = 0,
    timeout_s: float = 60.0,
) -> dict[str, list[Any]]:
    """What those got who stayed, by request; a fifth leaves, having seen what was expected up to there."""
    lock, queue, finished = threading.Lock(), list(requests), {}

    def client(client_seed: int) -> None:
        mine = random.Random(client_seed)
        while True:
            with lock:
                if not queue:
                    return
                request = queue.pop(0)
            collector, ticket = submit(request)
            if mine.random() < 0.2:
                collector.wait_for((TextDelta, Finished), mine.randint(0, 1), timeout_s)
                ticket.cancel()
                seen = content(collector)
                assert seen == expected[request.request_id][: len(seen)]
            else:
                collector.wait(timeout_s)
                finished[request.request_id] = content(collector)

    clients = [threading.Thread(target=client, args=(seed * 100 + i,)) for i in range(N_CLIENTS)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join(10 * timeout_s)
        assert not thread.is_alive()
    return finished
