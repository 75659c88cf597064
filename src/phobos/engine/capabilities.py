"""What a loaded model can honour, and the one place that refuses what it cannot.

Accepted means honoured: a field the model cannot honour is a `RequestError` that names it. The check reads the request
only; it neither renders nor tokenizes, so it may run before a request waits for its turn.
"""

from __future__ import annotations

from typing import Protocol

from phobos.chat.messages import MAX_TOP_LOGPROBS, GenerationRequest
from phobos.errors import NO_TEXT, RequestError


class Words(Protocol):
    """What the check needs of a tokenizer."""

    @property
    def n_vocab(self) -> int:
        """Ids are 0 .. n_vocab - 1."""


class Capabilities(Protocol):
    """What a model says of itself."""

    @property
    def n_slots(self) -> int:
        """Sequences that run at once."""

    @property
    def tokenizer(self) -> Words:
        """Its tokenizer."""

    @property
    def embeds(self) -> bool:
        """Whether it is an embedding model, which generates nothing."""

    @property
    def supports_chat(self) -> bool:
        """Whether it has a chat template."""

    @property
    def supports_tools(self) -> bool:
        """Whether tool calls can be offered, enforced and read."""

    @property
    def supports_grammar(self) -> bool:
        """Whether an output format can be enforced."""

    @property
    def supports_thinking(self) -> bool:
        """Whether its template can turn reasoning on."""

    @property
    def supports_infill(self) -> bool:
        """Whether it has tokens for a prompt with a suffix."""


def check_request(request: GenerationRequest, model: Capabilities) -> None:
    """Raises `RequestError` naming the first field this model cannot honour."""
    if model.embeds:
        raise RequestError(NO_TEXT, code="unsupported_endpoint")
    _check_bounds(request, model)
    if request.is_chat and not model.supports_chat:
        raise RequestError(
            "this model file has no chat template: use /v1/completions, or start with --chat-template",
            code="unsupported_value",
            param="messages",
        )
    if request.tools and request.tool_choice.kind != "none" and not model.supports_tools:
        raise _unsupported("tools", "this model cannot call tools; leave them out or send tool_choice none")
    if request.output.kind != "text" and not model.supports_grammar:
        raise _unsupported("response_format", f"this model cannot be held to {request.output.kind}; send text")
    if request.output.kind != "text" and request.sampling.ignore_eos:
        raise RequestError("ignore_eos and an output format contradict each other: send one", param="ignore_eos")
    if request.thinking and not request.thinking_optional and not model.supports_thinking:
        field = "reasoning_effort" if request.reasoning_effort not in (None, "none") else "enable_thinking"
        raise _unsupported(field, "this model's chat format has no reasoning")
    if request.suffix is not None and not model.supports_infill:
        raise _unsupported("suffix", "this model has no infill tokens")


def check_token(token: int, n_vocab: int, param: str) -> None:
    """Raises `RequestError` for an id outside the vocabulary."""
    if not 0 <= token < n_vocab:
        raise RequestError(f"{param} names the token {token}; ids go from 0 to {n_vocab - 1}", param=param)


def _check_bounds(request: GenerationRequest, model: Capabilities) -> None:
    n_slots, n_vocab = model.n_slots, model.tokenizer.n_vocab
    if request.n > n_slots:
        raise RequestError(f"n is {request.n}; this server runs at most {n_slots} at once (--parallel)", param="n")
    if request.cache_slot is not None and not 0 <= request.cache_slot < n_slots:
        raise RequestError(
            f"cache_slot is {request.cache_slot}; this server has slots 0 to {n_slots - 1}", param="cache_slot"
        )
    if request.top_logprobs is not None and not 0 <= request.top_logprobs <= MAX_TOP_LOGPROBS:
        raise RequestError(f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}", param="top_logprobs")
    for token in request.sampling.logit_bias:
        check_token(token, n_vocab, "logit_bias")
    if isinstance(request.prompt, tuple):
        for part in request.prompt:
            if isinstance(part, int):
                check_token(part, n_vocab, "prompt")


def _unsupported(field: str, reason: str) -> RequestError:
    return RequestError(f"{field} cannot be honoured: {reason}", code="unsupported_parameter", param=field)
