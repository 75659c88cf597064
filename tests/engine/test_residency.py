"""Conversations give way to others within the memory there is, and come back from the archive."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles.scripted_backend import ROW_BYTES, Collector
from phobos.chat.events import Started
from phobos.chat.messages import ScoreRequest
from phobos.engine.slots.archive import MOST_BYTES, Archive, choose_archive_bytes
from phobos.engine.slots.cache import HOLD_TOKENS
from phobos.settings import EngineSettings

MakeBench = Callable[..., Any]
ARCHIVED_ROW = ROW_BYTES + 4  # and its token


def tokens_of(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


# The archive


class Shelf:
    """An archive whose contents are their tokens."""

    def __init__(self, bound_bytes: int, **options: bool) -> None:
        self.archive = Archive(bound_bytes, **options)
        self.n_saved = 0

    def put(self, text: str, states: dict[int, bytes] | None = None) -> bool:
        def save() -> bytes:
            self.n_saved += 1
            return text.encode()

        return self.archive.put(tokens_of(text), len(text), save, states or {})

    def find(self, text: str) -> tuple[str, int] | None:
        found = self.archive.find(tokens_of(text))
        return None if found is None else (found[0].data.decode(), found[1])


def test_the_longest_beginning_is_found() -> None:
    shelf = Shelf(10_000)
    system = "s" * 40
    assert shelf.put(system + "abc") and shelf.put(system + "abde") and shelf.put("x" * 50)
    assert shelf.find(system + "abdx") == (system + "abde", 43)
    assert shelf.find(system + "abc") == (system + "abc", 42), "the last token runs again"
    assert shelf.find("y" * 50) is None
    assert shelf.find("x" * 20) is None, "shorter than what is worth keeping"


def test_what_begins_another_goes_and_what_is_there_stays() -> None:
    shelf = Shelf(10_000)
    assert shelf.put("a" * 40) and shelf.put("a" * 60)
    assert len(shelf.archive) == 1
    assert not shelf.put("a" * 50)
    assert shelf.n_saved == 2
    assert not shelf.put("b" * (HOLD_TOKENS - 1))


def test_the_one_not_used_for_longest_goes_first() -> None:
    shelf = Shelf(3 * 50 * 5)
    for letter in "abc":
        assert shelf.put(letter * 50)
    found = shelf.archive.find(tokens_of("a" * 60))
    assert found is not None
    shelf.archive.touch(found[0])
    assert shelf.put("d" * 50)
    assert [shelf.find(letter * 60) is not None for letter in "abcd"] == [True, False, True, True]
    assert not shelf.put("e" * 151), "more than the archive may hold"
    shelf.archive.drop(found[0])
    shelf.archive.drop(found[0])
    assert shelf.archive.n_bytes == 2 * 50 * 5


def test_contents_that_cannot_be_cut_back_go_on_from_their_checkpoints() -> None:
    shelf = Shelf(10_000, can_cut=False)
    assert shelf.put("a" * 40, {35: b"state"})
    assert shelf.archive.n_bytes == 40 * 5 + 5
    assert shelf.find("a" * 39 + "b") == ("a" * 40, 35)
    assert shelf.find("a" * 41) == ("a" * 40, 40)
    assert shelf.find("a" * 34 + "b") is None


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(30, 60), st.booleans()), max_size=40), st.integers(0, 900))
def test_the_bound_holds(actions: list[tuple[str, int, bool]], bound: int) -> None:
    shelf = Shelf(bound)
    for letter, n, drops in actions:
        shelf.put("ab" + letter * n)
        assert shelf.archive.n_bytes <= bound
        assert shelf.archive.n_bytes == sum(entry.n_bytes for entry in shelf.archive)
        found = shelf.archive.find(tokens_of("ab" + letter * n))
        if found and drops:
            shelf.archive.drop(found[0])
    starts = shelf.archive._by_start.values()
    assert sum(map(len, starts)) == len(shelf.archive) and all(starts)


def test_how_much_the_archive_may_take(tmp_path: Any) -> None:
    settings = EngineSettings(tmp_path)
    assert choose_archive_bytes(settings, None) == 0
    assert choose_archive_bytes(settings, 4000) == 1000
    assert choose_archive_bytes(settings, -1) == 0
    assert choose_archive_bytes(settings, 1 << 40) == MOST_BYTES
    assert choose_archive_bytes(EngineSettings(tmp_path, archive_bytes=7), 4000) == 7
    assert choose_archive_bytes(EngineSettings(tmp_path, archive_bytes=7, prefix_cache=False), 4000) == 0


# The engine


def cached(reply: Any) -> int:
    return reply.last.usage.n_cached


@pytest.mark.parametrize("can_cut", [True, False])
def test_two_alternating_conversations_both_keep_theirs_in_one_slot(make_bench: MakeBench, can_cut: bool) -> None:
    bench = make_bench(n_ctx=400, n_slots=1, can_cut=can_cut, archive_bytes=400 * ARCHIVED_ROW * 8)
    first, second = "a" * 100, "b" * 100
    for _ in range(3):
        kept = []
        for prompt in (first, second):
            reply = bench.ask(prompt, max_tokens=10)
            kept.append(cached(reply))
        first, second = first + "cde", second + "fgh"
    assert min(kept) >= (100 if can_cut else 90), "from the end, or from the checkpoint before it"
    assert bench.counters.cache.restored >= 4
    assert bench.counters.prompt_tokens_computed < 2 * 150


def test_idle_conversations_give_way_to_running_ones(make_bench: MakeBench) -> None:
    bench = make_bench(n_ctx=100, n_slots=4, cache_rows=150)
    for letter in "abcd":
        bench.ask(letter * 40, max_tokens=1)
    assert bench.backend.most_bytes <= 150 * ROW_BYTES
    held = [slot.n_tokens for slot in bench.counters.slots]
    assert sum(held) <= 150 and held[3] == 41 and held[0] == 0, "the one not used for longest gave way"
    assert bench.counters.cache.evicted == 1
    assert cached(bench.ask("d" * 45, max_tokens=1)) == 41
    assert cached(bench.ask("b" * 45, max_tokens=1)) == 41


def test_who_does_not_fit_waits_its_turn(make_bench: MakeBench) -> None:
    bench = make_bench(n_ctx=100, n_slots=4, cache_rows=100)
    bench.backend.gate.clear()
    order: list[str] = []

    def submit(text: str, max_tokens: int) -> Collector:
        collector = Collector()

        def sink(event: Any) -> None:
            if isinstance(event, Started):
                order.append(text[0])
            collector(event)

        request = bench.request(text, max_tokens=max_tokens)
        bench.engine.submit(bench.model.prepare(request), sink)
        return collector

    collectors = [*(submit(letter * 20, 40) for letter in "abc"), submit("d" * 5, 5)]
    bench.backend.entered.acquire(timeout=10)
    assert order == ["a"]
    bench.backend.gate.set()
    for collector in collectors:
        collector.wait()
    assert order == ["a", "b", "c", "d"], "first come, first served: the small one did not pass"
    assert bench.backend.most_bytes <= 100 * ROW_BYTES


def test_without_a_limit_a_request_may_come_to_fill_its_context(make_bench: MakeBench) -> None:
    bench = make_bench(n_ctx=64, n_slots=2, cache_rows=100, script=lambda tokens: 5)
    endless = [bench.submit(bench.request(letter))[0] for letter in "ab"]
    assert [len(collector.wait().text) for collector in endless] == [62, 62]
    assert bench.backend.most_bytes <= 100 * ROW_BYTES
    assert max(len(set(batch.slots.tolist())) for batch in bench.backend.batches) == 1


def test_forks_do_not_pass_who_waits_for_memory(make_bench: MakeBench) -> None:
    bench = make_bench(n_ctx=128, n_slots=4, cache_rows=200, fork_block=8)
    shared = tuple(range(2, 22)) * 2
    order: list[str] = []

    def sink(name: str) -> tuple[Collector, Callable[[Any], None]]:
        collector = Collector()

        def take(event: Any) -> None:
            if isinstance(event, Started):
                order.append(name)
            collector(event)

        return collector, take

    def score(name: str, last: int) -> Collector:
        collector, take = sink(name)
        bench.engine.read(ScoreRequest(name, (*shared, last), ((40, (3,)),), n_shared=40), take)
        return collector

    def write(name: str, n: int) -> Collector:
        collector, take = sink(name)
        request = bench.request(name * n, max_tokens=80)
        bench.engine.submit(bench.model.prepare(request), take)
        return collector

    score("trunk", 3).wait()
    bench.backend.gate.clear()
    running = write("a", 20)
    running.wait_for(Started)
    collectors = [running, write("b", 30), score("fork", 4)]
    bench.backend.gate.set()
    for collector in collectors:
        collector.wait()
    assert order == ["trunk", "a", "b", "fork"]


@pytest.mark.parametrize("archive_bytes", [0, 1 << 20])
def test_a_prefix_that_cannot_be_copied_beside_its_holder(make_bench: MakeBench, archive_bytes: int) -> None:
    bench = make_bench(n_ctx=100, n_slots=2, cache_rows=100, archive_bytes=archive_bytes)
    bench.ask("a" * 70 + "bcd", max_tokens=1)
    reply = bench.ask("a" * 70 + "xyz" * 8, max_tokens=1)
    assert cached(reply) == (71 if archive_bytes else 0)
    assert bench.backend.most_bytes <= 100 * ROW_BYTES
    alone = make_bench(n_ctx=100, n_slots=1)
    assert reply.text == alone.ask("a" * 70 + "xyz" * 8, max_tokens=1).text


def test_contents_that_do_not_fit_are_dropped_and_computed_again(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench(n_ctx=100, n_slots=1, archive_bytes=1 << 20)
    first = bench.ask("a" * 60, max_tokens=5).text
    bench.ask("b" * 60, max_tokens=5)
    monkeypatch.setattr(bench.backend, "restore", lambda *arguments: (_ for _ in ()).throw(ValueError("damaged")))
    again = bench.ask("a" * 60, max_tokens=5)
    assert (again.text, cached(again)) == (first, 0)
    assert bench.engine.alive


def test_no_prefix_cache_no_archive(make_bench: MakeBench) -> None:
    bench = make_bench(n_ctx=100, n_slots=1, prefix_cache=False)
    bench.ask("a" * 60, max_tokens=5)
    bench.ask("b" * 60, max_tokens=5)
    assert cached(bench.ask("a" * 60, max_tokens=5)) == 0
    assert not bench.backend.saves


def test_private_prompts_find_nothing_in_the_archive(make_bench: MakeBench) -> None:
    bench = make_bench(n_ctx=100, n_slots=1, archive_bytes=1 << 20)
    bench.ask("a" * 60, max_tokens=5)
    bench.ask("b" * 60, max_tokens=5)
    assert cached(bench.ask("a" * 60, max_tokens=5, cache_prompt=False)) == 0


def run_conversations(bench: Any, n: int, seed: int) -> None:
    """Distinct conversations one after the other, some of them taken up again."""
    rng = random.Random(seed)
    prompts: list[str] = []
    for i in range(n):
        if prompts and rng.random() < 0.3:
            prompt = rng.choice(prompts[-20:]) + "xyz"
        else:
            prompt = "".join(rng.choices("abcdefgh", k=rng.randint(10, 150)))
        prompts.append(prompt[:180])
        bench.ask(prompts[-1], max_tokens=rng.randint(1, 10), seed=i)


@pytest.mark.parametrize("n", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_memory_stays_under_its_bound_over_distinct_conversations(make_bench: MakeBench, n: int) -> None:
    archive_bytes = 1000 * ARCHIVED_ROW
    bench = make_bench(n_ctx=200, n_slots=4, cache_rows=400, archive_bytes=archive_bytes)
    run_conversations(bench, n, seed=n)
    assert bench.backend.most_bytes <= 400 * ROW_BYTES
    cache = bench.counters.cache
    assert cache.archived_bytes <= archive_bytes and cache.held_bytes <= 400 * ROW_BYTES
    assert cache.evicted > n // 10 and cache.restored > n // 20 and cache.n_archived > 3
