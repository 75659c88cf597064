"""Slots that cannot be cut back: where they go on, and what is kept for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from phobos.engine.scheduler import TAIL
from phobos.engine.slots.cache import ReusePlan, Slots, SlotView, is_worth_waiting, plan_reuse
from phobos.engine.slots.checkpoints import KEPT, Checkpoints

MakeBench = Callable[..., Any]


def view(index: int, held: list[int], *restarts: int) -> SlotView:
    return SlotView(index, held, False, 0, (len(held), *restarts))


def test_the_longest_place_to_go_on_from_within_what_is_common_decides() -> None:
    held = list(range(20))
    assert plan_reuse([*held, 50], [view(0, held)]) == ReusePlan(0, 20, None)
    assert plan_reuse([*held[:19], 50], [view(0, held)]) == ReusePlan(0, 0, None)
    assert plan_reuse([*held[:19], 50], [view(0, held, 5, 12)]) == ReusePlan(0, 12, None)
    assert plan_reuse([*held[:11], 50], [view(0, held, 5, 12)]) == ReusePlan(0, 5, None)
    assert plan_reuse(held, [view(0, held, 12)]) == ReusePlan(0, 12, None)
    assert plan_reuse([*held[:19], 50], [view(0, held, 12), view(1, held[:15])]) == ReusePlan(1, 15, None)


def test_only_a_checkpoint_to_come_is_worth_waiting_for() -> None:
    prompt, running = list(range(100)), [*range(90), *range(500, 510)]
    assert is_worth_waiting(prompt, 0, running, 10, 32, (80,))
    assert not is_worth_waiting(prompt, 0, running, 80, 32, (80,))
    assert not is_worth_waiting(prompt, 0, running, 10, 32, (92,))
    assert not is_worth_waiting(prompt, 60, running, 10, 32, (80,))


def test_the_oldest_checkpoint_goes_and_a_taken_slot_keeps_what_it_reuses() -> None:
    kept = Checkpoints()
    for n in (10, 20, 30, 40):
        kept.keep(n, bytes([n]))
    assert kept.lengths == (20, 30, 40) and len(kept.lengths) == KEPT
    assert kept.get(10) is None and kept.get(30) == bytes([30])
    slots = Slots(2, 100, can_cut=False)
    slots.take(ReusePlan(0, 0, None), [], 0.0)
    for first in (0, 10, 20):
        slots.extend(0, list(range(first, first + 10)))
        slots.keep(0, bytes([first]))
    plan = plan_reuse(list(range(25)), slots.view())
    assert plan == ReusePlan(1, 20, 0) and slots.state_for(plan) == bytes([10])
    slots.take(plan, list(range(25)), 0.0)
    assert [s.restarts for s in slots.view()] == [(30, 10, 20, 30), (20, 10, 20)]
    slots.forget(0)
    assert slots.view()[0].restarts == (0,)
    assert Slots(1, 8).view()[0].restarts is None


def test_a_conversation_goes_on_where_it_stands_and_anew_from_before_its_prompt_ended(make_bench: MakeBench) -> None:
    bench = make_bench(can_cut=False, n_slots=1, n_ctx=256, script=lambda tokens: 5)
    prompt = "a" * 40
    first = bench.ask(prompt, max_tokens=6)
    follow_up = bench.ask(prompt + first.text + "bcd", max_tokens=2)
    assert follow_up.started.n_cached == 40 + 1 + 5  # BOS; the last token chosen has not run
    again = bench.ask(prompt, max_tokens=6)
    assert again.text == first.text
    assert again.started.n_cached == 41 - TAIL
    assert bench.backend.restored == [(0, 41 - TAIL)]


def test_a_slot_without_a_place_to_go_on_from_starts_anew(make_bench: MakeBench) -> None:
    bench = make_bench(can_cut=False, n_slots=1, n_ctx=256)
    bench.ask("a" * 40, max_tokens=6)
    assert bench.ask("a" * 20 + "b" * 20, max_tokens=2).started.n_cached == 0


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_choices_compute_their_prompt_once(make_bench: MakeBench, prefix_cache: bool) -> None:
    bench = make_bench(can_cut=False, n_slots=3, n_ctx=256, chunk_rows=5, prefix_cache=prefix_cache)
    bench.backend.gate.clear()
    request = bench.request("abc" * 20, n=3, max_tokens=4)
    together = [bench.submit(request, choice)[0] for choice in range(3)]
    bench.backend.gate.set()
    assert len({collector.wait().text for collector in together}) == 3
    assert bench.counters.prompt_tokens_reused == 2 * (61 - TAIL)
    assert bench.counters.prompt_tokens_computed == 61 + 2 * TAIL


def test_a_short_prompt_has_no_checkpoint(make_bench: MakeBench) -> None:
    bench = make_bench(can_cut=False, n_slots=1)
    bench.ask("abc", max_tokens=2)
    assert bench.ask("abc", max_tokens=2).started.n_cached == 0
