"""Conversations on the compiled backend: what comes back from archive and disk equals a cold run bit by bit, memory
keeps to its bound, and nothing leaks."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from doubles.scripted_backend import Collector
from models.family_models import FAMILIES, write_family_model
from models.tiny_models import RECIPES, write_tiny_model
from phobos import counters
from phobos.chat.events import Finished, TextDelta
from phobos.chat.messages import GenerationRequest, SamplingParams
from phobos.engine.engine import Engine
from phobos.runtime import start_engine
from phobos.settings import EngineSettings

Open = Callable[..., Engine]
N_VOCAB = 280


@pytest.fixture
def open_engine(tmp_path: Path) -> Iterator[Open]:
    opened: list[Engine] = []

    def start(path: Path, **settings: Any) -> Engine:
        defaults = EngineSettings(path, n_ctx=600, n_slots=2, n_threads=1, chunk_rows=64)
        engine = start_engine(replace(defaults, **settings), counters.Counters(), lambda progress: None)
        opened.append(engine)
        return engine

    yield start
    for engine in opened:
        engine.close()


def write_model(name: str, folder: Path) -> Path:
    path = folder / f"{name}.gguf"
    if path.exists():
        return path
    return write_tiny_model(RECIPES[name], path) if name in RECIPES else write_family_model(FAMILIES[name], path)


def make_prompt(seed: int, n: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(3, N_VOCAB, n).tolist())


def submit(engine: Engine, prompt: tuple[int, ...], **fields: Any) -> tuple[Collector, Any]:
    fields = {"max_tokens": 6, "sampling": SamplingParams(temperature=0.0), **fields}
    request = GenerationRequest("r", prompt=prompt, top_logprobs=4, **fields)
    collector = Collector()
    return collector, engine.submit(engine.model.prepare(request), collector)


def ask(engine: Engine, prompt: tuple[int, ...], **fields: Any) -> tuple[list[Any], int]:
    """Tokens with their log-probabilities, to the last bit, and how many of the prompt were reused."""
    reply = submit(engine, prompt, **fields)[0].wait(60)
    return [(e.token_id, e.logprob, [t.logprob for t in e.top]) for e in reply.entries], reply.last.usage.n_cached


@pytest.mark.parametrize("name", ["llama", "qwen35", pytest.param("gemma3", marks=pytest.mark.slow)])
def test_what_comes_back_equals_a_cold_run(open_engine: Open, tmp_path: Path, name: str) -> None:
    path = write_model(name, tmp_path)
    prompts = [make_prompt(seed, 120 + 30 * seed) for seed in range(3)]
    later = [prompt + make_prompt(9 + i, 20) for i, prompt in enumerate(prompts)]
    cold = open_engine(path, prefix_cache=False)
    expected = [ask(cold, prompt)[0] for prompt in (*prompts, *later)]
    cold.close()

    engine = open_engine(path, n_slots=1, archive_bytes=1 << 26, slot_save_path=tmp_path / "kept")
    for prompt in prompts:
        ask(engine, prompt)
    found = [ask(engine, prompt) for prompt in later]
    assert [told for told, _ in found] == expected[3:]
    assert all(n >= 110 for _, n in found), "two alternating conversations, and a third, keep theirs in one slot"
    assert engine.counters.cache is not None and engine.counters.cache.restored == 3
    engine.close()

    again = open_engine(path, archive_bytes=1 << 26, slot_save_path=tmp_path / "kept")
    found = [ask(again, prompt) for prompt in later]
    assert [told for told, _ in found] == expected[3:]
    assert all(n >= 120 for _, n in found), "after a restart too"


def process_bytes() -> int:
    gc.collect()
    used = counters.read_machine().process_bytes
    if used is None:
        pytest.skip("this system does not tell what the process takes")
    return used


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_memory_stays_under_its_bound_over_a_thousand_conversations(open_engine: Open, tmp_path: Path) -> None:
    path = write_model("llama", tmp_path)
    engine = open_engine(path, n_ctx=1500, n_slots=4, chunk_rows=512, cache_bytes=1 << 20, archive_bytes=4 << 20)
    cache = engine.counters.cache
    assert cache is not None and cache.bound_bytes == 1 << 20
    rng = random.Random(1)
    ask(engine, make_prompt(0, 1400), max_tokens=2)
    before, most, most_held, most_archived = process_bytes(), 0, 0, 0
    for seed in range(1000):
        ask(engine, make_prompt(seed, rng.choice([20, 100, 300, 700])), max_tokens=2)
        cache = engine.counters.cache
        assert cache is not None
        held = engine.model.backend.memory()["cache"]
        most_held, most_archived = max(most_held, held), max(most_archived, cache.archived_bytes)
        if seed % 50 == 0:
            most = max(most, process_bytes())
    print(f"slots at most {most_held} of {1 << 20} bytes, archive {most_archived} of {4 << 20}")
    print(f"the process grew by at most {most - before} bytes")
    assert most_held <= 1 << 20 and most_archived <= 4 << 20
    assert cache.evicted > 500 and cache.n_archived > 10
    assert most - before <= (1 << 20) + (4 << 20) + (8 << 20)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_hour_of_random_traffic_leaks_nothing(open_engine: Open, tmp_path: Path) -> None:
    """What a busy hour brings (3,600 requests: joins, cancels, reuse, forks apart), as fast as it runs: threads, open
    files and memory after it are those after its first tenth."""
    path = write_model("llama", tmp_path)
    engine = open_engine(path, n_slots=4, cache_bytes=1 << 19, archive_bytes=1 << 20, slot_save_path=tmp_path / "kept")
    lock, todo = threading.Lock(), list(range(3600))

    def client(seed: int) -> None:
        rng = random.Random(seed)
        while True:
            with lock:
                if not todo:
                    return
                number = todo.pop()
            prompt = make_prompt(rng.randrange(60), rng.choice([10, 60, 200, 400]))[: rng.randint(5, 400)]
            sampling = SamplingParams(temperature=rng.choice([0.0, 1.0]), seed=number)
            collector, ticket = submit(engine, prompt, max_tokens=rng.randint(1, 12), sampling=sampling)
            if rng.random() < 0.2:
                collector.wait_for((TextDelta, Finished), rng.randint(0, 1), 60)
                ticket.cancel()
            else:
                collector.wait(60)

    def state() -> tuple[int, int, int]:
        return process_bytes(), threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    clients = [threading.Thread(target=client, args=(i,)) for i in range(6)]
    for thread in clients:
        thread.start()
    while len(todo) > 3240:
        time.sleep(0.05)
    early = state()
    for thread in clients:
        thread.join(800)
        assert not thread.is_alive()
    time.sleep(1)
    late = state()
    print(f"bytes, threads, files: after a tenth {early}, at the end {late}")
    assert engine.alive and not engine._running and not engine._waiting
    assert engine._residency._promised == {} == engine._residency._n_forked
    assert late[0] - early[0] < 8 << 20
    assert late[1] <= early[1] - 5 and late[2] <= early[2] + 2
