"""System One on a real model: probabilities that add up, and a cache that changes nothing."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from phobos.counters import Counters
from phobos.decide import NOUL_LABELS, Answer, Decision, Question, decide
from phobos.engine.engine import Engine
from phobos.engine.model import load_model
from phobos.settings import EngineSettings

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]
NAME = "SmolLM2-135M-Instruct-Q4_1.gguf"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    path = Path(os.environ.get("PHOBOS_TEST_MODELS", Path(__file__).parents[2] / "models")) / NAME
    if not path.exists():
        pytest.skip(f"no {NAME} in models/: fetch it, or set PHOBOS_TEST_MODELS")
    model = load_model(EngineSettings(path, n_ctx=2048, n_slots=3), lambda progress: None)
    running = Engine(model, Counters())
    running.start()
    yield running
    running.close()


def ask(engine: Engine, decision: Decision) -> tuple[Answer, ...]:
    return decide(engine, decision, engine.model.tokenizer, engine.model.n_ctx)


WORDS = ["the", "printer", "invoice", "late", "again", "nobody", "in", "Zürich", "answers", "12", "calls", "please"]
LABELS = ["billing", "support", "refund", "refunds", "complaint", "other", "unknown", "yes", "no", "maybe", "1", "12"]


def random_question(rng: random.Random, name: str) -> Question:
    text = " ".join(rng.choices(WORDS, k=rng.randint(2, 6))) + "?"
    match rng.choice(("noul", "choice", "score")):
        case "noul":
            return Question(name, "noul", text, NOUL_LABELS, (None, "otherwise"))
        case "choice":
            labels = tuple(rng.sample(LABELS, rng.randint(2, 6)))
            return Question(name, "choice", text, labels, tuple(rng.choice((None, "as said")) for _ in labels))
        case _:
            n = rng.randint(2, 12)
            return Question(name, "score", text, tuple(map(str, range(n))), (None,) * n)


@pytest.mark.parametrize("n_requests", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_warm_equals_cold_to_the_last_bit(engine: Engine, n_requests: int) -> None:
    rng = random.Random(17)
    states = [" ".join(rng.choices(WORDS, k=rng.randint(1, 60))) for _ in range(12)]
    for trial in range(n_requests):
        questions = tuple(random_question(rng, f"q{i}") for i in range(rng.randint(1, 3)))
        normalize = rng.choice(("sum", "mean"))
        state = rng.choice(states)
        warm = ask(engine, Decision(f"warm{n_requests}-{trial}", state, questions, normalize=normalize))
        alone = Decision(
            f"cold{trial}", state, questions, normalize=normalize, cache_prompt=False, cache_slot=trial % 3
        )
        cold = ask(engine, alone)
        assert [a.probabilities for a in warm] == [a.probabilities for a in cold]
        for answer in warm:
            assert sum(answer.probabilities) == pytest.approx(1, abs=1e-12)
            assert 0 <= answer.confidence <= 1 and 0 <= answer.entropy <= 1
    assert engine.counters.prompt_tokens_reused > 0 and engine.counters.generated_tokens == 0


def test_the_state_moves_the_probabilities_the_right_way(engine: Engine) -> None:
    question = Question("topic", "choice", "What is the text about?", ("sports", "cooking"), (None, None))
    match = "The striker scored twice and the team won the football match."
    soup = "Fry the onions in butter, add the flour and let the soup simmer."
    (about_match,) = ask(engine, Decision("r", match, (question,)))
    (about_soup,) = ask(engine, Decision("r", soup, (question,)))
    assert about_match.probabilities[0] > about_soup.probabilities[0] + 0.01


def test_questions_share_the_state(engine: Engine) -> None:
    rng = random.Random(3)
    state = " ".join(rng.choices(WORDS, k=1200))
    before = engine.counters.prompt_tokens_computed
    ask(engine, Decision("one", state, (random_question(rng, "q"),)))
    one = engine.counters.prompt_tokens_computed - before
    questions = tuple(
        Question(f"q{i}", "noul", f"Is it about {word}?", NOUL_LABELS, (None, None)) for i, word in enumerate(LABELS)
    )
    ask(engine, Decision("many", state + " indeed", questions))
    many = engine.counters.prompt_tokens_computed - before - one
    assert many < 700 < 1200 < one  # the beginning of the state is found again, the rest of it computed once
