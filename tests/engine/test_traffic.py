"""Real models under mixed traffic, guessing ahead: every answer is that of a solo cold run without guesses.

Random lengths, joins, cancels and reuse; greedy and drawn, with penalties, biases, stop strings, log-probabilities and
output formats; prompts that make the answer repeat them, so that guesses are right and wrong.
"""

from __future__ import annotations

import functools
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from doubles.scripted_backend import Collector
from phobos.chat.messages import GenerationRequest, Message, OutputFormat, SamplingParams
from phobos.counters import Counters
from phobos.engine.engine import Engine
from phobos.engine.model import load_model
from phobos.settings import EngineSettings
from traffic import content, run_clients

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]
SMOL, GEMMA, QWEN = (
    "SmolLM2-135M-Instruct-Q4_1.gguf",
    "gemma-3-270m-Q4_K_M.gguf",
    "qwen2.5-coder-0.5b-instruct-Q4_K_M.gguf",
)
LARGER_QWEN = "qwen2.5-coder-1.5b-instruct-Q4_K_M.gguf"
FRUIT = ("apple", "pear", "plum", "fig", "lime", "date", "kiwi")
LIST = "".join(f"item {i}: the {fruit} is number {i}\n" for i, fruit in enumerate(FRUIT))
TEXTS = (
    f"Repeat this list word by word:\n{LIST}",
    f"{LIST}{LIST}",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):\n",
    "Name three rivers and say where they end.",
    "Once upon a time there was a lighthouse keeper who",
    "Write a haiku about rain. Then write it again.",
)
SCHEMA = {
    "type": "object",
    "properties": {"first_name": {"type": "string", "maxLength": 12}, "favourite_colours": {"enum": ["red", "blue"]}},
    "required": ["first_name", "favourite_colours"],
}


def make_requests(rng: random.Random, n: int, *, chat: bool) -> list[GenerationRequest]:
    requests: list[GenerationRequest] = []
    for i in range(n):
        text = rng.choice(TEXTS) + rng.choice(["", " Please.", " Be brief."])
        if requests and rng.random() < 0.2:  # a conversation that goes on
            text = str(rng.choice(requests).prompt or text) + " And then"
        sampling = SamplingParams(
            temperature=rng.choice([0.0, 0.0, 0.7, 1.1]),
            repetition_penalty=rng.choice([1.0, 1.0, 1.1]),
            frequency_penalty=rng.choice([0.0, 0.0, 0.3]),
            seed=rng.randint(0, 2**32 - 1),
            logit_bias=rng.choice([{}, {}, {11: 2.0}]),
        )
        is_chat = chat and rng.random() < 0.7
        fields: dict[str, Any] = {"messages": (Message("user", text),)} if is_chat else {"prompt": text}
        if is_chat and rng.random() < 0.2:
            fields["output"] = OutputFormat("json_schema", SCHEMA)
        requests.append(
            GenerationRequest(
                f"r{i}",
                sampling=sampling,
                max_tokens=rng.randint(1, 40),
                stop=tuple(rng.sample(["item 4", ".", "return", "\n\n"], rng.randint(0, 1))),
                top_logprobs=rng.choice([None, None, 2]),
                cache_prompt=rng.random() < 0.9,
                n=2,
                **fields,
            )
        )
    return requests


def submit(engine: Engine, request: GenerationRequest) -> tuple[Collector, Any]:
    collector = Collector()
    choice = int(request.request_id[1:]) % 2
    return collector, engine.submit(engine.model.prepare(request), collector, choice=choice)


def find_model(name: str) -> Path:
    path = Path(os.environ.get("PHOBOS_TEST_MODELS", Path(__file__).parents[2] / "models")) / name
    if not path.exists():
        pytest.skip(f"no {name} in models/: fetch it, or set PHOBOS_TEST_MODELS")
    return path


@pytest.mark.parametrize(
    ("name", "draft", "n_requests"),
    [
        (SMOL, None, 10),
        pytest.param(SMOL, None, 64, marks=pytest.mark.slow),
        pytest.param(GEMMA, None, 64, marks=pytest.mark.slow),
        pytest.param(QWEN, None, 64, marks=pytest.mark.slow),
        pytest.param(LARGER_QWEN, QWEN, 24, marks=pytest.mark.slow),
    ],
)
def test_mixed_requests_equal_their_solo_cold_runs(name: str, draft: str | None, n_requests: int) -> None:
    rng = random.Random(n_requests)
    settings = EngineSettings(
        find_model(name), n_ctx=768, n_slots=4, chunk_rows=48, draft_path=None if draft is None else find_model(draft)
    )
    model = load_model(settings, lambda progress: None)
    requests = make_requests(rng, n_requests, chat=model.template is not None)
    plain = Engine(replace(model, draft=None, settings=replace(settings, lookup=False)), Counters())
    busy = Engine(model, Counters())  # begins when the other has nothing more to do
    try:
        plain.start()
        expected = {}
        for request in requests:
            collector, _ = submit(plain, replace(request, cache_prompt=False))
            collector.wait(120)
            expected[request.request_id] = content(collector)
        assert plain.counters.draft_tokens == 0
        busy.start()
        finished = run_clients(functools.partial(submit, busy), requests, expected, timeout_s=120)
    finally:
        busy.close()
        plain.close()
    assert finished == {key: expected[key] for key in finished}
    assert len(finished) >= n_requests // 2
    counters = busy.counters
    assert counters.prompt_tokens_reused > 0
    assert counters.draft_tokens >= counters.draft_tokens_accepted > 0
