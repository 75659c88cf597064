"""Embedding models: pooled states equal llama.cpp's, and do not depend on what else runs."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from golden import values
from models.gguf_writer import write_gguf
from models.tiny_models import RECIPES, Recipe, embedder, make_metadata, make_tokens, make_weights, write_tiny_model
from phobos.archs import build_program
from phobos.chat.events import Embedded, Event, Failed, Finished, Started
from phobos.chat.messages import EmbedRequest, GenerationRequest, ScoreRequest
from phobos.counters import Counters
from phobos.engine.engine import Engine
from phobos.engine.model import load_model
from phobos.errors import ContextLengthError, RequestError, UnsupportedModelError
from phobos.gguf.quants import GGMLType
from phobos.gguf.reader import open_gguf
from phobos.program.steps import Attention
from phobos.settings import EngineSettings

TEXTS = [tuple(make_tokens(n, seed=n).tolist()) for n in values.EMBEDDED_LENGTHS]


@contextmanager
def running(path: Path, **settings: Any) -> Iterator[Engine]:
    settings = {"n_ctx": 256, "n_slots": 3, "n_threads": 2, **settings}
    engine = Engine(load_model(EngineSettings(path, **settings), lambda progress: None), Counters())
    engine.start()
    try:
        yield engine
    finally:
        engine.close()


def embed(engine: Engine, *texts: tuple[int, ...], **fields: Any) -> list[list[Event]]:
    """The events of texts that are asked for at once."""
    arrived: queue.SimpleQueue[tuple[int, Event]] = queue.SimpleQueue()
    for i, tokens in enumerate(texts):
        engine.read(EmbedRequest(f"r{i}", tokens, **fields), lambda event, i=i: arrived.put((i, event)))
    events: list[list[Event]] = [[] for _ in texts]
    while not all(own and isinstance(own[-1], Finished | Failed) for own in events):
        i, event = arrived.get(timeout=60)
        events[i].append(event)
    return events


def vectors(events: list[list[Event]]) -> list[tuple[float, ...]]:
    return [event.values for own in events for event in own if isinstance(event, Embedded)]


@pytest.fixture(scope="module")
def expected() -> dict[str, np.ndarray]:
    with np.load(values.EMBEDDINGS) as found:
        return dict(found)


@pytest.mark.parametrize("pooling", values.POOLINGS)
def test_pooled_states_are_those_of_llama_cpp(tmp_path: Path, expected: dict[str, np.ndarray], pooling: str) -> None:
    path = write_tiny_model(embedder(pooling), tmp_path / "m.gguf")
    for backend, limit in (("cpu", 1e-3), ("reference", 1e-4)):
        with running(path, backend=backend) as engine:
            found = np.array(vectors(embed(engine, *TEXTS)))
            errors = np.linalg.norm(found - expected[pooling], axis=1) / np.linalg.norm(expected[pooling], axis=1)
            assert errors.max() < limit, (backend, errors)
            assert engine.model.prepare_text(values.EMBEDDED_TEXT) == tuple(expected["tokens"])


@pytest.mark.parametrize("pooling", values.POOLINGS)
def test_the_bits_do_not_depend_on_what_else_runs(tmp_path: Path, pooling: str) -> None:
    path = write_tiny_model(embedder(pooling), tmp_path / "m.gguf")
    longer = (*TEXTS[2], 5, 6, 7)
    texts = [*TEXTS, longer, *(tuple(make_tokens(n, seed=50 + n).tolist()) for n in (3, 30, 200))]
    with running(path) as engine:
        alone = [vectors(embed(engine, tokens, cache_prompt=False))[0] for tokens in texts]
        together = embed(engine, *texts)
        assert vectors(together) == alone
        again = embed(engine, longer)
        assert vectors(again) == [alone[3]]
        started = again[0][0]
        assert isinstance(started, Started) and started.n_cached == (len(longer) - 1 if pooling == "last" else 0)
    with running(path, chunk_rows=5, n_threads=1) as engine:
        assert vectors(embed(engine, *texts)) == alone


def test_a_text_may_fill_the_context_and_no_more(tmp_path: Path) -> None:
    path = write_tiny_model(embedder("mean"), tmp_path / "m.gguf")
    with running(path, n_ctx=64) as engine:
        full = tuple(make_tokens(64).tolist())
        assert len(vectors(embed(engine, full, full))) == 2
        with pytest.raises(ContextLengthError):
            embed(engine, (*full, 1))
        with pytest.raises(ContextLengthError) as caught:
            engine.model.prepare_text((*full, 1))
        assert caught.value.param == "input"
        for wrong in ("", (), (5, 300), (-1,)):
            with pytest.raises(RequestError) as refused:
                engine.model.prepare_text(wrong)
            assert refused.value.param == "input"
        assert engine.counters.requests_failed == 0


def test_each_trade_refuses_the_other(tmp_path: Path) -> None:
    with running(write_tiny_model(embedder("last"), tmp_path / "m.gguf")) as engine:
        assert engine.model.embeds
        with pytest.raises(RequestError, match="is an embedding model and cannot generate text") as caught:
            engine.model.prepare(GenerationRequest("r", prompt="a"))
        assert caught.value.code == "unsupported_endpoint"
        with pytest.raises(RequestError, match="is an embedding model and cannot generate text"):
            engine.read(ScoreRequest("r", (1, 2), ((1, (3,)),)), lambda event: None)
    with running(write_tiny_model(RECIPES["qwen2"], tmp_path / "m.gguf")) as engine:
        assert not engine.model.embeds
        with pytest.raises(RequestError, match="is not an embedding model") as caught:
            embed(engine, (1, 2))
        assert caught.value.code == "unsupported_endpoint"


def build(folder: Path, recipe: Recipe, **metadata: Any) -> Any:
    weights = {name: (GGMLType.F32, array) for name, array in make_weights(recipe).items()}
    with open_gguf(write_gguf(folder / "m.gguf", {**make_metadata(recipe), **metadata}, weights)) as gguf:
        return build_program(gguf)


def test_the_program_ends_at_the_states(tmp_path: Path) -> None:
    whole = build(tmp_path, RECIPES["llama-untied"])
    cut = build(tmp_path, RECIPES["llama-untied"], **{"llama.pooling_type": 3})
    assert whole.pooling is None and cut.pooling == "last"
    assert cut.logits is not None and cut.logits.width == 256 and cut.logits.per_output and cut.n_vocab == whole.n_vocab
    assert set(whole.weights()) - set(cut.weights()) == {"output.weight"}
    assert sum(isinstance(op, Attention) for op in cut.ops) == 2
    assert {buffer.name for buffer in whole.buffers} - {buffer.name for buffer in cut.buffers} == {"logits"}
    assert build(tmp_path, RECIPES["llama"], **{"llama.pooling_type": 0}).pooling is None


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("pooling_type", 4, "ranks pairs of texts"),
        ("pooling_type", 9, r"pooling_type is 9: Phobos knows 1 \(mean\)"),
        ("attention.causal", False, "tokens see only those before them"),
    ],
)
def test_what_cannot_be_embedded_is_refused(tmp_path: Path, key: str, value: Any, message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        build(tmp_path, replace(RECIPES["llama"], keys={key: value}))
