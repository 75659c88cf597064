"""A chat in progress: the partner, the conversation, and what the next request is made of. No terminal in here.

Owner: the main thread. `ask` is the only way an answer comes about: it adds the question, waits, and adds what came.
A question that got no answer at all is taken back, so that the conversation stays one of turns.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from phobos.chat.messages import GenerationRequest, Message
from phobos.repl.exchange import Answer, run_exchange
from phobos.repl.knobs import sampling_params
from phobos.repl.partner import Partner
from phobos.repl.settings import ChatSettings
from phobos.repl.transcript import Transcript
from phobos.sizes import format_count, format_seconds


@dataclass(frozen=True)
class Totals:
    """Sums over the answers of this chat; tokens and seconds."""

    n_answers: int = 0
    n_prompt: int = 0
    n_cached: int = 0
    n_generated: int = 0
    prompt_s: float = 0.0
    decode_s: float = 0.0
    n_guessed: int = 0
    n_guessed_right: int = 0

    def plus(self, answer: Answer) -> Totals:
        """With one more answer."""
        if answer.finished is None:
            return replace(self, n_answers=self.n_answers + 1)
        usage, timings = answer.finished.usage, answer.finished.timings
        return Totals(
            self.n_answers + 1,
            self.n_prompt + usage.n_prompt,
            self.n_cached + usage.n_cached,
            self.n_generated + usage.n_generated,
            self.prompt_s + timings.prompt_s,
            self.decode_s + timings.decode_s,
            self.n_guessed + timings.n_draft,
            self.n_guessed_right + timings.n_draft_accepted,
        )


@dataclass(frozen=True)
class AskHooks:
    """What a front end wants to know while an answer comes."""

    on_event: Callable[[Answer], None]
    on_tick: Callable[[Answer], None]
    stopped: Callable[[], bool]


class Session:
    """See the module."""

    def __init__(self, settings: ChatSettings, partner: Partner) -> None:
        self.settings = settings
        self.partner = partner
        self.transcript = Transcript(settings.system)
        self.sampling = settings.sampling
        self.thinking = settings.think and partner.info.can_think
        self.fold_reasoning = True
        self.totals = Totals()
        self.last: Answer | None = None
        self.file: Path | None = None  # where the conversation was saved to or loaded from

    def build_request(self, messages: tuple[Message, ...] | None = None) -> GenerationRequest:
        """The request for the conversation as it stands. A model without a chat format continues its text."""
        asked = self.transcript.messages if messages is None else messages
        info = self.partner.info
        return GenerationRequest(
            request_id=f"chatcmpl-{uuid.uuid4().hex}",
            messages=asked if info.has_chat else (),
            prompt=None if info.has_chat else "\n".join(m.content or "" for m in asked),
            sampling=sampling_params(self.sampling),
            max_tokens=self.sampling.max_tokens,
            thinking=self.thinking,
        )

    def ask(self, text: str, hooks: AskHooks) -> Answer:
        """Put a question and take its answer into the conversation."""
        turns = self.transcript.turns
        turns.append(Message("user", text))
        n_before = len(turns)
        try:
            answer = run_exchange(
                self.partner,
                self.build_request(),
                on_event=hooks.on_event,
                on_tick=hooks.on_tick,
                stopped=hooks.stopped,
            )
        except BaseException:
            self.transcript.cut(n_before - 1)
            raise
        if answer.text or answer.finished is not None:
            turns.append(Message("assistant", answer.text, answer.reasoning or None))
            self.last = answer
        else:
            self.transcript.cut(n_before - 1)
        self.totals = self.totals.plus(answer)
        return answer

    def footer(self, answer: Answer) -> str:
        """The line under an answer: tokens, time to the first, rate, guesses that were right, reuse, fill of the
        context."""
        parts = []
        finished = answer.finished
        n_tokens = finished.usage.n_generated if finished is not None else answer.n_deltas
        parts.append(f"{n_tokens} token{'' if n_tokens == 1 else 's'}")
        if answer.first_s is not None:
            parts.append(f"first {format_seconds(answer.first_s)}")
        if (rate := answer.rate) is not None:
            parts.append(f"{rate:.{0 if rate >= 99.5 else 1}f} tok/s")
        if finished is not None:
            usage, timings = finished.usage, finished.timings
            if timings.n_draft:
                parts.append(f"{timings.n_draft_accepted}/{timings.n_draft} guessed")
            parts.append(f"{usage.n_cached}/{usage.n_prompt} reused")
            parts.append(self._fill(usage.n_prompt + usage.n_generated))
            if finished.reason == "length":
                parts.append(self._cut_off(usage.n_prompt + usage.n_generated))
        if answer.stopped:
            parts.append("stopped")
        return " · ".join(parts)

    def _fill(self, n_tokens: int) -> str:
        n_ctx = self.partner.info.n_ctx
        if n_ctx is None:
            return f"context {n_tokens}"
        return f"context {n_tokens / n_ctx:.0%} of {n_ctx}"

    def _cut_off(self, n_tokens: int) -> str:
        n_ctx = self.partner.info.n_ctx
        full = n_ctx is not None and n_tokens >= n_ctx - 1
        return "cut off: the context is full" if full else "cut off by the limit (/set n-predict)"

    def describe_stats(self) -> list[tuple[str, str]]:
        """What this chat has used, row by row."""
        totals, info = self.totals, self.partner.info
        rows = [
            ("model", info.model + (f" ({info.detail})" if info.detail else "")),
            ("runs", f"on {info.where}" if info.where else "in this chat"),
            ("answers", str(totals.n_answers)),
            ("read", f"{format_count(totals.n_prompt)} tokens, {format_count(totals.n_cached)} of them reused"),
            ("written", f"{format_count(totals.n_generated)} tokens"),
        ]
        n_computed = totals.n_prompt - totals.n_cached
        if totals.prompt_s > 0:
            rows.append(("reading", f"{n_computed / totals.prompt_s:.1f} tok/s"))
        if totals.decode_s > 0:
            rows.append(("writing", f"{totals.n_generated / totals.decode_s:.1f} tok/s"))
        if totals.n_guessed:
            right = f"{totals.n_guessed_right / totals.n_guessed:.0%} of {format_count(totals.n_guessed)} tokens right"
            rows.append(("guessing", right))
        if self.last is not None and self.last.finished is not None:
            usage = self.last.finished.usage
            n_held = usage.n_prompt + usage.n_generated
            rows.append(("context", f"{n_held} tokens" + (f" of {info.n_ctx}" if info.n_ctx else "")))
        return rows
