"""The engine on a tiny recurrent model with real kernels: whatever runs beside a request, and from whichever state it
goes on, its answer is that of a solo cold run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from doubles.scripted_backend import Collector, ScriptedTokenizer, make_model
from models.family_models import FAMILIES, write_family_model
from models.tiny_models import N_VOCAB
from phobos.archs import build_program
from phobos.chat.messages import GenerationRequest, SamplingParams
from phobos.counters import Counters
from phobos.engine.engine import Engine
from phobos.gguf.reader import open_gguf
from phobos.kernels.backend import BackendLimits
from phobos.kernels.cpu.backend import CpuBackend

PIECES = [chr(0x4E00 + i) for i in range(N_VOCAB - 2)]
N_CTX = 200


class Desk:
    """An engine on a model file."""

    def __init__(self, path: Path, n_slots: int, chunk_rows: int, *, prefix_cache: bool) -> None:
        with open_gguf(path) as gguf:
            program = build_program(gguf)
            limits = BackendLimits(N_CTX, n_slots, 64, n_slots + 4, program.n_vocab)
            backend = CpuBackend(program, gguf, limits, 2, lambda progress: None)
        self.counters = Counters()
        self.model = make_model(
            ScriptedTokenizer(PIECES),
            backend,  # type: ignore[arg-type]
            chunk_rows=chunk_rows,
            prefix_cache=prefix_cache,
        )
        self.engine = Engine(self.model, self.counters)
        self.engine.start()

    def submit(self, request: GenerationRequest) -> Collector:
        collector = Collector()
        self.engine.submit(self.model.prepare(request), collector)
        return collector


@pytest.fixture
def open_desk() -> Iterator[Callable[..., Desk]]:
    desks: list[Desk] = []

    def open_one(*arguments: object, **options: object) -> Desk:
        desks.append(Desk(*arguments, **options))  # type: ignore[arg-type]
        return desks[-1]

    yield open_one
    for desk in desks:
        desk.engine.close()


def make_requests(rng: random.Random) -> list[GenerationRequest]:
    """Conversations that go on, shared beginnings, the same prompt again."""
    text = lambda n: "".join(rng.choices(PIECES, k=n))  # noqa: E731
    system, prompts = text(40), [text(30)]
    for _ in range(13):
        kind = rng.random()
        base = rng.choice(prompts)
        prompts.append(base if kind < 0.2 else base[:120] + text(9) if kind < 0.7 else system + text(20))
    sampling = SamplingParams(temperature=1.0, seed=3)
    return [
        GenerationRequest(f"r{i}", prompt=prompt, sampling=sampling, max_tokens=rng.randint(1, 20))
        for i, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize(
    "name", ["qwen35", *(pytest.param(n, marks=pytest.mark.slow) for n in ("granitehybrid", "mamba2"))]
)
def test_traffic_on_a_recurrent_model_equals_solo_cold_runs(
    tmp_path: Path, open_desk: Callable[..., Desk], name: str
) -> None:
    path = write_family_model(FAMILIES[name], tmp_path / "m.gguf", FAMILIES[name].mixed)
    requests = make_requests(random.Random(1))
    solo = open_desk(path, 1, 64, prefix_cache=False)
    expected = [solo.submit(request).wait().text for request in requests]
    assert len(set(expected)) > 5
    busy = open_desk(path, 3, 11, prefix_cache=True)
    together = [busy.submit(request) for request in requests]
    assert [collector.wait().text for collector in together] == expected
    again = [busy.submit(request).wait() for request in requests]
    assert [reply.text for reply in again] == expected
    assert busy.counters.prompt_tokens_reused > 200
    first = requests[0]
    follow_up = GenerationRequest("more", prompt=str(first.prompt) + expected[0] + PIECES[7], max_tokens=3)
    assert busy.submit(first).wait().text == expected[0]
    assert busy.submit(follow_up).wait().started.n_cached >= 30, "a conversation goes on where it stands"
