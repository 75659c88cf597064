"""Engines on a scripted backend."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from doubles.scripted_backend import Collector, ScriptedBackend, ScriptedTokenizer, make_model
from phobos.chat.messages import GenerationRequest, SamplingParams
from phobos.counters import Counters
from phobos.engine.engine import Engine
from phobos.engine.speculative import lookahead
from phobos.engine.tickets import Ticket

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


class Bench:
    """A running engine with what is under it, and short ways to ask it."""

    def __init__(self, tokenizer: ScriptedTokenizer, backend: ScriptedBackend, **changes: Any) -> None:
        self.tokenizer, self.backend = tokenizer, backend
        self.model = make_model(tokenizer, backend, **changes)
        self.counters = Counters()
        self.engine = Engine(self.model, self.counters)
        self._n_requests = 0

    def request(self, prompt: str | tuple[int | str, ...], seed: int = 1, **fields: Any) -> GenerationRequest:
        self._n_requests += 1
        sampling = fields.pop("sampling", SamplingParams(seed=seed, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0))
        return GenerationRequest(f"r{self._n_requests}", prompt=prompt, sampling=sampling, **fields)

    def submit(self, request: GenerationRequest, choice: int = 0) -> tuple[Collector, Ticket]:
        collector = Collector()
        ticket = self.engine.submit(self.model.prepare(request), collector, choice=choice)
        return collector, ticket

    def ask(self, prompt: str | tuple[int, ...], **fields: Any) -> Any:
        """The whole reply."""
        return self.submit(self.request(prompt, **fields))[0].wait()


@pytest.fixture
def make_bench() -> Iterator[Callable[..., Bench]]:
    """`make_bench(**options)`: options of the backend, of the model, or of its settings; all are closed at the end."""
    made: list[Bench] = []

    def make(pieces: Any = ALPHABET, **options: Any) -> Bench:
        of_backend = {
            k: options.pop(k)
            for k in ("n_ctx", "n_slots", "max_rows", "script", "can_cut", "fork_block", "cache_rows", "chooses")
            if k in options
        }
        tokenizer = ScriptedTokenizer(pieces)
        bench = Bench(tokenizer, ScriptedBackend(tokenizer.n_vocab, **of_backend), **options)
        made.append(bench)
        bench.engine.start()
        return bench

    yield make
    for bench in made:
        bench.backend.gate.set()
        bench.engine.close()
        assert bench.backend.is_closed


@pytest.fixture
def guess_wildly(monkeypatch: pytest.MonkeyPatch) -> Callable[[random.Random], None]:
    """Let guesses run in lengths without any sense, drawn from the given generator."""

    def begin(rng: random.Random) -> None:
        def plan(guesses: list[list[float]], allowances: object, n_running: int, n_most: int, *_: object) -> list[int]:
            lengths = []
            for guess in guesses:
                lengths.append(rng.randint(0, min(len(guess), n_most)))
                n_most -= lengths[-1]
            return lengths

        monkeypatch.setattr(lookahead, "plan_lengths", plan)

    return begin
