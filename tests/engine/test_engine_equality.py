"""Whatever runs beside a request, and whatever it reuses, its answer is that of a solo cold run."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from doubles.scripted_backend import Collector
from phobos.chat.messages import GenerationRequest, SamplingParams
from traffic import content, run_clients

MakeBench = Callable[..., Any]


def make_requests(rng: random.Random, n: int) -> list[GenerationRequest]:
    """Mixed requests: shared beginnings, all kinds of sampling, stop strings, limits, log-probabilities, pins."""
    systems = ["s" * 40, "the quick".replace(" ", "") * 8, ""]
    requests = []
    for i in range(n):
        prompt = rng.choice(systems) + "".join(rng.choices("abc", k=rng.randint(1, 30)))
        if requests and rng.random() < 0.3:  # a conversation that goes on
            prompt = str(rng.choice(requests).prompt)[:120] + "".join(rng.choices("xyz", k=rng.randint(1, 5)))
        sampling = SamplingParams(
            temperature=rng.choice([0.0, 0.7, 1.0, 1.5]),
            top_k=rng.choice([0, 3, 40]),
            top_p=rng.choice([1.0, 0.9]),
            typical_p=rng.choice([1.0, 0.8]),
            repetition_penalty=rng.choice([1.0, 1.3]),
            frequency_penalty=rng.choice([0.0, 0.5]),
            seed=rng.randint(0, 2**32 - 1),
        )
        requests.append(
            GenerationRequest(
                f"r{i}",
                prompt=prompt,
                sampling=sampling,
                max_tokens=rng.randint(1, 60),
                stop=tuple(rng.sample(["ab", "q", "zzz", "e"], rng.randint(0, 2))),
                top_logprobs=rng.choice([None, None, 2]),
                echo=rng.random() < 0.1,
                cache_slot=rng.choice([None] * 8 + [0]),
                cache_prompt=rng.random() < 0.9,
            )
        )
    return requests


@pytest.mark.parametrize(("seed", "can_cut"), [*((seed, True) for seed in range(6)), (6, False), (7, False)])
def test_random_traffic_equals_solo_cold_runs(make_bench: MakeBench, seed: int, can_cut: bool) -> None:
    rng = random.Random(seed)
    requests = make_requests(rng, 40)
    solo = make_bench(n_slots=1, n_ctx=256, prefix_cache=False, chunk_rows=256, max_rows=512)
    expected = {}
    for request in requests:
        collector = Collector()
        pinned_nowhere = GenerationRequest(**{**vars(request), "cache_slot": None})
        solo.engine.submit(solo.model.prepare(pinned_nowhere), collector)
        collector.wait()
        expected[request.request_id] = content(collector)

    n_slots, chunk_rows = rng.choice([2, 3, 5]), rng.choice([1, 7, 33])
    scarce = {"cache_rows": 300, "archive_bytes": 400 * 16} if seed % 2 else {}
    busy = make_bench(n_slots=n_slots, n_ctx=256, chunk_rows=chunk_rows, max_rows=64, can_cut=can_cut, **scarce)
    finished = run_clients(busy.submit, requests, expected, seed=seed)
    assert busy.engine.alive
    assert finished == {key: expected[key] for key in finished}
    assert len(finished) > 15
    assert busy.backend.copies or busy.backend.restored or busy.counters.cache.restored
    assert busy.counters.prompt_tokens_reused > 0
    assert not scarce or busy.counters.cache.restored
    assert scarce or max(len(set(batch.slots.tolist())) for batch in busy.backend.batches) > 1


def test_choices_beside_other_traffic_equal_their_solo_runs(make_bench: MakeBench) -> None:
    bench = make_bench(n_slots=4, n_ctx=256, chunk_rows=5)
    request = bench.request("abcabcabc" * 5, n=3, seed=9, max_tokens=30)
    solo = [content(collect(bench, request, choice)) for choice in range(3)]
    bench.backend.gate.clear()
    others = [bench.submit(bench.request("xyz" * n, seed=n, max_tokens=60))[0] for n in range(1, 4)]
    together = [bench.submit(request, choice)[0] for choice in range(3)]
    bench.backend.gate.set()
    for collector in (*together, *others):
        collector.wait()
    assert [content(collector) for collector in together] == solo


def collect(bench: Any, request: GenerationRequest, choice: int) -> Collector:
    collector, _ = bench.submit(request, choice)
    collector.wait()
    return collector
