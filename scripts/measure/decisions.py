"""What twenty questions about one state cost beside one question, in one System One request.

    python scripts/measure/decisions.py MODEL.gguf [--rounds N] [--tokens N]

Every request has a state of its own, so nothing is found in the cache; one and twenty questions in turns, medians.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path
from statistics import median

from phobos.counters import Counters
from phobos.decide import NOUL_LABELS, Decision, Question, decide, plan_decision
from phobos.engine.engine import Engine
from phobos.runtime import LoadLog, start_engine
from phobos.settings import EngineSettings

STATE = (
    "the printer invoice late again nobody in office answers twelve calls please customer wrote about delivery damaged "
    "box refund wanted soon manager angry polite"
)
ASKED = (
    "the customer angry", "a refund wanted", "the box damaged", "it about an invoice", "the tone polite",
    "somebody called", "a manager named", "the delivery late", "a date given", "it a complaint", "it to be escalated",
    "a product named", "money owed", "it about a printer", "an answer expected", "the office closed", "it urgent",
    "it spam", "a phone number given", "the writer a customer",
)  # fmt: skip
LABELS = ("billing", "technical support", "refunds", "other")


def write_question(index: int, *, is_mixed: bool) -> Question:
    """Yes or no; or, where they are mixed, two in three with options or levels."""
    text = f"Is {ASKED[index % len(ASKED)]}?"
    kind = index % 3 if is_mixed else 0
    if kind == 1:
        return Question(f"q{index}", "choice", f"{text} Which team?", LABELS, (None,) * len(LABELS))
    if kind == 2:
        levels = ("not at all", "a little", "rather", "very", "utterly")
        return Question(f"q{index}", "score", text, tuple(map(str, range(5))), levels)
    return Question(f"q{index}", "noul", text, NOUL_LABELS, (None, None))


def ask(engine: Engine, state: str, questions: tuple[Question, ...]) -> float:
    """The seconds of one decision."""
    began_s = time.perf_counter()
    decide(engine, Decision(str(began_s), state, questions), engine.model.tokenizer, engine.model.n_ctx)
    return time.perf_counter() - began_s


def compare(engine: Engine, rng: random.Random, options: argparse.Namespace, *, is_mixed: bool) -> None:
    """Rounds of one question and of twenty, in turns."""
    many = tuple(write_question(index, is_mixed=is_mixed) for index in range(options.questions))
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(options.rounds):
        for times, questions in zip(seconds, (many[:1], many), strict=True):
            times.append(ask(engine, " ".join(rng.choices(STATE.split(), k=options.tokens)), questions))
    plan = plan_decision(
        Decision("", STATE * (options.tokens // len(STATE.split())), many), engine.model.tokenizer, 1 << 30
    )
    one_s, many_s = map(median, seconds)
    print(
        f"{'mixed' if is_mixed else 'yes or no'}, prompts of {plan.n_input} tokens: one question {one_s:.3f} s, "
        f"{len(many)} questions ({plan.n_requests} rows of options) {many_s:.3f} s, {many_s / one_s:.2f} times",
        flush=True,
    )


def main() -> int:
    """Measure both kinds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--questions", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=1440, help="words of the state, about as many tokens")
    parser.add_argument("--slots", type=int, default=4)
    options = parser.parse_args()
    engine = start_engine(EngineSettings(options.model, n_ctx=4096, n_slots=options.slots), Counters(), LoadLog())
    try:
        rng = random.Random(1)
        for is_mixed in (False, True):
            compare(engine, rng, options, is_mixed=is_mixed)
    finally:
        engine.close(0.0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
