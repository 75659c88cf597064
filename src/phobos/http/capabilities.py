"""What a loaded model can honour: the checks that need the model. Accepted means honoured; all else is a 400."""

from __future__ import annotations

from phobos.chat.messages import GenerationRequest
from phobos.errors import NO_TEXT, RequestError
from phobos.http.served import ServedModel


def check_request(request: GenerationRequest, model: ServedModel) -> None:
    """Raises `RequestError` naming the first field this model cannot honour."""
    if model.embeds:
        raise RequestError(NO_TEXT, code="unsupported_endpoint")
    _check_bounds(request, model)
    if request.tools and request.tool_choice.kind != "none" and not model.supports_tools:
        raise _unsupported("tools", "this model's chat format knows no tool calls")
    if request.output.kind != "text" and not model.supports_grammar:
        raise _unsupported("response_format", "this model cannot be held to an output format")
    if request.tool_choice.kind in ("required", "function") and not model.supports_grammar:
        raise _unsupported("tool_choice", "this model cannot be made to call a tool")
    if request.thinking and not request.thinking_optional and not model.supports_thinking:
        field = "reasoning_effort" if request.reasoning_effort not in (None, "none") else "enable_thinking"
        raise _unsupported(field, "this model's chat format has no reasoning")
    if request.suffix is not None and not getattr(model, "supports_infill", False):
        raise _unsupported("suffix", "this model has no infill tokens")


def count_prompt(request: GenerationRequest, model: ServedModel) -> int:
    """The tokens of a request's prompt, also of one that does not fit. Raises `RequestError`."""
    return len(model.prepare(request, any_length=True))


def _check_bounds(request: GenerationRequest, model: ServedModel) -> None:
    n_vocab = model.tokenizer.n_vocab
    if request.n > model.n_slots:
        raise RequestError(f"n is {request.n}, and this server runs {model.n_slots} at once (--parallel)", param="n")
    if request.cache_slot is not None and request.cache_slot >= model.n_slots:
        raise RequestError(f"cache_slot must be below {model.n_slots}, the number of slots", param="cache_slot")
    if any(token >= n_vocab for token in request.sampling.logit_bias):
        raise RequestError(f"logit_bias names a token beyond the vocabulary of {n_vocab}", param="logit_bias")
    if isinstance(request.prompt, tuple) and any(isinstance(part, int) and part >= n_vocab for part in request.prompt):
        raise RequestError(f"prompt holds a token beyond the vocabulary of {n_vocab}", param="prompt")


def _unsupported(field: str, reason: str) -> RequestError:
    return RequestError(f"{field} cannot be honoured: {reason}", code="unsupported_parameter", param=field)


def describe_capabilities(model: ServedModel) -> list[str]:
    """What `/v1/models` lists."""
    if model.embeds:
        return ["embedding"]
    flags = (
        ("completion", True),
        ("chat", model.template is not None),
        ("tools", model.supports_tools),
        ("structured_output", model.supports_grammar),
        ("reasoning", model.supports_thinking),
        ("infill", bool(getattr(model, "supports_infill", False))),
    )
    return ["text", *(name for name, present in flags if present)]
