"""Measures an engine under several requests at once, on one model.

    python scripts/checks/traffic_check.py MODEL [--task clients|first|turns|shared] [--tokens N] [--clients N]

`clients`: tokens a second of so many clients in all, against one; `first`: time to the first token of a short request
beside a running prompt of 4,000 tokens; `turns`: the second turn of a conversation of 2,000 tokens against its first,
then two conversations in turn; `shared`: four requests with one system prompt of 1,000 tokens.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from pathlib import Path

from phobos.chat.events import Event, Failed, Finished, TextDelta
from phobos.chat.messages import GenerationRequest, Message, SamplingParams
from phobos.counters import Counters
from phobos.engine.engine import Engine
from phobos.engine.model import load_model
from phobos.settings import EngineSettings

WORDS = ("river", "stone", "lamp", "winter", "bridge", "letter", "garden", "window", "forest", "silver", "island")


class Reply:
    """A request under way: when its first text came, and how it ended."""

    def __init__(self, engine: Engine, messages: tuple[Message, ...], n_tokens: int) -> None:
        self.first_s: float | None = None
        self.text = ""
        self._done = threading.Event()
        self._last: Event | None = None
        sampling = SamplingParams(temperature=0.0, logit_bias=dict.fromkeys(engine.model.tokenizer.end_ids, -100.0))
        request = GenerationRequest("r", messages=messages, sampling=sampling, max_tokens=n_tokens)
        prepared = engine.model.prepare(request)
        self._began_s = time.monotonic()
        engine.submit(prepared, self._take)

    def _take(self, event: Event) -> None:
        if isinstance(event, TextDelta):
            if self.first_s is None:
                self.first_s = time.monotonic() - self._began_s
            self.text += event.text
        elif isinstance(event, Finished | Failed):
            self._last = event
            self._done.set()

    def wait(self) -> Finished:
        """How it ended; leaves the program where it failed."""
        self._done.wait()
        if not isinstance(self._last, Finished):
            raise SystemExit(f"a request failed: {self._last}")
        return self._last


def prose(seed: int, n_words: int) -> str:
    """Words in no order."""
    return " ".join(random.Random(seed).choices(WORDS, k=n_words))


def user(text: str) -> tuple[Message, ...]:
    """A conversation that begins with this."""
    return (Message("user", text),)


def run_clients(engine: Engine, n_clients: int, n_tokens: int) -> None:
    """Tokens a second in all."""

    def rate(n: int, seed: int) -> float:
        began_s = time.monotonic()
        replies = [Reply(engine, user(f"Tell a story of {prose(seed + i, 3)}."), n_tokens) for i in range(n)]
        total = sum(reply.wait().usage.n_generated for reply in replies)
        return total / (time.monotonic() - began_s)

    rate(1, 1000)
    alone = rate(1, 0)
    together = rate(n_clients, 100)
    again = rate(1, 200)
    alone = (alone + again) / 2
    print(f"1 client {alone:.1f} tok/s, {n_clients} clients {together:.1f} in all: {together / alone:.2f} times")


def run_first(engine: Engine) -> None:
    """A short request beside a long prompt."""
    Reply(engine, user("Hello"), 16).wait()
    for seed in range(2):
        long = Reply(engine, user(prose(seed, 3200)), 2)
        time.sleep(0.5)
        short = Reply(engine, user(f"Name a colour. {prose(seed + 50, 3)}"), 2)
        n_short = short.wait().usage.n_prompt
        n_long = long.wait().usage.n_prompt
        print(
            f"first token of {n_short} tokens beside {n_long}: {short.first_s:.2f} s (the long one: {long.first_s:.1f})"
        )


def run_turns(engine: Engine) -> None:
    """What a second turn costs."""
    talks = [user(prose(seed, 1600)) for seed in (1, 2)]
    for i in (0, 0, 1, 0, 1, 0, 1):
        reply = Reply(engine, talks[i], 16)
        usage = reply.wait().usage
        print(f"talk {i + 1}: {usage.n_prompt} tokens, {usage.n_cached} reused, first token {reply.first_s:.3f} s")
        talks[i] = (*talks[i], Message("assistant", reply.text), Message("user", "Go on with that, please."))


def run_shared(engine: Engine) -> None:
    """One system prompt for four."""
    system = Message("system", prose(3, 800))
    replies = [Reply(engine, (system, Message("user", f"Say {word}.")), 8) for word in WORDS[:4]]
    usages = [reply.wait().usage for reply in replies]
    n_prompt = sum(usage.n_prompt for usage in usages)
    print(f"{n_prompt} prompt tokens in 4 requests, {engine.counters.prompt_tokens_computed} computed")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--task", choices=["clients", "first", "turns", "shared"], default="clients")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--no-lookup", action="store_true")
    args = parser.parse_args()
    n_slots = args.clients if args.task == "clients" else 4
    n_ctx = {"clients": 512, "first": 4608, "turns": 3072, "shared": 2048}[args.task]
    settings = EngineSettings(args.model, n_ctx=n_ctx, n_slots=n_slots, lookup=not args.no_lookup)
    engine = Engine(load_model(settings, lambda progress: None), Counters())
    engine.start()
    if args.task == "clients":
        run_clients(engine, args.clients, args.tokens)
    else:
        {"first": run_first, "turns": run_turns, "shared": run_shared}[args.task](engine)
    engine.close()


if __name__ == "__main__":
    main()
