"""What a client asks for, in one vocabulary for every protocol.

All types are frozen. A translator (`http/protocols/openai.py`, …) or the command line builds a `GenerationRequest`;
nothing below it knows which protocol it came from. `None` in `SamplingParams` means "not sent": the flag, then the
model file's own default, then Phobos's default decides (`engine.sampler.resolve_sampling`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from phobos.sampling_fields import SamplingValues

MAX_TOP_LOGPROBS = 32  # alternatives told of a token

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True)
class ToolCall:
    """A call the model made; `arguments` is the JSON text of an object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class ToolSpec:
    """A function the model may call; `parameters` is the normal form of a JSON schema. `strict`: one that cannot be
    enforced in full is refused. `grammar`: what the text of its one argument follows, in Lark."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool = False
    grammar: str | None = None


@dataclass(frozen=True)
class Message:
    """One turn. `content` is joined text; `None` only where tool calls stand instead."""

    role: Role
    content: str | None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class SamplingParams(SamplingValues):
    """How the next token is drawn."""

    logit_bias: Mapping[int, float] = field(default_factory=dict)
    text_bias: Mapping[str, float] = field(default_factory=dict)  # for each token of a text
    ignore_eos: bool = False  # tokens that end a turn are never drawn


@dataclass(frozen=True)
class OutputFormat:
    """A shape the answer must have: `text` is free; `schema` is used by `json_schema`, `pattern` by the last two.
    `strict`: a schema that cannot be enforced in full is refused."""

    kind: Literal["text", "json_object", "json_schema", "regex", "grammar"] = "text"
    schema: Mapping[str, Any] | None = None
    pattern: str | None = None
    strict: bool = False


@dataclass(frozen=True)
class ToolChoice:
    """Whether the model must call; `name` is set for `function` only. `allowed`: the tools that may be called, where
    those are not all that are shown."""

    kind: Literal["auto", "none", "required", "function"] = "auto"
    name: str | None = None
    allowed: frozenset[str] | None = None


@dataclass(frozen=True)
class GenerationRequest:
    """One request. Exactly one of `messages` (chat) and `prompt` (completion: text, or token ids, among which texts may
    stand) is used."""

    request_id: str
    messages: tuple[Message, ...] = ()
    prompt: str | tuple[int | str, ...] | None = None
    suffix: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    strict_tool_calls: bool = False
    output: OutputFormat = OutputFormat()
    sampling: SamplingParams = SamplingParams()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_leading_stop: bool = False
    n: int = 1
    top_logprobs: int | None = None  # None: no log-probabilities; 0: the chosen token's only
    echo: bool = False
    thinking: bool = False
    thinking_optional: bool = False  # reasoning is wanted only of a model that knows it
    thinking_budget: int | None = None
    reasoning_effort: str | None = None
    preserve_thinking: bool | None = None
    prefill_thinking: str | None = None
    continue_assistant: bool = False
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    cache_slot: int | None = None
    cache_prompt: bool = True

    @property
    def is_chat(self) -> bool:
        """Whether the model's chat format is wanted."""
        return self.prompt is None


@dataclass(frozen=True)
class ScoreRequest:
    """Asks how probable given tokens are, generating nothing.

    The first `n_shared` tokens are those of other requests too; what follows is not worth keeping.
    `targets` are rows, rising, each with the tokens whose probability is wanted after it (row `i` has read
    `tokens[: i + 1]`); the last of them is the last row.
    """

    request_id: str
    tokens: tuple[int, ...]
    targets: tuple[tuple[int, tuple[int, ...]], ...]
    cache_slot: int | None = None
    cache_prompt: bool = True
    n_shared: int | None = None


@dataclass(frozen=True)
class EmbedRequest:
    """Asks for what stands for a text: the pooled states of its tokens, as they are."""

    request_id: str
    tokens: tuple[int, ...]
    cache_slot: int | None = None
    cache_prompt: bool = True
    n_shared: None = None
