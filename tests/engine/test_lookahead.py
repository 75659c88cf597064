"""Guesses ahead: where they come from, how much of them runs, and that they change nothing."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phobos.chat.messages import SamplingParams
from phobos.engine.costs import PassCosts
from phobos.engine.speculative.guesses import Guess, Record
from phobos.engine.speculative.lookahead import MOST, START, plan_lengths
from phobos.engine.speculative.lookup import Lookup

MakeBench = Callable[..., Any]
GuessWildly = Callable[[random.Random], None]
few_tokens = st.lists(st.integers(0, 3), max_size=80)


# Prompt lookup


def naive_guess(tokens: Sequence[int], n_most: int) -> list[int]:
    """The continuation of the longest match of two tokens or more, the latest of equals."""
    n = len(tokens)
    best = (1, 0)
    for place in range(2, n):
        length = 0
        while length < place and length < 64 and tokens[place - 1 - length] == tokens[n - 1 - length]:
            length += 1
        best = max(best, (length, place))
    if best[0] < 2:
        return []
    text = list(tokens)
    for i in range(n_most):
        text.append(text[best[1] + i])
    return text[n:]


@given(few_tokens, st.integers(0, 9))
def test_the_longest_match_decides_the_latest_of_equals(tokens: list[int], n_most: int) -> None:
    """Few tokens have more places than are kept, so lengths of matches are compared only where none was dropped."""
    found = Lookup().guess(tokens, n_most)
    expected = naive_guess(tokens, n_most)
    assert len(found.tokens) == len(found.kinds) == len(expected)
    pairs = list(itertools.pairwise(tokens))
    if pairs and pairs.count(pairs[-1]) <= 12:
        assert list(found.tokens) == expected


@given(few_tokens, st.lists(st.integers(0, 80), max_size=8))
def test_a_lookup_that_grew_equals_a_fresh_one_where_nothing_is_followed(tokens: list[int], cuts: list[int]) -> None:
    grown = Lookup()
    for n in sorted(min(cut, len(tokens)) for cut in cuts):
        grown.guess(tokens[:n], 0)
    assert grown.guess(tokens, 5) == Lookup().guess(tokens, 5)


def test_a_copy_is_followed_past_places_that_are_no_longer_kept() -> None:
    line = [1, 2, 1, 2]
    file = [token for number in range(40) for token in (*line, 100 + number)]
    tokens = [*file, 7, 8, 9]
    lookup = Lookup()
    n_right = 0
    for token in file:
        guess = lookup.guess(tokens, 1)
        n_right += guess.tokens == (token,)
        tokens.append(token)
    assert n_right >= len(file) - 5


def test_a_guess_goes_on_into_itself_where_the_text_repeats() -> None:
    assert Lookup().guess([5, 1, 2, 3, 1, 2], 7).tokens == (3, 1, 2, 3, 1, 2, 3)


def test_no_repetition_no_guess() -> None:
    assert Lookup().guess(list(range(500)), 8) == Guess()
    assert Lookup().guess([], 8) == Lookup().guess([1], 8) == Lookup().guess([1, 1, 1], 0) == Guess()


# What is known of guesses and passes


def test_a_record_learns_and_multiplies_along_a_guess() -> None:
    record = Record((0.5, 0.9))
    guess = Guess((7, 8, 9), (0, 1, 1))
    assert record.chances(guess) == pytest.approx([0.5, 0.45, 0.405])
    for _ in range(400):
        record.note(guess, 1)
    assert record.chance(0) > 0.95 and record.chance(1) < 0.05
    for _ in range(400):
        record.note(guess, 3)
    assert record.chance(1) > 0.7, "what was long ago counts less"


def test_the_cost_of_a_pass_is_learnt_by_its_rows() -> None:
    costs = PassCosts()
    assert costs.estimate(3) is None
    costs.note(1, 0.1)
    assert costs.estimate(1) == 0.1 and 0.1 < (costs.estimate(4) or 0) < 0.2
    for _ in range(40):
        costs.note(9, 0.2)
    assert costs.estimate(9) == pytest.approx(0.2, rel=0.01)
    assert costs.estimate(5) == pytest.approx(0.15, rel=0.01)
    costs.note(9, 30.0)
    assert (costs.estimate(9) or 0) < 0.26, "the machine had other work"
    for _ in range(300):
        costs.note(1, 0.1)
    assert costs.estimate(9) == pytest.approx(0.22, rel=0.001), "what is not seen again fades"


chances = st.lists(
    st.lists(st.floats(0, 1), max_size=8).map(lambda values: sorted(values, reverse=True)), min_size=1, max_size=5
)


@given(chances, st.integers(0, 12), st.floats(0.001, 0.5), st.lists(st.floats(0, 4), min_size=5, max_size=5))
def test_planned_lengths_pay_and_keep_the_bounds(
    guesses: list[list[float]], n_most: int, slope: float, allowances: list[float]
) -> None:
    n = len(guesses)
    turn_s = lambda n_rows: 0.1 * (1 + slope * n_rows)  # noqa: E731
    lengths = plan_lengths(guesses, allowances[:n], n, n_most, turn_s)
    n_rows = sum(lengths)
    assert n_rows <= n_most and all(m <= len(guess) for m, guess in zip(lengths, guesses, strict=True))
    promised = sum(sum(guess[:m]) for m, guess in zip(lengths, guesses, strict=True))
    assert (n + promised) / turn_s(n + n_rows) >= n / turn_s(n) * (1 - 1e-9)
    assert n == 1 or turn_s(n + n_rows) <= 2 * turn_s(n) * (1 + 1e-9)
    if n > 1 and n_rows:
        less = plan_lengths(guesses, allowances[:n], n, n_most, turn_s, 0.7 * turn_s(n))
        assert turn_s(n + sum(less)) <= 1.3 * turn_s(n) * (1 + 1e-9)
    for m, allowance in zip(lengths, allowances, strict=False):
        assert m == 0 or turn_s(n + m) / turn_s(n) - 1 <= allowance + 1e-9


def test_what_is_sure_runs_long_and_what_is_not_does_not() -> None:
    turn_s = lambda n_rows: 0.05 * (1 + 0.14 * (n_rows - 1))  # noqa: E731
    assert plan_lengths([[0.99**i for i in range(1, 20)]], [MOST], 1, 30, turn_s)[0] >= 12
    assert plan_lengths([[0.1, 0.01]], [MOST], 1, 30, turn_s) == [0]
    assert plan_lengths([[0.99] * 10], [START], 1, 30, turn_s) == [2], "until it has earned more"
    assert plan_lengths([[0.99] * 10], [MOST], 1, 30, lambda n_rows: None) == [0], "nothing is known yet"


# In the engine


def settle_costs(bench: Any) -> None:
    """Let passes take what they take with weights: one by one, hardly more for a few rows."""
    bench.backend.pass_s, bench.backend.row_s = 0.004, 0.0001


def test_a_text_that_repeats_itself_takes_fewer_passes(make_bench: MakeBench) -> None:
    words = "abcdefghij"
    script = lambda tokens: 2 + (tokens[-1] - 1) % 10  # noqa: E731
    for lookup in (True, False):
        bench = make_bench(n_ctx=512, max_rows=128, script=script, lookup=lookup)
        settle_costs(bench)
        reply = bench.ask("a", max_tokens=200)
        assert reply.text == (words * 21)[1:201]
        timings, counters = reply.last.timings, bench.counters
        assert (timings.n_draft, timings.n_draft_accepted) == (counters.draft_tokens, counters.draft_tokens_accepted)
        assert reply.last.usage.n_generated == counters.generated_tokens == 200
        n_passes = counters.passes
        if lookup:
            assert n_passes < 120 and timings.n_draft_accepted >= 200 - n_passes
            info = counters.snapshot().recent[0]
            assert (info.n_draft, info.n_draft_accepted) == (timings.n_draft, timings.n_draft_accepted)
        else:
            assert n_passes == 200 and timings.n_draft == 0
        follow_up = bench.ask("a" + reply.text + "k", max_tokens=1)
        assert follow_up.last.usage.n_cached == 1 + 1 + 199, "rows of guesses that were right stay"


def test_slots_that_cannot_be_cut_back_get_no_guesses(make_bench: MakeBench) -> None:
    bench = make_bench(n_ctx=512, script=lambda tokens: 5, can_cut=False)
    settle_costs(bench)
    assert bench.ask("a", max_tokens=60).last.timings.n_draft == 0


def test_guesses_that_are_never_right_cost_little(make_bench: MakeBench) -> None:
    bench = make_bench(n_ctx=1024, max_rows=128)
    settle_costs(bench)
    never = SamplingParams(temperature=1.0, seed=3, top_k=0, top_p=1.0, min_p=0.0, logit_bias={1: -100.0})
    timings = bench.ask("abc", max_tokens=150, sampling=never).last.timings
    assert timings.n_draft < 70, "27 letters drawn at random: pairs repeat, what follows them does not"


def test_the_limit_of_the_answer_bounds_its_guesses(make_bench: MakeBench) -> None:
    bench = make_bench(n_ctx=64, max_rows=64, script=lambda tokens: 5)
    settle_costs(bench)
    for _ in range(3):
        assert bench.ask("a", max_tokens=17).text == "d" * 17
        assert len(bench.ask("aaaa").text) == 64 - 5
    assert bench.counters.draft_tokens_accepted > 0


@pytest.mark.parametrize("seed", range(3))
def test_wild_guesses_change_nothing(make_bench: MakeBench, guess_wildly: GuessWildly, seed: int) -> None:
    rng = random.Random(seed)
    guess_wildly(rng)
    plain = make_bench("abcdef", n_slots=1, n_ctx=256, lookup=False)
    guessing = make_bench("abcdef", n_slots=3, n_ctx=256, max_rows=64)
    requests = []
    for i in range(24):
        sampling = SamplingParams(
            temperature=rng.choice([0.0, 0.5, 1.0]),
            seed=i,
            top_k=0,
            min_p=0.0,
            repetition_penalty=rng.choice([1.0, 1.3]),
            frequency_penalty=rng.choice([0.0, 0.5]),
            logit_bias=rng.choice([{1: -6.0}, {1: -6.0, 4: 3.0}]),
        )
        requests.append(
            plain.request(
                "abcabdabc"[: rng.randint(1, 9)],
                sampling=sampling,
                max_tokens=rng.randint(1, 120),
                stop=tuple(rng.sample(["abc", "ff", "dec"], rng.randint(0, 2))),
                top_logprobs=rng.choice([None, 2]),
            )
        )
    expected = [plain.submit(request)[0].wait() for request in requests]
    found = [guessing.submit(request)[0] for request in requests]
    for one, collector in zip(expected, found, strict=True):
        other = collector.wait()
        assert (other.text, other.entries, other.last.reason) == (one.text, one.entries, one.last.reason)
        assert other.last.usage.n_generated == one.last.usage.n_generated
        assert other.last.stop_text == one.last.stop_text
    assert guessing.counters.draft_tokens > guessing.counters.draft_tokens_accepted > 0
