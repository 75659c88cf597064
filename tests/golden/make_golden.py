"""Write the golden values with llama.cpp as the referee; `make referee` runs this, then `accuracy.py --write`.

Real models that are not here keep the values they have.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from golden import values
from models.tiny_models import RECIPES, embedder, make_tokens, write_tiny_model


def make_tiny_values() -> None:
    """Logits of every tiny model."""
    tokens = make_tokens(values.N_TINY_TOKENS)
    logits = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, recipe in RECIPES.items():
            path = write_tiny_model(recipe, Path(folder) / f"{name}.gguf")
            answer = values.ask_referee(path, tokens=tokens.tolist(), positions=values.TINY_POSITIONS, exact=True)
            logits[name] = answer["logits"]
            print(f"{name}: {logits[name].shape}", flush=True)
    np.savez_compressed(values.TINY, **logits)


def make_embeddings() -> None:
    """Pooled states of a tiny embedding model of each kind, and how a text becomes its tokens."""
    made = {}
    texts = [make_tokens(n, seed=n).tolist() for n in values.EMBEDDED_LENGTHS]
    with tempfile.TemporaryDirectory() as folder:
        for name, number in values.POOLINGS.items():
            path = write_tiny_model(embedder(name), Path(folder) / f"{name}.gguf")
            answer = values.ask_referee(path, embed=texts, pooling=number, exact=True, texts=[values.EMBEDDED_TEXT])
            made[name], made["tokens"] = answer["embeddings"], answer["tokens_0"]
    np.savez_compressed(values.EMBEDDINGS, **made)


def make_model_values(path: Path) -> list[dict[str, Any]]:
    """Tokens, best logits and greedy continuation of each prompt."""
    answer = values.ask_referee(path, texts=values.PROMPTS)
    made = []
    for i, prompt in enumerate(values.PROMPTS):
        tokens = answer[f"tokens_{i}"].tolist()
        run = values.ask_referee(path, tokens=tokens, positions=[len(tokens) - 1], n_greedy=values.N_GREEDY)
        best = np.argsort(run["logits"][0])[::-1][: values.N_TOP]
        made.append(
            {
                "prompt": prompt,
                "tokens": tokens,
                "top": [[int(token), round(float(run["logits"][0][token]), 4)] for token in best],
                "greedy": run["greedy"].tolist(),
                "margins": [round(float(margin), 4) for margin in run["margins"]],
            }
        )
    return made


def main() -> None:
    """All values."""
    make_tiny_values()
    make_embeddings()
    kept = json.loads(values.MODELS.read_text()) if values.MODELS.exists() else {}
    for name in values.MODEL_FILES:
        path = values.find_model(name)
        if path is None:
            print(f"{name} is not here: its values stay as they are", flush=True)
            continue
        kept[name] = make_model_values(path)
        print(name, flush=True)
    lines = json.dumps(kept, indent=1)
    values.MODELS.write_text(lines + "\n")


if __name__ == "__main__":
    main()
