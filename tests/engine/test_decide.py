"""Scorings by the engine and decisions made of them, against the scripted backend."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles.scripted_backend import Collector
from phobos.chat.events import Failed, Finished, Scores, Started
from phobos.chat.messages import GenerationRequest, SamplingParams, ScoreRequest
from phobos.decide import Decision, Question, decide, plan_decision, plan_paths
from phobos.errors import ContextLengthError, UnavailableError

LETTERS = [*'abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:-\n {}",.?', "yes", "no"]


def score(bench, tokens, *targets, **fields):
    collector = Collector()
    bench.engine.read(ScoreRequest(fields.pop("name", "r"), tuple(tokens), targets, **fields), collector)
    return collector


def expected(bench, tokens, row, wanted):
    """The log-probabilities by plain NumPy, from the backend's own rule."""
    seed = 17
    for token in tokens[: row + 1]:
        seed = (seed * 6364136223846793005 + token + 1442695040888963407) & ((1 << 64) - 1)
    logits = bench.backend._row(tuple(tokens[: row + 1]), seed).astype(np.float64)
    total = np.log(np.exp(logits - logits.max()).sum()) + logits.max()
    return [logits[token] - total for token in wanted]


def test_a_scoring_tells_each_targets_chances(make_bench):
    bench = make_bench(LETTERS)
    tokens = [0, *range(5, 25)]
    events = score(bench, tokens, (10, (3, 4, 5)), (12, (6,)), (20, (7, 8))).wait()
    assert isinstance(events.started, Started) and isinstance(events.last, Finished)
    scores = score(bench, tokens, (10, (3, 4, 5)), (12, (6,)), (20, (7, 8)))
    scores.wait()
    (told,) = [e for e in scores.events if isinstance(e, Scores)]
    for (row, wanted), values in zip(((10, (3, 4, 5)), (12, (6,)), (20, (7, 8))), told.rows, strict=True):
        assert values == pytest.approx(expected(bench, tokens, row, wanted), abs=2e-5)
    assert bench.counters.generated_tokens == 0


def test_a_second_scoring_reuses_all_but_what_it_must_read(make_bench):
    bench = make_bench(LETTERS)
    tokens = [0, *range(5, 25)]
    first = score(bench, tokens, (18, (3,)), (20, (4,)))
    first.wait()
    again = score(bench, tokens, (18, (3,)), (20, (4,)))
    again.wait()
    assert again.events[0].n_cached == 18 and first.events[1] == again.events[1]
    cold = score(bench, tokens, (18, (3,)), (20, (4,)), cache_prompt=False, name="other")
    cold.wait()
    assert cold.events[0].n_cached == 0 and cold.events[1] == first.events[1]


def test_scorings_run_beside_generations_and_change_nothing(make_bench):
    bench = make_bench(LETTERS, n_slots=3, max_rows=16)
    greedy = SamplingParams(temperature=0.0)
    request = GenerationRequest("g", prompt=(0, 9, 8, 7), sampling=greedy, max_tokens=20)
    alone, together = Collector(), Collector()
    bench.engine.submit(bench.model.prepare(request), alone)
    alone.wait()
    bench.engine.submit(bench.model.prepare(request), together)
    found = [score(bench, [0, *range(5, 40)], *((r, (3, 4)) for r in range(n, 36)), name="s") for n in (2, 20, 35)]
    assert together.wait().text == alone.fold().text
    for n, collector in zip((2, 20, 35), found, strict=True):
        collector.wait()
        assert len(collector.events[1].rows) == 36 - n


def test_more_targets_than_a_pass_can_give(make_bench):
    bench = make_bench(LETTERS, n_slots=2, n_ctx=64)
    tokens = [0, *range(2, 60)]
    collectors = [score(bench, tokens, *((row, (3,)) for row in range(59)), name=name) for name in "ab"]
    for collector in collectors:
        collector.wait()
        told = collector.events[1].rows
        assert len(told) == 59 and told[30] == pytest.approx(expected(bench, tokens, 30, [3]), abs=2e-5)


def test_questions_run_side_by_side_in_forks_of_one_slot(make_bench):
    """Whatever room there is for forks: nothing is copied between slots or computed twice, and the scores are those of
    an engine without forks."""
    state = "abc " * 40
    questions = [choice(f"q{i}", "up", "down", "upper", text=f"number {i}?") for i in range(9)]
    decision = Decision("r", state, (*questions, score_question("s", 12)))
    plain = make_bench(LETTERS, n_ctx=512, n_slots=1, max_rows=64)
    wanted = decide(plain.engine, decision, plain.tokenizer, 512)
    plan = plan_decision(decision, plain.tokenizer, 512)
    n_state = len(plan._context)
    n_longest = max(len(r.prompt) + max(len(p.tokens) for p in r.paths) for r in plan._readings)
    n_fewest = n_state + sum(len(r.prompt) for r in plan._readings)
    for n_ctx, n_slots in ((2048, 3), (n_state + n_longest + 90, 2), (n_state + n_longest + 10, 1)):
        bench = make_bench(LETTERS, n_ctx=n_ctx, n_slots=n_slots, max_rows=256, fork_block=8)
        for name in ("r", "again"):
            assert decide(bench.engine, replace(decision, request_id=name), bench.tokenizer, n_ctx) == tuple(
                replace(a, question=q) for a, q in zip(wanted, decision.questions, strict=True)
            )
        if n_ctx == 2048:
            assert not bench.backend.copies
            assert bench.counters.prompt_tokens_computed <= 2 * n_fewest - n_state + 2 * 16
        assert not any(slot.busy for slot in bench.counters.snapshot().slots)


def test_a_fork_that_is_called_off_leaves_its_slot(make_bench):
    bench = make_bench(LETTERS, n_ctx=512, n_slots=1, max_rows=64, fork_block=8)
    tokens = [0, *range(5, 45)]
    score(bench, tokens, (40, (3,)), n_shared=30).wait()
    bench.backend.gate.clear()
    found = [Collector() for _ in range(3)]
    tickets = [
        bench.engine.read(ScoreRequest("r", (*tokens[:30], 50 + i, 51, 52), ((32, (3,)),), n_shared=30), collector)
        for i, collector in enumerate(found)
    ]
    for ticket in tickets[:2]:
        ticket.cancel()
    bench.backend.gate.set()
    found[2].wait()
    (told,) = [e for e in found[2].events if isinstance(e, Scores)]
    assert told.rows[0] == pytest.approx(expected(bench, (*tokens[:30], 52, 51, 52), 32, [3]), abs=2e-5)
    assert bench.ask((0, 9, 8), max_tokens=2).last.usage.n_generated <= 2


def test_errors(make_bench):
    bench = make_bench(LETTERS, n_ctx=16)
    with pytest.raises(ContextLengthError):
        score(bench, range(16), (15, (1,)))
    bench.backend.fails_at = 1
    collector = score(bench, [0, 5], (1, (3,)))
    collector.wait()
    assert isinstance(collector.events[-1], Failed)
    with pytest.raises(UnavailableError):
        score(bench, [0, 5], (1, (3,)))


# --- decisions ------------------------------------------------------------------------------------------------------


def choice(name, *labels, text="Which?"):
    return Question(name, "choice", text, labels, (None,) * len(labels))


def score_question(name, n):
    return Question(name, "score", None, tuple(map(str, range(n))), (None,) * n)


def test_the_state_is_computed_once_whatever_is_asked(make_bench):
    for n_slots in (1, 2, 4):
        bench = make_bench(LETTERS, n_ctx=512, n_slots=n_slots, max_rows=64)
        state = "abc " * 60
        questions = tuple(choice(f"q{i}", "up", "down", "upper", text=f"number {i}?") for i in range(6))
        decision = Decision("r", state, questions)
        plan = plan_decision(decision, bench.tokenizer, 512)
        decide(bench.engine, decision, bench.tokenizer, 512)
        n_state = len(bench.tokenizer.encode(f"Context:\n{state}\n")) + 1
        n_questions = sum(len(r.prompt) + sum(len(p.tokens) + 1 for p in r.paths) for r in plan._readings)
        assert bench.counters.prompt_tokens_computed <= n_state + n_questions + plan.n_requests


def test_warm_equals_cold_to_the_last_bit(make_bench):
    rng = np.random.default_rng(5)
    bench = make_bench(LETTERS, n_ctx=512, n_slots=3, max_rows=48)
    words = ["apple", "pear", "yes", "nothing", "yesterday", "a", "ab", "abc"]
    for trial in range(40):
        state = " ".join(rng.choice(words, 12))
        labels = tuple(dict.fromkeys(rng.choice(words, 4)))
        questions = (choice("c", *labels), score_question("s", int(rng.integers(1, 12))))
        normalize = ("sum", "mean")[trial % 2]
        cold = decide(
            bench.engine,
            Decision(f"c{trial}", state, questions, normalize=normalize, cache_prompt=False),
            bench.tokenizer,
            512,
        )
        warm = decide(bench.engine, Decision(f"w{trial}", state, questions, normalize=normalize), bench.tokenizer, 512)
        assert [a.probabilities for a in warm] == [a.probabilities for a in cold]
        assert all(sum(a.probabilities) == pytest.approx(1, abs=1e-12) for a in warm)
    assert bench.counters.prompt_tokens_reused > 0


def test_a_decision_that_fails_raises(make_bench):
    bench = make_bench(LETTERS, n_ctx=256)
    bench.backend.fails_at = 1
    with pytest.raises(UnavailableError):
        decide(bench.engine, Decision("r", "abc", (choice("c", "up", "down"),)), bench.tokenizer, 256)
    with pytest.raises(ContextLengthError):
        plan_decision(Decision("r", "abc" * 99, (choice("c", "up", "down"),)), bench.tokenizer, 256)


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5).map(tuple), min_size=1, max_size=12, unique=True))
def test_paths_read_every_token_behind_every_beginning_once(options):
    told = {}
    for path in plan_paths(options):
        assert path.targets[-1][0] == len(path.tokens)
        assert list(path.targets) == sorted(path.targets)
        for depth, tokens in path.targets:
            assert path.tokens[:depth] not in told
            assert len(set(tokens)) == len(tokens)
            told[path.tokens[:depth]] = set(tokens)
    wanted = {}
    for option in options:
        for depth, token in enumerate(option):
            wanted.setdefault(option[:depth], set()).add(token)
    assert told == wanted
