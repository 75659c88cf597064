"""A server killed while it saves: the next one has the last whole state or starts clean, and is never wrong."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from doubles.saving_server import ask, make_prompts, open_engine
from models.tiny_models import PACKED_TYPES, RECIPES, write_tiny_model

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(RECIPES["llama"], tmp_path_factory.mktemp("kills") / "tiny.gguf", PACKED_TYPES)


@pytest.fixture(scope="module")
def cold(model: Path) -> list[str]:
    """The answers of an engine that reuses nothing."""
    engine = open_engine(model, None, prefix_cache=False)
    answers = [ask(engine, prompt) for prompt in make_prompts(engine.model.tokenizer.n_vocab)]
    engine.close()
    assert all(n_cached == 0 for _, n_cached in answers)
    return [text for text, _ in answers]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(5))
def test_kills_while_saving(model: Path, cold: list[str], tmp_path: Path, seed: int) -> None:
    """Ten kills, each at a random moment of what the one before left behind."""
    rng = random.Random(seed)
    n_cut = n_kept = n_named = 0
    for i in range(10):
        child = subprocess.Popen(
            [sys.executable, "-m", "doubles.saving_server", str(model), str(tmp_path), str(rng.random())[2:8]],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(TESTS)])},
        )
        assert child.stdout is not None
        try:
            told = json.loads(child.stdout.readline())
            assert child.stdout.readline() == "saving\n"
            time.sleep(rng.uniform(0, 0.5))
        finally:
            child.kill()
            child.wait()
            child.stdout.close()
        assert [text for text, _ in told["answers"]] == cold
        lengths = {len(prompt) + 7 for prompt in make_prompts(300)}  # all but the last token chosen
        assert told["n_named"] in lengths or "no saved slot" in str(told["n_named"])
        if i:
            n_cut += told["n_part"]
            n_kept += told["n_files"] > 0
            n_named += isinstance(told["n_named"], int)
    print(f"seed {seed}: of 9 restarts {n_kept} found kept files, {n_named} the named one, {n_cut} writes were cut off")
    assert n_kept >= 7, "what was whole came back"
