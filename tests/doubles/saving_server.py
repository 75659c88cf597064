"""An engine that asks, tells and saves without end, to be killed: `saving_server.py MODEL FOLDER SEED`.

It first asks every prompt and tells the answers, having filled a slot from the named file if there is one; then it
saves: by name, one after the other, and what it keeps on its own.
"""

from __future__ import annotations

import json
import logging
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

from doubles.scripted_backend import Collector
from phobos.chat.messages import GenerationRequest, SamplingParams
from phobos.counters import Counters
from phobos.engine.engine import Engine
from phobos.engine.slots import residency
from phobos.errors import RequestError
from phobos.runtime import start_engine
from phobos.settings import EngineSettings

NAMED = "named.slot"


def make_prompts(n_vocab: int) -> list[tuple[int, ...]]:
    """Conversations of many lengths; the later ones go on with the earlier ones."""
    rng = np.random.default_rng(11)
    first = [tuple(rng.integers(3, n_vocab, n).tolist()) for n in (40, 150, 400, 900)]
    return [*first, *(prompt + tuple(rng.integers(3, n_vocab, 60).tolist()) for prompt in first)]


def ask(engine: Engine, prompt: tuple[int, ...], **fields: Any) -> tuple[str, int]:
    """The answer, and how many tokens of the prompt were reused."""
    request = GenerationRequest("r", prompt=prompt, sampling=SamplingParams(temperature=0.0), max_tokens=8, **fields)
    collector = Collector()
    engine.submit(engine.model.prepare(request), collector)
    reply = collector.wait(60)
    return reply.text, reply.last.usage.n_cached


def open_engine(model: Path, folder: Path | None, **settings: Any) -> Engine:
    return start_engine(
        EngineSettings(model, n_ctx=1200, n_slots=2, n_threads=1, slot_save_path=folder, **settings),
        Counters(),
        lambda progress: None,
    )


def main() -> None:
    model, folder, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    logging.basicConfig(level=logging.WARNING)
    residency.SETTLE_S = 0.0
    n_part = len(list(folder.rglob("*.part")))
    engine = open_engine(model, folder, archive_bytes=4 << 20)
    prompts = make_prompts(engine.model.tokenizer.n_vocab)
    told: dict[str, Any] = {"n_part": n_part, "n_files": engine.counters.snapshot().cache.n_files}  # type: ignore[union-attr]
    try:
        told["n_named"] = engine.slot_actions.restore(1, NAMED).n_tokens
    except RequestError as error:
        told["n_named"] = str(error)
    told["answers"] = [ask(engine, prompt) for prompt in prompts]
    print(json.dumps(told), flush=True)
    rng = random.Random(seed)
    print("saving", flush=True)
    while True:
        slot = rng.randrange(2)
        ask(engine, rng.choice(prompts), cache_slot=slot)
        engine.slot_actions.save(slot, NAMED)


if __name__ == "__main__":
    main()
