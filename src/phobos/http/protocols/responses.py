"""OpenAI's Responses API, stateless: fields in, a `Job` out. Replies are made in `responses_reply.py`.

Nothing is stored: what would need an earlier response is refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from phobos.chat.messages import (
    MAX_TOP_LOGPROBS,
    GenerationRequest,
    OutputFormat,
    SamplingParams,
)
from phobos.errors import RequestError
from phobos.http.protocols.conversation import is_continued
from phobos.http.protocols.fields import Count, Natural, convert, sort_fields, without_nulls
from phobos.http.protocols.history import LeftOut
from phobos.http.protocols.output_formats import parse_output, schema_output
from phobos.http.protocols.response_items import parse_input
from phobos.http.protocols.responses_reply import ResponseForm
from phobos.http.protocols.sampling import SAMPLING
from phobos.http.protocols.tools import RESPONSES, read_choice, read_tools
from phobos.http.reply import Job
from phobos.settings import ServeSettings

_Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

# What an answer may be asked to include; what else stands there belongs to tools that are not here.
_LOGPROBS = "message.output_text.logprobs"
_INCLUDES = frozenset({_LOGPROBS, "reasoning.encrypted_content"})
_NEEDS_A_STORE = ("previous_response_id", "conversation", "prompt")


class ReasoningField(msgspec.Struct):
    """`reasoning`; there are no summaries, the reasoning itself is returned."""

    effort: _Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Any = None


class TextField(msgspec.Struct):
    """`text`."""

    format: Any = None
    verbosity: str | None = None


class ResponsesFields(msgspec.Struct, kw_only=True):
    """`POST /v1/responses`, beside the sampling fields."""

    model: str | None = None
    input: Any = None
    instructions: str | None = None
    max_output_tokens: Count | None = None
    max_tool_calls: Any = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    include: list[str] | None = None
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    text: TextField | None = None
    reasoning: ReasoningField | None = None
    enable_thinking: bool | None = None
    thinking_budget: Natural | None = None
    stream: bool | None = None
    stream_options: Any = None
    truncation: Literal["auto", "disabled"] | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    cache_slot: Natural | None = None
    cache_prompt: bool | None = None


_NAMES = frozenset(ResponsesFields.__struct_fields__) | SAMPLING.names


def parse_response_job(body: dict[str, Any], request_id: str, settings: ServeSettings) -> Job:
    """A responses request. Raises `RequestError`."""
    fields = sort_fields(body, _NAMES, strict=settings.strict_fields)
    asked = convert(without_nulls(fields.values, ("reasoning", "text")), ResponsesFields)
    _refuse_what_is_not_here(asked)
    offer = read_tools(asked.tools, RESPONSES, strict=settings.strict_fields)
    tools, left_out = offer.tools, LeftOut()
    choice, ignored = read_choice(asked.tool_choice, offer)
    messages, place = parse_input(asked.instructions, asked.input, offer, left_out)
    effort = asked.reasoning.effort if asked.reasoning is not None else None
    thinking = settings.think if effort is None else effort != "none"
    if asked.enable_thinking is not None:
        thinking = asked.enable_thinking
    sampling = SamplingParams(**SAMPLING.read(fields.values))
    request = GenerationRequest(
        request_id=request_id,
        messages=messages,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=asked.parallel_tool_calls is not False,
        output=_parse_format(asked.text, settings.strict_fields),
        sampling=sampling,
        max_tokens=asked.max_output_tokens,
        top_logprobs=_parse_logprobs(asked),
        thinking=thinking,
        thinking_budget=asked.thinking_budget,
        thinking_optional=not asked.enable_thinking and not settings.strict_fields,
        reasoning_effort="xhigh" if effort == "max" else effort,
        prefill_thinking=settings.prefill_thinking,
        continue_assistant=settings.continue_assistant
        and not messages[-1].tool_calls  # calls that nobody answered: a new turn
        and is_continued(messages, tools, place),
        cache_slot=asked.cache_slot,
        cache_prompt=asked.cache_prompt is not False,
    )
    form = ResponseForm(_echo(asked, sampling, body.get("metadata")), offer.called)
    ignored = (*fields.unknown, *_ignored(asked), *offer.left_out, *left_out.places, *ignored)
    return Job((request,), bool(asked.stream), asked.model, form, ignored, "reasoning.effort" if effort else "")


def _ignored(asked: ResponsesFields) -> tuple[str, ...]:
    """What is known and without effect: nothing is cut out of a prompt, and nothing found by tools of a host's."""
    includes = tuple(f"include.{name}" for name in asked.include or () if name not in _INCLUDES)
    return (*(("truncation",) if asked.truncation == "auto" else ()), *includes)


def _refuse_what_is_not_here(asked: ResponsesFields) -> None:
    if asked.max_tool_calls is not None:
        raise RequestError(
            "max_tool_calls cannot be honoured: it counts calls of tools that a server runs, and this one runs none",
            code="unsupported_parameter",
            param="max_tool_calls",
        )
    if asked.reasoning is not None and asked.reasoning.generate_summary is not None:
        raise RequestError(
            "reasoning.generate_summary cannot be honoured: the reasoning itself is returned, never a summary",
            code="unsupported_parameter",
            param="reasoning.generate_summary",
        )
    for name in _NEEDS_A_STORE:
        if getattr(asked, name) is not None:
            raise RequestError(
                f"{name} cannot be honoured: nothing is stored here, send the whole conversation as input",
                code="unsupported_parameter",
                param=name,
            )
    if asked.background:
        raise RequestError("background responses are not offered", code="unsupported_value", param="background")


def _parse_logprobs(asked: ResponsesFields) -> int | None:
    if asked.top_logprobs or _LOGPROBS in (asked.include or ()):
        return asked.top_logprobs or 0
    return None


def _parse_format(text: TextField | None, strict: bool) -> OutputFormat:
    """`text.format`, which holds a schema at its top where chat nests it."""
    form = text.format if text is not None else None
    if isinstance(form, dict) and form.get("type") == "json_schema":
        return schema_output(form.get("schema"), "text.format.schema", strict or form.get("strict") is True)
    try:
        return parse_output(form, strict=strict)
    except RequestError as error:
        message = str(error).replace("response_format", "text.format")
        param = (error.param or "").replace("response_format", "text.format")
        raise RequestError(message, code=error.code, param=param) from None


def _echo(asked: ResponsesFields, sampling: SamplingParams, metadata: Any) -> dict[str, Any]:
    """What a response repeats of its request."""
    reasoning, text = asked.reasoning, asked.text
    return {
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "metadata": metadata if isinstance(metadata, dict) else {},
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "reasoning": {"effort": reasoning.effort if reasoning is not None else None, "summary": None},
        "temperature": sampling.temperature,
        "text": {"format": text.format if text is not None and text.format is not None else {"type": "text"}},
        "tool_choice": asked.tool_choice if asked.tool_choice is not None else "auto",
        "tools": asked.tools or [],
        "top_logprobs": asked.top_logprobs or 0,
        "top_p": sampling.top_p,
    }
