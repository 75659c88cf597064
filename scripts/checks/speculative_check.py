"""Measures what guessing ahead does to decode speed: the same requests with and without it, in turn, on one model.

    python scripts/checks/speculative_check.py MODEL [--draft MODEL] [--task edit|code|prose] [--tokens N] [--repeats N]

`edit` repeats a file of 300 lines with one change, `code` writes code, `prose` tells stories drawn at a high
temperature, where hardly anything comes twice. Prints tokens a second of both and whether their texts are equal; and
for machines that others use too, what both take when each pass takes as long as the median of its size did.
"""

from __future__ import annotations

import argparse
import random
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from phobos.chat.events import Event, Failed, Finished, TextDelta
from phobos.chat.messages import GenerationRequest, Message, SamplingParams
from phobos.counters import Counters
from phobos.engine.engine import Engine
from phobos.engine.model import load_model
from phobos.kernels.backend import Backend, Batch, FloatArray
from phobos.settings import EngineSettings

NAMES = ("alpha", "beta", "gamma", "delta", "queue", "frame", "token", "slot", "batch", "header", "cursor", "window")


def make_file(rng: random.Random) -> str:
    """300 lines of made-up code."""
    lines = []
    for i in range(75):
        a, b, c = rng.sample(NAMES, 3)
        lines += [
            f"def {a}_{b}_{i}({c}, n):",
            f"    if {c} > {rng.randint(2, 99)}:",
            f"        return {a}({c}) + {rng.randint(2, 999)}",
            f"    return n * {rng.randint(2, 99)}",
        ]
    return "\n".join(lines)


def make_prompts(task: str, n: int) -> tuple[list[str], SamplingParams]:
    """The prompts of a task and how answers to them are drawn."""
    greedy = SamplingParams(temperature=0.0)
    if task == "edit":
        file = make_file(random.Random(1))
        wish = "Repeat this file exactly as it is, with one change: the first function shall return 7 at its end."
        return [f"{wish}\n\n```python\n{file}\n```"] * n, greedy
    if task == "code":
        wishes = (
            "Write a Python class for an LRU cache with get, put, delete and iteration, with docstrings and tests.",
            "Write a C program that reads a CSV file and prints the mean of each column.",
            "Write a JavaScript module that parses command line arguments, with comments.",
        )
        return [wishes[i % len(wishes)] for i in range(n)], greedy
    drawn = SamplingParams(temperature=1.4, top_k=0, top_p=1.0, min_p=0.02, seed=5)
    return [f"Tell a strange story about {NAMES[i % len(NAMES)]} and {NAMES[-i - 1]}." for i in range(n)], drawn


class Watch:
    """Notes how long a backend's passes of each number of rows take; prompts' passes are those of more than 32."""

    def __init__(self, backend: Backend) -> None:
        self.sizes: list[int] = []
        self._took_s: dict[int, list[float]] = {}
        self._run = backend.run
        backend.run = self._timed  # type: ignore[method-assign]

    def _timed(self, batch: Batch) -> FloatArray:
        began_s = time.perf_counter()
        logits = self._run(batch)
        took_s, n = time.perf_counter() - began_s, len(batch.tokens)
        if n <= 32 and len(batch.outputs):
            self.sizes.append(n)
            self._took_s.setdefault(n, []).append(took_s)
        return logits

    def seconds(self, sizes: Sequence[int]) -> float:
        """What passes of these sizes take, each the median of its size."""
        return sum(statistics.median(self._took_s[n]) for n in sizes)


def ask(engine: Engine, prompt: str, sampling: SamplingParams, n_tokens: int) -> tuple[str, Finished]:
    """The answer and how it ended."""
    done, text, last = threading.Event(), [], []

    def sink(event: Event) -> None:
        if isinstance(event, TextDelta):
            text.append(event.text)
        elif isinstance(event, Finished | Failed):
            last.append(event)
            done.set()

    request = GenerationRequest("r", messages=(Message("user", prompt),), sampling=sampling, max_tokens=n_tokens)
    engine.submit(engine.model.prepare(request), sink)
    done.wait()
    (event,) = last
    if isinstance(event, Failed):
        raise SystemExit(str(event.error))
    return "".join(text), event


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--task", choices=["edit", "code", "prose"], default="code")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-lookup", action="store_true", help="the draft model alone")
    args = parser.parse_args()
    n_ctx = 8192 if args.task == "edit" else 2048
    settings = EngineSettings(args.model, n_ctx=n_ctx, n_slots=1, draft_path=args.draft, lookup=not args.no_lookup)
    model = load_model(settings, lambda progress: None)
    watches = [Watch(backend) for backend in (model.backend, model.draft) if backend is not None]
    engine = Engine(model, Counters())
    engine.start()
    prompts, sampling = make_prompts(args.task, args.repeats)
    ask(engine, "Hello", sampling, 8)
    rates: list[list[float]] = [[], []]
    passes: list[list[list[int]]] = [[[] for _ in watches] for _ in rates]
    for prompt in prompts:
        texts = []
        for is_on, of_kind, sizes in zip((True, False), rates, passes, strict=True):
            engine.lookahead.is_on = is_on
            for watch in watches:
                watch.sizes.clear()
            text, finished = ask(engine, prompt, sampling, args.tokens)
            texts.append(text)
            for watch, of_watch in zip(watches, sizes, strict=True):
                of_watch.extend(watch.sizes)
            of_kind.append((finished.usage.n_generated - 1) / finished.timings.decode_s)
            t = finished.timings
            drafts = f", {t.n_draft_accepted} of {t.n_draft} guesses right" if t.n_draft else ""
            print(f"  {of_kind[-1]:6.1f} tok/s over {finished.usage.n_generated} tokens{drafts}", flush=True)
        print("  equal" if texts[0] == texts[1] else "  THE TEXTS DIFFER", flush=True)
    ahead, alone = (statistics.harmonic_mean(of_kind) for of_kind in rates)
    print(f"{args.task}: {ahead:.1f} tok/s ahead, {alone:.1f} alone, {ahead / alone:.3f} times")
    ahead, alone = (sum(map(Watch.seconds, watches, of_kind)) for of_kind in passes)
    print(f"by the median pass of each size: {alone / ahead:.3f} times")
    engine.close()


if __name__ == "__main__":
    main()
