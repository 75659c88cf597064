"""What replies tell of their choices: seeds, usage, timings, and log-probabilities of tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from phobos.chat.events import Event, Finished, Started, Timings, TokenLogprob, Usage


@dataclass
class Ledger:
    """Seeds, usage and timings of a reply's choices. `copies` is n: choices of one prompt are neighbours."""

    copies: int
    seeds: dict[int, int] = field(default_factory=dict)
    slots: dict[int, int] = field(default_factory=dict)
    usages: dict[int, Usage] = field(default_factory=dict)
    timings: dict[int, Timings] = field(default_factory=dict)

    def push(self, choice: int, event: Event) -> None:
        """Note what concerns the books."""
        if isinstance(event, Started):
            self.seeds[choice] = event.seed
            self.slots[choice] = event.slot
        elif isinstance(event, Finished):
            self.usages[choice] = event.usage
            self.timings[choice] = event.timings

    def usage(self) -> dict[str, Any]:
        """The `usage` object: a prompt counts once, however many choices it has."""
        firsts = [usage for choice, usage in self.usages.items() if choice % self.copies == 0]
        n_prompt = sum(usage.n_prompt for usage in firsts)
        n_generated = sum(usage.n_generated for usage in self.usages.values())
        return {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_generated,
            "total_tokens": n_prompt + n_generated,
            "prompt_tokens_details": {"cached_tokens": sum(usage.n_cached for usage in firsts)},
            "completion_tokens_details": {"reasoning_tokens": sum(u.n_reasoning for u in self.usages.values())},
        }

    def extras(self) -> dict[str, Any]:
        """`timings` as llama-server gives them, and Phobos's own fields."""
        own: dict[str, Any] = {"seed": self.seeds.get(0), "slot": self.slots.get(0)}
        if len(self.seeds) > 1:
            own["seeds"] = [self.seeds[choice] for choice in sorted(self.seeds)]
        return {"timings": self.describe_timings(), "x_phobos": own}

    def describe_timings(self) -> dict[str, Any]:
        """The `timings` object, in milliseconds."""
        firsts = [timings for choice, timings in self.timings.items() if choice % self.copies == 0]
        prompt_ms = 1000 * sum(timings.prompt_s for timings in firsts)
        n_prompt = sum(timings.n_prompt_computed for timings in firsts)
        decode_ms = 1000 * sum(timings.decode_s for timings in self.timings.values())
        n_generated = sum(usage.n_generated for usage in self.usages.values())
        n_steps = n_generated - sum(
            usage.n_generated > 0 for usage in self.usages.values()
        )  # the prompt gave the first
        timings = {
            "cache_n": sum(u.n_cached for choice, u in self.usages.items() if choice % self.copies == 0),
            "prompt_n": n_prompt,
            "prompt_ms": prompt_ms,
            "prompt_per_token_ms": _ratio(prompt_ms, n_prompt),
            "prompt_per_second": _ratio(1000 * n_prompt, prompt_ms),
            "predicted_n": n_generated,
            "predicted_ms": decode_ms,
            "predicted_per_token_ms": _ratio(decode_ms, n_steps),
            "predicted_per_second": _ratio(1000 * n_steps, decode_ms),
        }
        n_draft = sum(t.n_draft for t in self.timings.values())
        if n_draft:
            timings["draft_n"] = n_draft
            timings["draft_n_accepted"] = sum(t.n_draft_accepted for t in self.timings.values())
        return timings


def _ratio(value: float, divisor: float) -> float:
    return value / divisor if divisor > 0 else 0.0


def shape_logprob(entry: TokenLogprob, *, with_top: bool = True) -> dict[str, Any]:
    """A token's log-probability in OpenAI's shape, with those of the candidates beside it."""
    shape: dict[str, Any] = {"token": entry.text, "logprob": entry.logprob, "bytes": list(entry.data)}
    if with_top:
        shape["top_logprobs"] = [shape_logprob(top, with_top=False) for top in entry.top]
    return shape
