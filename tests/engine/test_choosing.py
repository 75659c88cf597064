"""Tokens that the backend chooses itself: the same as ever, and asked for only where nothing else of a row counts."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from phobos.chat.messages import SamplingParams
from phobos.kernels.backend import find_best
from phobos.kernels.sampling import Chain, RowKernels

MakeBench = Callable[..., Any]
GREEDY = SamplingParams(temperature=0.0)
OTHERS = {
    "drawn": {"sampling": SamplingParams(temperature=1.0, seed=3)},
    "penalized": {"sampling": SamplingParams(temperature=0.0, repetition_penalty=1.3)},
    "biased": {"sampling": SamplingParams(temperature=0.0, logit_bias={4: 2.0})},
    "told": {"sampling": GREEDY, "top_logprobs": 2},
    "told with the prompt": {"sampling": GREEDY, "top_logprobs": 0, "echo": True},
}


def test_the_texts_are_those_of_the_sampler(
    make_bench: MakeBench, guess_wildly: Callable[[random.Random], None]
) -> None:
    """Also where tokens are guessed ahead, with n choices, and where top_k 1 means the same."""
    guess_wildly(random.Random(5))
    asked = [("abcabcab", GREEDY), ("zyx", GREEDY), ("abcabcab", SamplingParams(temperature=0.9, top_k=1))]
    texts = []
    for chooses in (False, True):
        bench = make_bench(n_ctx=256, n_slots=3, chooses=chooses)
        collectors = [bench.submit(bench.request(p, max_tokens=30, sampling=s))[0] for p, s in asked]
        texts.append([collector.wait().text for collector in collectors])
        wanting = [i for i, batch in enumerate(bench.backend.batches) if len(batch.outputs)]
        assert bench.backend.chosen == (wanting if chooses else [])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("fields", OTHERS.values(), ids=list(OTHERS))
def test_whoever_needs_more_gets_logits(make_bench: MakeBench, fields: dict[str, Any]) -> None:
    """Alone, and beside one that would not."""
    replies = []
    for chooses in (False, True):
        bench = make_bench(n_ctx=256, chooses=chooses, lookup=False)
        reply = bench.ask("abc", max_tokens=8, **fields)
        assert bench.backend.chosen == []
        collectors = [bench.submit(bench.request("xyz", max_tokens=9, **f))[0] for f in (fields, {"sampling": GREEDY})]
        together = [collector.wait() for collector in collectors]
        assert len(bench.backend.chosen) < len(bench.backend.batches)
        replies.append([(r.text, [e.logprob for e in r.entries]) for r in (reply, *together)])
    assert replies[0] == replies[1]


def test_a_row_without_a_usable_logit(make_bench: MakeBench) -> None:
    bench = make_bench(chooses=True)
    bench.backend._row = lambda tokens, seed: np.full(bench.tokenizer.n_vocab, np.nan, np.float32)
    reply = bench.ask("abc", max_tokens=4, sampling=GREEDY)
    assert "the model gave no token that may follow" in str(reply.last.error)


def test_the_best_is_what_is_drawn_at_temperature_0() -> None:
    rng = np.random.default_rng(4)
    rows = rng.integers(-3, 4, (40, 300)).astype(np.float32)  # full of ties
    rows[1, ::7], rows[2, :150], rows[3, 5], rows[4] = np.nan, -np.inf, np.inf, -np.inf
    rows[5], rows[6, 3:] = np.nan, -np.inf
    kernels = RowKernels(300)
    drawn = [kernels.draw(row, Chain(temperature=0.0), 1, 1) for row in rows]
    assert find_best(rows).tolist() == [-1 if token is None else token for token in drawn]
