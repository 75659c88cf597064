"""How far Phobos and llama.cpp each are from the float32 reference, on the same file and text.

    PYTHONPATH=tests python -m golden.accuracy [--write] [--no-referee] [--caches] [MODEL.gguf ...]

For each model: the mean KL divergence of the next-token distributions from the reference's over the first 512 tokens
of `text.txt`, and the share of positions where the most likely token is the same. `--write` keeps the figures in
`accuracy.json`, which the ordinary tests hold Phobos to; `--no-referee` takes llama.cpp's from there. Without a MODEL,
every real model that is here is measured. `--caches` tells Phobos' figures with each format of the cache instead.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

from golden import values
from phobos.archs import build_program
from phobos.gguf.reader import open_gguf
from phobos.gguf.tokenizer import load_tokenizer
from phobos.kernels.backend import Backend, BackendLimits, Batch
from phobos.kernels.cpu.backend import CpuBackend
from phobos.kernels.reference.backend import ReferenceBackend

N_TOKENS = 512
CACHES = ("f16", "q8_0")


def read_tokens(path: Path, n_tokens: int) -> np.ndarray:
    """The first tokens of the text, BOS included where the file wants one."""
    with open_gguf(path) as gguf:
        tokens = load_tokenizer(gguf).encode(values.TEXT.read_text(), bos=True)
    assert len(tokens) >= n_tokens, f"the text has only {len(tokens)} tokens"
    return np.array(tokens[:n_tokens], np.int32)


def run_all(backend: Backend, tokens: np.ndarray) -> np.ndarray:
    """Logits [n, n_vocab] after each token, in one pass from an empty slot."""
    n = len(tokens)
    rows = np.arange(n, dtype=np.int32)
    return backend.run(Batch(tokens, rows, np.zeros(n, np.int32), rows)).copy()


def run_backend(path: Path, tokens: np.ndarray, kind: str, cache: str = "f16") -> np.ndarray:
    """Logits of Phobos' `cpu` or `reference` backend; `cache` is the format of the former's keys and values."""
    n = len(tokens)
    with open_gguf(path) as gguf:
        program = build_program(gguf)
        limits = BackendLimits(
            n_ctx=n, n_slots=1, max_rows=n, max_outputs=n, n_vocab=program.n_vocab, cache_k=cache, cache_v=cache
        )
        backend: Backend
        if kind == "reference":
            backend = ReferenceBackend(program, gguf, limits, lambda progress: None)
        else:
            backend = CpuBackend(program, gguf, limits, None, lambda progress: None)
        try:
            return run_all(backend, tokens)
        finally:
            backend.close()


def measure(path: Path, n_tokens: int, with_referee: bool) -> dict[str, values.Distance]:
    """Distances from the reference of "phobos" and, where asked, of "llama.cpp"."""
    tokens = read_tokens(path, n_tokens)
    reference = run_backend(path, tokens, "reference")
    measured = {"phobos": values.measure_distance(reference, run_backend(path, tokens, "cpu"))}
    if with_referee:
        answer = values.ask_referee(path, tokens=tokens.tolist(), positions=list(range(n_tokens)))
        measured["llama.cpp"] = values.measure_distance(reference, answer["logits"])
    return measured


def measure_caches(path: Path, n_tokens: int) -> dict[str, values.Distance]:
    """Distances of Phobos from the reference, by the format of its cache."""
    tokens = read_tokens(path, n_tokens)
    reference = run_backend(path, tokens, "reference")
    return {cache: values.measure_distance(reference, run_backend(path, tokens, "cpu", cache)) for cache in CACHES}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL.gguf")
    parser.add_argument("--write", action="store_true", help="keep the figures in accuracy.json")
    parser.add_argument("--no-referee", action="store_true", help="take llama.cpp's figures from accuracy.json")
    parser.add_argument("--caches", action="store_true", help="compare the formats of the cache; nothing is kept")
    parser.add_argument("--tokens", type=int, default=N_TOKENS, help="how many tokens of the text")
    given = parser.parse_args()
    kept = json.loads(values.ACCURACY.read_text()) if values.ACCURACY.exists() else {}
    paths = given.models or [path for name in values.MODEL_FILES if (path := values.find_model(name))]
    print(f"{'model':42}{'':10}{'mean KL':>10}{'max KL':>10}{'top-1':>8}")
    for path in paths:
        started = time.perf_counter()
        if given.caches:
            rows = {who: asdict(d) for who, d in measure_caches(path, given.tokens).items()}
        else:
            measured = measure(path, given.tokens, not given.no_referee)
            rows = kept.get(path.name, {}) | {who: asdict(d) for who, d in measured.items()}
        for i, (who, row) in enumerate(rows.items()):
            name = path.stem if i == 0 else ""
            print(f"{name:42}{who:10}{row['mean_kl']:10.5f}{row['max_kl']:10.4f}{row['top1']:8.2%}")
        print(f"{'':42}{time.perf_counter() - started:.0f} s", flush=True)
        if given.write and not given.caches:
            kept[path.name] = {who: {key: round(x, 6) for key, x in row.items()} for who, row in rows.items()}
            values.ACCURACY.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
