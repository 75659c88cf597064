"""The golden values: where they lie, what they are of, and how to ask the referee for them.

`tiny.npz` holds the referee's logits [position, token] of each tiny model (`tiny_models.py`), `families.npz` those of
each family (`make_families.py`), `embeddings.npz` its pooled states, `models.json` its tokens, logits and greedy texts
of the real models, `accuracy.json` the distances that `accuracy.py` measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent
CHECKOUT = FOLDER.parents[1]
TINY, MODELS, ACCURACY = FOLDER / "tiny.npz", FOLDER / "models.json", FOLDER / "accuracy.json"
FAMILIES = FOLDER / "families.npz"
EMBEDDINGS = FOLDER / "embeddings.npz"
TEXT = FOLDER / "text.txt"

#: The tiny models run this many random tokens; logits are kept at these positions: within windows and beyond them.
N_TINY_TOKENS = 300
TINY_POSITIONS = (0, 1, 30, 100, 200, 299)

#: The same of the families of `family_models.py`, and greedy tokens after the last.
N_FAMILY_TOKENS = 160
FAMILY_POSITIONS = (0, 1, 30, 99, 159)
N_FAMILY_GREEDY = 12

#: Pooled states are kept of random texts of these lengths, by llama.cpp's number of a pooling; and tokens of a text.
EMBEDDED_LENGTHS = (1, 7, 90)
POOLINGS = {"mean": 1, "cls": 2, "last": 3}
EMBEDDED_TEXT = "the rest of the tone"

MODEL_FILES = (
    "SmolLM2-135M-Instruct-Q4_1.gguf",
    "gemma-3-270m-Q4_K_M.gguf",
    "qwen2.5-coder-0.5b-instruct-Q4_K_M.gguf",
    "qwen2.5-coder-1.5b-instruct-Q4_K_M.gguf",
)
PROMPTS = (
    "The capital of France is Paris, and the capital of Germany is",
    "def add(a, b):\n    return a + b\n\ndef multiply(a, b):\n    return",
    "One, two, three, four, five, six,",
)
N_TOP = 20
N_GREEDY = 32


def model_folders() -> tuple[Path, ...]:
    """Where the real model files may lie: the folder `PHOBOS_TEST_MODELS` names, then `models/`."""
    named = os.environ.get("PHOBOS_TEST_MODELS")
    return (*([Path(named)] if named else []), CHECKOUT / "models")


def find_model(name: str) -> Path | None:
    """The path of a real model file, or None where it is not here."""
    return next((folder / name for folder in model_folders() if (folder / name).exists()), None)


def referee_python() -> str:
    """The interpreter that has `llama_cpp`: `PHOBOS_REFEREE_PYTHON`, else the one `make referee` makes."""
    return os.environ.get("PHOBOS_REFEREE_PYTHON") or str(CHECKOUT / ".venv" / "referee" / "bin" / "python")


def ask_referee(model: Path, **job: Any) -> dict[str, np.ndarray]:
    """Run one job of `referee.py` in its own process."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "answer.npz"
        request = json.dumps({"model": str(model), "out": str(out), **job})
        done = subprocess.run(
            [referee_python(), str(FOLDER / "referee.py")],
            input=request, text=True, capture_output=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"the referee failed on {model.name}: {done.stderr[-2000:]}")
        with np.load(out) as answer:
            return dict(answer)


@dataclass(frozen=True)
class Distance:
    """How far next-token distributions are from the reference's: mean and largest KL divergence in nats, and the
    share of positions with the same best token."""

    mean_kl: float
    max_kl: float
    top1: float


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities along the last axis, float64."""
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def measure_distance(reference: np.ndarray, other: np.ndarray) -> Distance:
    """Distance of `other` [n, n_vocab] from `reference`, row by row so that large vocabularies fit."""
    kl = np.empty(len(reference))
    for i, (right, tested) in enumerate(zip(reference, other, strict=True)):
        p, q = log_softmax(right), log_softmax(tested)
        kl[i] = np.sum(np.exp(p) * (p - q))
    return Distance(
        float(kl.mean()), float(kl.max()), float(np.mean(reference.argmax(axis=-1) == other.argmax(axis=-1)))
    )
