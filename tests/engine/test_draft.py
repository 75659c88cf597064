"""A draft model: what it holds, how far it guesses, and that it changes nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from doubles.scripted_backend import ScriptedBackend
from models.gguf_writer import write_gguf
from models.tiny_models import RECIPES, make_metadata, make_weights, write_tiny_model
from phobos.chat.messages import SamplingParams
from phobos.engine.speculative import lookahead
from phobos.engine.speculative.draft import N_AT_ONCE, check_draft, open_draft
from phobos.errors import UsageError
from phobos.gguf.quants import GGMLType
from phobos.gguf.reader import open_gguf
from phobos.kernels.backend import BackendLimits
from phobos.settings import EngineSettings

MakeBench = Callable[..., Any]
GuessWildly = Callable[[random.Random], None]
ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def walk(tokens: tuple[int, ...]) -> int:
    """A text without a pair that comes twice for long, known only to those who know the rule."""
    return 2 + (5 * tokens[-1] + 3 * len(tokens) + tokens[-1] * len(tokens)) % 26


def stumble(tokens: tuple[int, ...]) -> int:
    """The same, but for every seventh token."""
    return walk(tokens) if len(tokens) % 7 else 2


def make_draft(script: Callable[[tuple[int, ...]], int | None] = stumble, **options: Any) -> ScriptedBackend:
    draft = ScriptedBackend(28, **{"n_ctx": 512, "n_slots": 3, "max_rows": 64, "script": script, **options})
    draft.pass_s = 0.0005
    return draft


def bench_with(make_bench: MakeBench, draft: ScriptedBackend | None, **options: Any) -> Any:
    bench = make_bench(**{"n_ctx": 512, "n_slots": 3, "max_rows": 128, "draft": draft, **options})
    bench.backend.pass_s = 0.004
    return bench


def test_a_draft_model_saves_passes_and_its_slot_follows(make_bench: MakeBench) -> None:
    draft = make_draft()
    bench = bench_with(make_bench, draft, script=walk, lookup=False)
    reply = bench.ask("abc" * 20, max_tokens=150)
    assert reply.text == bench_with(make_bench, None, script=walk, lookup=False).ask("abc" * 20, max_tokens=150).text
    timings = reply.last.timings
    assert timings.n_draft_accepted > 70 and bench.counters.passes < 90
    assert timings.n_draft_accepted > 0.5 * timings.n_draft
    lengths = [len(batch.tokens) for batch in draft.batches]
    assert lengths[0] == N_AT_ONCE and max(lengths[1:]) <= 64, "the prompt in bounded pieces"
    n_rows = sum(lengths)
    follow_up = bench.ask("abc" * 20 + reply.text, max_tokens=40)
    assert follow_up.last.timings.n_draft_accepted > 10
    assert sum(len(batch.tokens) for batch in draft.batches) - n_rows < 80, "what its slot held is not run again"


def test_a_prefix_is_copied_between_slots_of_the_draft_model(make_bench: MakeBench) -> None:
    draft = make_draft()
    bench = bench_with(make_bench, draft, script=walk, lookup=False)
    bench.ask("s" * 100, max_tokens=20)
    bench.ask("s" * 100 + "abc", max_tokens=20, cache_slot=2)
    assert [copy for copy in draft.copies if copy[1] == 2 and copy[2] >= 100]


def test_a_draft_model_that_is_never_right_is_hardly_asked(make_bench: MakeBench) -> None:
    draft = make_draft(lambda tokens: 2)
    bench = bench_with(make_bench, draft, script=lambda tokens: 3 + len(tokens) % 24, lookup=False)
    draft.pass_s = 0.002
    bench.ask("abc", max_tokens=100)
    assert len(draft.batches) < 20


def test_its_context_may_be_shorter_and_its_slots_are_given_back(make_bench: MakeBench) -> None:
    draft = make_draft(n_ctx=60)
    bench = bench_with(make_bench, draft, script=walk, lookup=False, prefix_cache=False)
    assert bench.ask("abc", max_tokens=150).last.usage.n_generated == 150
    bench.ask("abcd", max_tokens=10)
    assert draft.released
    bench.engine.close()
    assert draft.is_closed


@pytest.mark.parametrize("seed", range(3))
def test_wild_drafts_change_nothing(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, guess_wildly: GuessWildly, seed: int
) -> None:
    rng = random.Random(seed)
    guess_wildly(rng)
    monkeypatch.setattr(lookahead, "START_DRAFTING", 1e6)
    monkeypatch.setattr(lookahead, "MOST", 1e6)
    script = lambda tokens: walk(tokens) if hash(tokens) % 3 else None  # noqa: E731
    draft = make_draft(script=lambda tokens: walk(tokens) if hash(tokens) % 4 else None)
    plain = bench_with(make_bench, None, script=script, lookup=False, n_slots=1)
    guessing = bench_with(make_bench, draft, script=script)
    plain.backend.pass_s = guessing.backend.pass_s = draft.pass_s = 0.0
    requests = [
        plain.request(
            ALPHABET[: rng.randint(1, 26)] * rng.randint(1, 3),
            sampling=SamplingParams(
                temperature=rng.choice([0.0, 1.0]),
                seed=i,
                top_k=0,
                min_p=0.0,
                repetition_penalty=rng.choice([1.0, 1.2]),
                logit_bias={1: -8.0},
            ),
            max_tokens=rng.randint(1, 100),
            stop=tuple(rng.sample(["ab", "xyz", "q"], rng.randint(0, 2))),
            top_logprobs=rng.choice([None, 2]),
        )
        for i in range(20)
    ]
    expected = [plain.submit(request)[0].wait() for request in requests]
    submitted = [guessing.submit(request) for request in requests]
    cancelled = rng.sample(range(20), 4)
    for i in cancelled:
        submitted[i][1].cancel()
    for i, (one, (collector, _)) in enumerate(zip(expected, submitted, strict=True)):
        if i not in cancelled:
            other = collector.wait()
            assert (other.text, other.entries, other.last.reason) == (one.text, one.entries, one.last.reason)
    assert draft.batches and guessing.counters.draft_tokens > guessing.counters.draft_tokens_accepted > 0


# Loading


def open_for(main: Path, draft: Path, **changes: Any) -> ScriptedBackend:
    limits = BackendLimits(n_ctx=128, n_slots=2, max_rows=66, max_outputs=34, n_vocab=300)
    settings = EngineSettings(main, backend="reference", chunk_rows=64)
    with open_gguf(main) as gguf:
        check_draft(draft, gguf)
    return open_draft(settings, draft, replace(limits, **changes), lambda progress: None)  # type: ignore[return-value]


def test_a_draft_model_gets_the_slots_and_at_most_the_context_of_its_model(tmp_path: Path) -> None:
    path = write_tiny_model(RECIPES["llama-untied"], tmp_path / "small.gguf")
    backend = open_for(path, path)
    assert (backend.limits.n_ctx, backend.limits.n_slots) == (128, 2)
    backend.close()


def test_a_draft_model_that_cannot_guess_is_refused_by_reason(tmp_path: Path) -> None:
    recipe = RECIPES["llama-untied"]
    main = write_tiny_model(recipe, tmp_path / "main.gguf")
    metadata = make_metadata(recipe)
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"][:-1], "other"]
    other = tmp_path / "other.gguf"
    write_gguf(other, metadata, {name: (GGMLType.F32, values) for name, values in make_weights(recipe).items()})
    with pytest.raises(UsageError, match=r"other\.gguf has another tokenizer .*--draft"):
        open_for(main, other)
    with pytest.raises(UsageError, match=r"cannot be cut back.*--draft"):
        open_for(main, main, can_cut=False)
    with pytest.raises(UsageError, match="cannot guess for another model"):
        open_for(main, main, n_vocab=301)
