"""When memory runs short the youngest sequences are set aside and go on later, as if nothing had been."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from doubles.scripted_backend import ROW_BYTES, Collector
from phobos.chat.events import Finished, Started, TextDelta
from phobos.chat.messages import GenerationRequest, SamplingParams
from phobos.engine.slots import residency
from traffic import content

MakeBench = Callable[..., Any]
ROOMY = 1 << 20


@pytest.fixture(autouse=True)
def _expect_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Admission believes that answers are short, whatever it sees."""
    monkeypatch.setattr(residency, "EXPECTED_TOKENS", 1)
    monkeypatch.setattr(residency, "NEWEST", 0.0)


def make_requests(rng: random.Random, n: int) -> list[GenerationRequest]:
    """Long answers of all kinds of sampling, some with a limit, told log-probabilities or an echo of the prompt."""
    return [
        GenerationRequest(
            f"r{i}",
            prompt="".join(rng.choices("abc", k=rng.randint(1, 60))),
            sampling=SamplingParams(
                temperature=rng.choice([0.0, 0.7, 1.2]),
                repetition_penalty=rng.choice([1.0, 1.3]),
                seed=rng.randint(0, 2**32 - 1),
                ignore_eos=rng.random() < 0.9,
            ),
            max_tokens=rng.choice([None, 100, 180]),
            top_logprobs=rng.choice([None, None, 2]),
            echo=rng.random() < 0.3,
            cache_prompt=rng.random() < 0.8,
        )
        for i in range(n)
    ]


def run_all(bench: Any, requests: list[GenerationRequest]) -> list[list[Any]]:
    collectors = [bench.submit(request)[0] for request in requests]
    for collector in collectors:
        collector.wait(60)
        assert sum(isinstance(event, Started) for event in collector.events) == 1
    return [content(collector) for collector in collectors]


@pytest.mark.parametrize(
    ("seed", "can_cut"),
    [(1, True), (3, False), *(pytest.param(s, s < 7, marks=pytest.mark.slow) for s in (5, 6, 7, 8))],
)
@pytest.mark.parametrize("archive_bytes", [0, ROOMY])
def test_set_aside_and_taken_up_again_an_answer_is_that_of_a_solo_run(
    make_bench: MakeBench, seed: int, can_cut: bool, archive_bytes: int
) -> None:
    requests = make_requests(random.Random(seed), 8)
    solo = make_bench(n_slots=1, n_ctx=256, prefix_cache=False)
    expected = [content(collect(solo, request)) for request in requests]
    busy = make_bench(
        n_slots=4, n_ctx=256, chunk_rows=23, max_rows=64, can_cut=can_cut, cache_rows=270, archive_bytes=archive_bytes
    )
    assert run_all(busy, requests) == expected
    assert busy.counters.requests_set_aside > 2
    assert bool(busy.counters.cache.restored) == bool(archive_bytes)
    assert busy.backend.most_bytes <= 270 * ROW_BYTES
    assert busy.counters.requests_admitted == busy.counters.requests_completed == len(requests)


def test_requests_without_a_limit_run_side_by_side(make_bench: MakeBench) -> None:
    bench = make_bench(n_slots=4, n_ctx=1000, cache_rows=1200)
    bench.backend.gate.clear()
    collectors = [bench.submit(bench.request(letter * 20))[0] for letter in "abcd"]
    bench.backend.gate.set()
    for collector in collectors:
        collector.wait(60)
    assert max(len(set(batch.slots.tolist())) for batch in bench.backend.batches) == 4


def test_the_oldest_always_goes_on(make_bench: MakeBench) -> None:
    bench = make_bench(n_slots=3, n_ctx=200, cache_rows=200, archive_bytes=ROOMY, script=lambda tokens: 5)
    order: list[str] = []

    def submit(letter: str) -> Collector:
        collector = Collector()

        def sink(event: Any) -> None:
            if isinstance(event, Finished):
                order.append(letter)
            collector(event)

        bench.engine.submit(bench.model.prepare(bench.request(letter * 5)), sink)
        return collector

    collectors = [submit(letter) for letter in "abcde"]
    texts = [collector.wait(60).text for collector in collectors]
    assert order == list("abcde") and {len(text) for text in texts} == {200 - 6}
    assert bench.counters.requests_set_aside >= 2


def test_one_that_is_set_aside_can_be_cancelled_and_closed(make_bench: MakeBench) -> None:
    bench = make_bench(n_slots=2, n_ctx=200, cache_rows=200, archive_bytes=ROOMY, script=lambda tokens: 5)
    bench.backend.row_s = 0.001
    first, _ = bench.submit(bench.request("a" * 5))
    second, ticket = bench.submit(bench.request("b" * 5))
    second.wait_for(TextDelta, 60)
    while not bench.counters.requests_set_aside:
        assert first.events[-1:] and not isinstance(first.events[-1], Finished)
    ticket.cancel()
    assert len(first.wait().text) == 194
    assert bench.counters.requests_cancelled == 1


def collect(bench: Any, request: GenerationRequest) -> Collector:
    collector, _ = bench.submit(request)
    collector.wait(60)
    return collector  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("can_cut", [True, False])
def test_a_soak_of_long_streams_beside_short_requests_with_memory_short(make_bench: MakeBench, can_cut: bool) -> None:
    """64 long answers and 200 short ones in 16 slots that hold a fifth of what these would: all complete, each as in a
    solo run."""
    rng = random.Random(64)
    long = make_requests(rng, 64)
    short = [
        replace(request, request_id=f"s{i}", max_tokens=rng.randint(1, 8), echo=False)
        for i, request in enumerate(make_requests(rng, 200))
    ]
    solo = make_bench(n_slots=1, n_ctx=256, prefix_cache=False)
    expected = {request.request_id: content(collect(solo, request)) for request in [*long, *short]}
    busy = make_bench(
        n_slots=16, n_ctx=256, max_rows=96, chunk_rows=40, can_cut=can_cut, cache_rows=800, archive_bytes=ROOMY
    )
    requests = [*long, *short]
    rng.shuffle(requests)
    collectors = {request.request_id: busy.submit(request)[0] for request in requests}
    for collector in collectors.values():
        collector.wait(300)
    assert {key: content(collector) for key, collector in collectors.items()} == expected
    assert busy.counters.requests_set_aside > 20 and busy.counters.requests_completed == 264
    assert busy.backend.most_bytes <= 800 * ROW_BYTES
