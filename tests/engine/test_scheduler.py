"""Who gets rows, and how many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phobos.chat.events import Finished, Timings, Usage
from phobos.engine.scheduler import FIRST_CHUNK, SMALLEST_ALONE, Chunk, Pace, PromptView, plan_chunks
from phobos.engine.slots.rows import Rows, build_batch

prompt_views = st.lists(
    st.tuples(st.integers(1, 5000), st.integers(-1, 50), st.none() | st.integers(0, 64), st.booleans()), max_size=6
).map(lambda items: [PromptView(i, *item) for i, item in enumerate(items)])


@given(prompt_views, st.integers(0, 600), st.integers(50, 51))
def test_chunks_fit_their_prompts_and_the_budget(prompts: list[PromptView], n_rows: int, turn: int) -> None:
    chunks = plan_chunks(prompts, n_rows, turn)
    assert sum(chunk.n_rows for chunk in chunks) <= n_rows
    assert len({chunk.key for chunk in chunks}) == len(chunks)
    for chunk in chunks:
        prompt = prompts[chunk.key]
        assert 0 < chunk.n_rows <= prompt.n_left
        assert prompt.n_most is None or chunk.n_rows <= prompt.n_most
    if sum(min(p.n_left, p.n_left if p.n_most is None else p.n_most) for p in prompts) <= n_rows:
        assert len(chunks) == sum(p.n_most != 0 for p in prompts)


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 300), max_size=4), min_size=1, max_size=30),
    st.lists(st.sampled_from([0, 1, 16, 100, 512]), min_size=1, max_size=8),
)
def test_whoever_comes_every_prompt_is_served_within_as_many_turns_as_there_are_prompts(
    arrivals: list[list[int]], budgets: list[int]
) -> None:
    left: dict[int, int] = {}
    last: dict[int, int] = {}
    new: set[int] = set()
    patience: dict[int, int] = {}  # turns with rows for prompts, by the end of which it must have had some
    turn = 0
    while turn < len(arrivals) or left:
        for n in arrivals[turn] if turn < len(arrivals) else []:
            key = len(last)
            left[key], last[key] = n, turn
            new.add(key)
        n_rows = budgets[turn % len(budgets)] or 16 * (turn >= len(arrivals))
        patience = {key: patience.get(key, len(left)) for key in left}
        chunks = plan_chunks([PromptView(k, n, last[k], is_new=k in new) for k, n in left.items()], n_rows, turn)
        assert bool(chunks) == bool(left and n_rows)
        turn += 1
        for key in left:
            patience[key] -= bool(n_rows)
        for chunk in chunks:
            left[chunk.key] -= chunk.n_rows
            last[chunk.key] = turn
            new.discard(chunk.key)
            del patience[chunk.key]
        left = {k: n for k, n in left.items() if n}
        assert all(patience.get(key, 1) > 0 for key in left)


def test_a_long_prompt_is_not_starved_by_short_ones_that_keep_coming() -> None:
    n_left, last, turn = 3000, 0, 0
    while n_left > 0 and turn < 100:
        views = [PromptView(0, n_left, last), PromptView(1 + turn, 30, turn, is_new=True)]
        turn += 1
        for chunk in plan_chunks(views, 512, turn - 1):
            if chunk.key == 0:
                n_left -= chunk.n_rows
                last = turn
    assert turn <= 12, "every second turn is its own"


def test_the_engine_serves_a_long_prompt_beside_clients_that_loop(make_bench: Callable[..., Any]) -> None:
    bench = make_bench(n_ctx=1600, n_slots=4, chunk_rows=32, prefix_cache=False)
    bench.backend.gate.clear()
    long, _ = bench.submit(bench.request("a" * 1500, max_tokens=1))
    n_short = 0

    def loop(event: Any) -> None:
        nonlocal n_short
        if isinstance(event, Finished) and not long.events[1:] and n_short < 1000:
            n_short += 1
            request = bench.request("xyz", max_tokens=1)
            bench.engine.submit(bench.model.prepare(request), loop)

    for _ in range(3):
        loop(Finished("stop", Usage(1, 0, 1), Timings(0, 0, 0)))
    bench.backend.gate.set()
    long.wait()
    assert 30 < n_short < 500 and len(bench.backend.batches) < 200


def test_a_short_prompt_passes_a_long_one_that_was_just_served() -> None:
    long, short = PromptView(0, 4000, 5), PromptView(1, 30, 5, is_new=True)
    assert plan_chunks([long, short], 512, 5) == (Chunk(1, 30),), "its first token does not wait for more of the other"
    assert plan_chunks([long, short], 512, 6) == (Chunk(1, 30), Chunk(0, 482)), "once"
    assert plan_chunks([long, replace(short, n_left=600)], 512, 5) == (Chunk(1, 512),)
    assert plan_chunks([replace(long, last_turn=4), short], 40, 5) == (Chunk(0, 40),)
    assert plan_chunks([long, short, PromptView(2, 50, 6)], 100, 6) == (Chunk(1, 30), Chunk(0, 70))


@given(
    n_running=st.integers(1, 8),
    turn_s=st.floats(1e-4, 0.2),
    row_s=st.floats(1e-6, 0.05),
    chunk_overhead_s=st.floats(0, 0.01),
)
def test_running_streams_keep_half_their_pace_and_prompts_go_on(
    n_running: int, turn_s: float, row_s: float, chunk_overhead_s: float
) -> None:
    pace, n_rows, spent_s = Pace(512), 0, 0.0
    n_turns = 400
    for _ in range(n_turns):
        rows = pace.budget(n_running)
        assert 0 <= rows <= 512
        seconds = turn_s + rows * row_s + (chunk_overhead_s if rows else 0)
        pace.observe(n_running, rows, seconds)
        n_rows += rows
        spent_s += seconds
    first_chunk_s = 32 * row_s + chunk_overhead_s  # the price of learning what a row costs
    assert spent_s <= 2.05 * n_turns * turn_s + 2 * first_chunk_s
    affordable = n_turns * turn_s / (row_s + chunk_overhead_s)
    assert n_rows >= min(16, affordable / 8)


def test_the_chunk_grows_to_what_streams_can_spare() -> None:
    pace = Pace(512)
    for _ in range(50):
        rows = pace.budget(4)
        pace.observe(4, rows, 0.010 + 0.0001 * rows)
    assert 60 <= max(pace.budget(4), 60) <= 110
    assert sum(pace.budget(4) > 0 for _ in range(3)) > 0


def test_alone_a_prompt_gets_chunks_of_bounded_time() -> None:
    pace = Pace(512)
    assert pace.budget(0) == FIRST_CHUNK
    for row_s, most in ((0.0001, 512), (0.004, 200), (1.0, SMALLEST_ALONE)):
        for _ in range(40):
            rows = pace.budget(0)
            pace.observe(0, rows, rows * row_s)
        assert pace.budget(0) == pytest.approx(most, rel=0.02)
    assert Pace(7).budget(0) == 7


def test_the_time_of_a_turn_is_split_between_its_kinds_of_rows() -> None:
    pace = Pace(512)
    assert pace.observe(0, 100, 0.5) == 0.5
    assert pace.observe(2, 0, 0.01) == 0.0
    assert pace.observe(2, 30, 0.03) == pytest.approx(0.02)


def test_the_batch_is_flat_and_asks_for_the_last_rows_logits() -> None:
    batch = build_batch([Rows(2, 7, [11], 1), Rows(0, 0, [5, 6, 7], 0), Rows(1, 3, [8, 9], 2)])
    assert batch.tokens.tolist() == [11, 5, 6, 7, 8, 9]
    assert batch.positions.tolist() == [7, 0, 1, 2, 3, 4]
    assert batch.slots.tolist() == [2, 0, 0, 0, 1, 1]
    assert batch.outputs.tolist() == [0, 4, 5]
    assert all(a.dtype == np.int32 for a in (batch.tokens, batch.positions, batch.slots, batch.outputs))
