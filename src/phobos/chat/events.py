"""What comes back from the engine: one ordered run of events per sequence.

Order: `Started`, then deltas, then exactly one of `Finished` and `Failed`. A whole reply is the fold of the same
events a stream sends, so the two agree by construction. A sink is any callable taking an event; the engine thread
calls it and it must not block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from phobos.errors import PhobosError

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True)
class TokenLogprob:
    """One token and its natural log-probability; `data` are its bytes, `text` the part of it the client receives."""

    token_id: int
    text: str
    data: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Started:
    """The sequence got a slot; sent before its first prompt pass."""

    slot: int
    n_prompt: int
    n_cached: int
    seed: int
    queue_wait_s: float


@dataclass(frozen=True)
class TextDelta:
    """A piece of the answer; never half a character, never part of a stop string."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class PromptLogprobs:
    """Log-probabilities of the prompt's tokens (only with `echo`); the first token has none."""

    tokens: tuple[TokenLogprob, ...]


@dataclass(frozen=True)
class Scores:
    """Natural log-probabilities a `ScoreRequest` asked for, in the order of its targets."""

    rows: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Embedded:
    """What an `EmbedRequest` asked for, not normalized."""

    values: tuple[float, ...]


@dataclass(frozen=True)
class ReasoningDelta:
    """A piece of the reasoning."""

    text: str


@dataclass(frozen=True)
class ToolCallStart:
    """A call opens: `index` counts from 0 within the reply."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class ToolCallDelta:
    """A fragment of the JSON text of a call's arguments."""

    index: int
    arguments: str


@dataclass(frozen=True)
class Usage:
    """Tokens counted for one sequence."""

    n_prompt: int
    n_cached: int
    n_generated: int
    n_reasoning: int = 0


@dataclass(frozen=True)
class Timings:
    """Seconds of engine time, as llama-server's `timings` gives them in milliseconds."""

    prompt_s: float
    decode_s: float
    n_prompt_computed: int
    n_draft: int = 0
    n_draft_accepted: int = 0


@dataclass(frozen=True)
class Finished:
    """The sequence ended as it should; `stop_text` is the stop string that ended it, if one did."""

    reason: FinishReason
    usage: Usage
    timings: Timings
    stop_text: str | None = None


@dataclass(frozen=True)
class Failed:
    """The sequence ended by an error; a `RequestError` is the client's, anything else the engine's."""

    error: PhobosError


Event = (
    Started | TextDelta | PromptLogprobs | Scores | Embedded | ReasoningDelta | ToolCallStart | ToolCallDelta
    | Finished | Failed
)  # fmt: skip
Sink = Callable[[Event], None]


class Submission(Protocol):
    """What was submitted, as its submitter holds it."""

    def cancel(self) -> None:
        """Call it off: its sink gets no more events. Any thread; twice is fine."""
