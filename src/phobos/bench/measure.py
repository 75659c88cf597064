"""Measures the runs and prints the table of `phobos-cli bench`."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from phobos import __version__
from phobos.archs import build_program
from phobos.bench.peer import open_peer
from phobos.bench.runs import Run, plan_runs
from phobos.counters import CardInfo, ModelInfo
from phobos.gguf.reader import open_gguf
from phobos.kernels.backend import Backend, Batch
from phobos.kernels.cpu.limits import MachineLimits, measure_limits
from phobos.kernels.cpu.packed_types import PACKED
from phobos.kernels.cpu.read_ahead import describe_choices
from phobos.kernels.placing.opening import open_backend
from phobos.settings import EngineSettings

SEED = 20261129


@dataclass(frozen=True)
class Result:
    """Tokens a second: the median of the repeats, and the least and the most."""

    run: str
    median: float
    low: float
    high: float
    weights_gbs: float
    peer_median: float | None = None

    @property
    def ratio(self) -> float | None:
        """Ours to the peer's."""
        return self.median / self.peer_median if self.peer_median else None


class Subject:
    """Phobos as it is measured: a backend, driven without an engine."""

    def __init__(self, backend: Backend, seed: int) -> None:
        self._backend = backend
        self._random = np.random.default_rng(seed)
        self._held: dict[int, int] = {}  # tokens each slot was filled with

    def fill(self, run: Run) -> None:
        """Put `depth` tokens into each slot of the run; what an earlier run put there stays where it can."""
        for slot in range(run.n_rows):
            held = min(self._held.get(slot, 0), run.depth) if self._backend.limits.can_cut else 0
            for start in range(held, run.depth, 512):
                self._pass(min(512, run.depth - start), start, slot)
            self._held[slot] = run.depth

    def time(self, run: Run) -> float:
        """Seconds of the timed part."""
        self.fill(run)
        started = time.perf_counter()
        if run.n_prompt:
            self._pass(run.n_prompt, run.depth, 0)
        for i in range(run.n_generate):
            self._decode(run.n_rows, run.depth + i)
        return time.perf_counter() - started

    def _tokens(self, n: int) -> np.ndarray:
        return self._random.integers(0, self._backend.limits.n_vocab, n, dtype=np.int32)

    def _pass(self, n: int, position: int, slot: int) -> None:
        positions = np.arange(position, position + n, dtype=np.int32)
        self._backend.run(Batch(self._tokens(n), positions, np.full(n, slot, np.int32), np.array([n - 1], np.int32)))

    def _decode(self, n_rows: int, position: int) -> None:
        rows = np.arange(n_rows, dtype=np.int32)
        self._backend.run(Batch(self._tokens(n_rows), np.full(n_rows, position, np.int32), rows, rows))


def measure(
    time_ours: Callable[[Run], float],
    time_peer: Callable[[Run], float] | None,
    runs: list[Run],
    repeats: int,
    weights_bytes: int,
) -> list[Result]:
    """Each run `repeats` times after one to warm up, ours and the peer's in turn."""
    results = []
    for run in runs:
        ours, peers = [], []
        for repeat in range(repeats + 1):
            ours_s = time_ours(run)
            peer_s = time_peer(run) if time_peer is not None and run.n_rows == 1 else None
            if repeat:
                ours.append(run.n_tokens / ours_s)
                peers += [run.n_tokens / peer_s] if peer_s is not None else []
        median = statistics.median(ours)
        gbs = median / run.n_rows * weights_bytes / 1e9 if run.n_generate else 0.0
        peer = statistics.median(peers) if peers else None
        results.append(Result(run.name, median, min(ours), max(ours), gbs, peer))
    return results


def run(path: Path, values: dict[str, Any]) -> int:
    """The command: measure and print."""
    runs = plan_runs(values["n_prompt"], values["n_gen"], list(values["rows"]), list(values["depth"]))
    n_ctx = max((r.depth + (r.n_prompt or r.n_generate) for r in runs), default=0) + 1
    settings = EngineSettings(
        path,
        n_threads=values["threads"],
        n_ctx=n_ctx,
        n_slots=max((r.n_rows for r in runs), default=1),
        chunk_rows=max(512, values["n_prompt"]),
        cache_type_k=values["cache_type_k"],
        cache_type_v=values["cache_type_v"],
    )
    with open_gguf(path) as gguf:
        backend, info = open_backend(build_program(gguf), gguf, settings, lambda progress: None)
        types = {PACKED[tensor.type].name for tensor in gguf.tensors.values() if tensor.type in PACKED}
    try:
        card = backend.describe()
        limits = measure_limits(card.n_threads)
        with open_peer(values["against"], settings, card.n_threads) as time_peer:
            results = measure(
                Subject(backend, SEED).time, time_peer, runs, values["repetitions"], backend.memory()["weights"]
            )
        limits = limits.or_better(measure_limits(card.n_threads))
    finally:
        backend.close()
    ahead = describe_choices(types, card.n_threads)
    if values["as_json"]:
        print(json.dumps(_as_json(info, card, limits, results, ahead), indent=2))
    else:
        print_table(info, card, limits, results, ahead)
    return 0


def _as_json(
    info: ModelInfo, card: CardInfo, limits: MachineLimits, results: list[Result], ahead: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "phobos": __version__,
        "model": info.name,
        "quantization": info.quantization,
        "processor": card.name,
        "path": card.features,
        "threads": card.n_threads,
        "limits": asdict(limits),
        "reads_ahead": dict(ahead),
        "results": [{**asdict(result), "ratio": result.ratio} for result in results],
    }


def print_table(
    info: ModelInfo, card: CardInfo, limits: MachineLimits, results: list[Result], ahead: Mapping[str, str]
) -> None:
    """A Markdown table, with the machine above it."""
    print(f"{info.name}, {info.quantization}; Phobos {__version__}")
    able = f"reads {limits.read_gbs:.1f} GB/s, multiplies {limits.int8_gops:.0f} Gop/s (int8)"
    print(f"{card.name}, {card.features}, {card.n_threads} threads; {able}")
    if ahead:
        print(f"Weights are asked for ahead (NEAR,FAR bytes): {', '.join(f'{t} {a}' for t, a in ahead.items())}")
    print()
    against = any(result.peer_median for result in results)
    print("| run | tok/s | spread | GB/s | of limit |" + (" llama.cpp | ratio |" if against else ""))
    print("|---|---:|---:|---:|---:|" + ("---:|---:|" if against else ""))
    for r in results:
        gbs, share = (f"{r.weights_gbs:.1f}", f"{r.weights_gbs / limits.read_gbs:.0%}") if r.weights_gbs else ("", "")
        line = f"| {r.run} | {r.median:.1f} | {r.low:.1f}-{r.high:.1f} | {gbs} | {share} |"
        if against:
            line += f" {r.peer_median:.1f} | {r.ratio:.2f} |" if r.peer_median and r.ratio else "  |  |"
        print(line)
    sys.stdout.flush()
