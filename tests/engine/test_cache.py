"""Where a prompt runs and what it finds there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phobos.engine.slots.cache import (
    HOLD_TOKENS,
    ReusePlan,
    Slots,
    SlotView,
    count_common,
    is_worth_waiting,
    plan_reuse,
)

tokens = st.lists(st.integers(0, 2), max_size=12)
prompts = st.lists(st.integers(0, 2), min_size=1, max_size=12)


@st.composite
def slot_views(draw: st.DrawFn) -> list[SlotView]:
    held = draw(st.lists(st.tuples(tokens, st.booleans()), min_size=1, max_size=5))
    ages = draw(st.permutations(range(len(held))))
    return [SlotView(i, t, busy, ages[i]) for i, (t, busy) in enumerate(held)]


def common(a: list[int], b: list[int]) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


def view(index: int, held: list[int], *, busy: bool = False, age: int = 0) -> SlotView:
    return SlotView(index, held, busy, age)


@given(tokens, tokens)
def test_common_prefix(a: list[int], b: list[int]) -> None:
    assert count_common(a, b) == common(a, b)


@given(prompts, slot_views(), st.none() | st.integers(0, 4), st.none() | st.sets(st.integers(0, 4)))
def test_a_plan_is_sound_and_reuses_the_longest_prefix(
    prompt: list[int], slots: list[SlotView], pinned: int | None, sources: set[int] | None
) -> None:
    plan = plan_reuse(prompt, slots, pinned=pinned, sources=sources)
    allowed = [s for s in slots if not s.is_busy and pinned in (None, s.index)]
    if plan is None:
        assert not allowed
        return
    assert plan.slot in [s.index for s in allowed]
    assert plan.source != plan.slot
    usable = {s.index: s for s in slots if sources is None or s.index in sources}
    longest = max((min(common(prompt, list(s.tokens)), len(prompt) - 1) for s in usable.values()), default=0)
    assert plan.n_reused == longest
    if plan.n_reused:
        holder = usable[plan.slot if plan.source is None else plan.source]
        assert list(holder.tokens)[: plan.n_reused] == prompt[: plan.n_reused]
    else:
        assert plan.source is None


def test_the_last_token_always_runs_again() -> None:
    assert plan_reuse([1, 2, 3], [view(0, [1, 2, 3, 4])]) == ReusePlan(0, 2, None)


def test_a_conversation_goes_on_in_its_own_slot() -> None:
    slots = [view(0, [1, 2, 3], age=1), view(1, [], age=0), view(2, [1, 9], age=2)]
    assert plan_reuse([1, 2, 3, 4], slots) == ReusePlan(0, 3, None)


def test_a_shared_beginning_is_copied_into_an_empty_slot() -> None:
    system = list(range(20))
    slots = [view(0, [*system, 100, 101], age=1), view(1, [])]
    assert plan_reuse([*system, 200], slots) == ReusePlan(1, 20, 0)


def test_a_busy_slot_lends_its_prefix() -> None:
    slots = [view(0, [1, 2, 3, 4], busy=True), view(1, [7, 7])]
    assert plan_reuse([1, 2, 3, 9], slots) == ReusePlan(1, 3, 0)


def test_the_slot_not_used_for_longest_gives_way() -> None:
    slots = [view(0, [5], age=3), view(1, [6], age=1), view(2, [7], age=2)]
    assert plan_reuse([1, 2], slots) == ReusePlan(1, 0, None)


def test_little_is_lost_rather_than_another_conversation() -> None:
    held = list(range(20))
    full = [view(0, [*held, 90], age=2), view(1, [50] * 30, age=1)]
    assert plan_reuse([*held, 91], full) == ReusePlan(0, 20, None)
    much = [view(0, [*held, *range(90, 99)], age=2), view(1, [50] * 30, age=1)]
    assert plan_reuse([*held, 91], much) == ReusePlan(1, 20, 0)


def test_two_alternating_conversations_both_keep_theirs() -> None:
    slots = Slots(2, 4096)
    system = list(range(1000))
    first, second = [*system, 1, 1, 1], [*system, 2, 2, 2]
    computed = []
    for prompt in (first, second, [*first, 5], [*second, 6], [*first, 5, 7]):
        plan = plan_reuse(prompt, slots.view())
        assert plan is not None
        computed.append(len(prompt) - plan.n_reused)
        slots.take(plan, prompt, 0.0)
        slots.extend(plan.slot, prompt[plan.n_reused :])
        slots.give_back(plan.slot, 0.0)
    assert computed == [1003, 3, 1, 1, 1]


def test_a_pinned_prompt_runs_in_its_slot_or_waits() -> None:
    slots = [view(0, [1, 2, 3]), view(1, [9], busy=True)]
    assert plan_reuse([1, 2, 3, 4], slots, pinned=1) is None
    assert plan_reuse([1, 2, 3, 4], [view(0, [1, 2, 3]), view(1, [9])], pinned=1) == ReusePlan(1, 3, 0)


def test_no_sources_no_reuse() -> None:
    assert plan_reuse([1, 2, 3], [view(0, [1, 2, 3])], sources=()) == ReusePlan(0, 0, None)


@pytest.mark.parametrize(
    ("n_reused", "n_run", "worth"),
    [(0, 0, True), (0, 60, True), (0, 99, False), (99 - HOLD_TOKENS, 10, True), (100 - HOLD_TOKENS, 10, False)],
)
def test_waiting_for_a_running_prompt(n_reused: int, n_run: int, worth: bool) -> None:
    prompt = list(range(100))
    assert is_worth_waiting(prompt, n_reused, [*range(100), 500], n_run, HOLD_TOKENS) is worth
    assert not is_worth_waiting(prompt, 0, [7, *range(99)], 0, HOLD_TOKENS)


def test_slots_hold_what_ran_and_refuse_more_than_their_context() -> None:
    slots = Slots(2, 300)
    slots.take(ReusePlan(1, 0, None), [], 1.0)
    slots.extend(1, list(range(200)))
    slots.extend(1, np.arange(200, 300, dtype=np.int32))
    assert slots.tokens(1).tolist() == list(range(300))
    assert slots.n_idle == 1
    with pytest.raises(ValueError, match="301"):
        slots.extend(1, [1])
    slots.give_back(1, 2.0)
    assert [(s.n_tokens, s.busy, s.last_used_s) for s in slots.describe()] == [(0, False, 0.0), (300, False, 2.0)]
    slots.forget(1)
    assert slots.tokens(1).tolist() == []
