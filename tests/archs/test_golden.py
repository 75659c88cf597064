"""Logits, tokens and greedy texts against llama.cpp's (`tests/golden`), and the accuracy of the real models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from golden import accuracy, values
from models.tiny_models import RECIPES, make_tokens, write_tiny_model
from one_op import make_batch
from phobos.archs import build_program
from phobos.gguf.reader import open_gguf
from phobos.gguf.tokenizer import load_tokenizer
from phobos.kernels.backend import Backend, BackendLimits
from phobos.kernels.cpu.backend import CpuBackend
from phobos.kernels.reference.backend import ReferenceBackend

# The referee computes GELU through a table of halves, which costs gemma3 its last digits.
REFERENCE_TOLERANCE = {"llama": 1e-4, "qwen2": 1e-4, "gemma3": 5e-4}
CPU_TOLERANCE = 1e-3  # the cache holds halves
CLEAR_MARGIN = 0.7  # a lead of the best logit that quantized activations do not overturn


@contextmanager
def opened(path: Path, kind: str, n_rows: int, max_outputs: int) -> Iterator[Backend]:
    with open_gguf(path) as gguf:
        program = build_program(gguf)
        limits = BackendLimits(n_rows, 1, n_rows, max_outputs, program.n_vocab)
        backend: Backend
        if kind == "reference":
            backend = ReferenceBackend(program, gguf, limits, lambda progress: None)
        else:
            backend = CpuBackend(program, gguf, limits, 2, lambda progress: None)
        try:
            yield backend
        finally:
            backend.close()


@pytest.fixture(scope="module")
def tiny_values() -> dict[str, np.ndarray]:
    with np.load(values.TINY) as found:
        return dict(found)


@pytest.mark.parametrize("kind", ["reference", "cpu"])
@pytest.mark.parametrize("name", RECIPES)
def test_tiny_models(tmp_path: Path, tiny_values: dict[str, np.ndarray], name: str, kind: str) -> None:
    """Float32 weights: every rope scaling, window, bias and norm as llama.cpp has them."""
    path = write_tiny_model(RECIPES[name], tmp_path / "tiny.gguf")
    n = values.N_TINY_TOKENS
    with opened(path, kind, n, n) as backend:
        got = backend.run(make_batch(make_tokens(n)))[list(values.TINY_POSITIONS)]
    want = tiny_values[name]
    errors = np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)
    limit = CPU_TOLERANCE if kind == "cpu" else REFERENCE_TOLERANCE[RECIPES[name].architecture]
    assert errors.max() < limit, dict(zip(values.TINY_POSITIONS, errors.tolist(), strict=True))


def real_model(name: str) -> Path:
    found = values.find_model(name)
    if found is None:
        pytest.skip(f"{name} is not here: run `make test-models` or set PHOBOS_TEST_MODELS to the folder that has it")
    return found


REAL = [
    pytest.param(name, marks=[pytest.mark.model, *([pytest.mark.slow] if i > 1 else [])], id=name.partition("-Q4")[0])
    for i, name in enumerate(values.MODEL_FILES)
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", REAL)
def test_real_models(name: str) -> None:
    """Tokens are equal; the referee's best tokens have nearly its probabilities; its greedy text, fed back, is what
    Phobos would say wherever the referee was not in doubt."""
    rows: list[dict[str, Any]] = json.loads(values.MODELS.read_text())[name]
    path = real_model(name)
    with open_gguf(path) as gguf:
        tokenizer = load_tokenizer(gguf)
    n_rows = max(len(row["tokens"]) for row in rows) + values.N_GREEDY
    with opened(path, "cpu", n_rows, values.N_GREEDY) as backend:
        for row in rows:
            assert tokenizer.encode(row["prompt"], bos=True) == row["tokens"]
            tokens = row["tokens"] + row["greedy"][:-1]
            batch = make_batch(tokens)
            wanted = np.arange(len(row["tokens"]) - 1, len(tokens), dtype=np.int32)
            logits = backend.run(type(batch)(batch.tokens, batch.positions, batch.slots, wanted)).copy()
            ids, theirs = np.array([t for t, _ in row["top"]]), np.array([x for _, x in row["top"]])
            mine = logits[0][ids] - logits[0][ids].mean()
            assert np.abs(mine - (theirs - theirs.mean())).mean() < 0.25
            clear = np.array(row["margins"]) > CLEAR_MARGIN
            assert clear.sum() > values.N_GREEDY // 3
            assert np.array_equal(logits.argmax(axis=1)[clear], np.array(row["greedy"])[clear])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", REAL)
def test_accuracy(name: str) -> None:
    """No further from the float32 reference than llama.cpp is, on the text and figures of `accuracy.py`."""
    path = real_model(name)
    theirs = json.loads(values.ACCURACY.read_text())[name]["llama.cpp"]
    mine = accuracy.measure(path, accuracy.N_TOKENS, with_referee=False)["phobos"]
    assert mine.mean_kl <= theirs["mean_kl"] * 1.01  # the reference's own rounding differs from machine to machine
    assert mine.top1 >= theirs["top1"]


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL[:1])
def test_codes_in_the_cache_cost_little(name: str) -> None:
    found = accuracy.measure_caches(real_model(name), accuracy.N_TOKENS)
    assert found["q8_0"].mean_kl < found["f16"].mean_kl + 0.001
