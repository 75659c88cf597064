"""OpenAI's chat and completion requests: fields in, a `Job` out. Replies are made in `openai_reply.py`.

The tables at the top are the contract: what is read, with its type and range. What is left out of them is ignored,
and reported; what Phobos knows and cannot do is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from phobos.chat.messages import (
    MAX_TOP_LOGPROBS,
    GenerationRequest,
    Message,
    OutputFormat,
    SamplingParams,
    ToolSpec,
)
from phobos.errors import RequestError
from phobos.http.protocols.conversation import is_continued, parse_messages, split_template_kwargs
from phobos.http.protocols.fields import Count, Natural, convert, sort_fields
from phobos.http.protocols.history import LeftOut
from phobos.http.protocols.openai_reply import ChatForm, CompletionForm
from phobos.http.protocols.output_formats import parse_output, schema_output
from phobos.http.protocols.prompts import parse_prompts, parse_stops
from phobos.http.protocols.sampling import SAMPLING
from phobos.http.protocols.tools import CHAT, read_choice, read_tools
from phobos.http.reply import Job
from phobos.http.served import ServedModel
from phobos.http.transport.wire import quoted
from phobos.settings import ServeSettings

MAX_BIASES = 1024

_Limit = Annotated[int, Meta(ge=-1)]  # -1: none


class StreamOptions(msgspec.Struct):
    """`stream_options`; what else stands in it is not read."""

    include_usage: bool | None = None


class SharedFields(msgspec.Struct, kw_only=True):
    """What chat and completion requests have in common beside the sampling fields."""

    model: str | None = None
    max_tokens: _Limit | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    stop: str | list[str] | None = None
    ignore_leading_stop: bool | None = None
    n: Count | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_slot: Natural | None = None
    cache_prompt: bool | None = None


class ChatFields(SharedFields, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Any = None
    max_completion_tokens: _Limit | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    response_format: Any = None
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    strict_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    preserve_thinking: bool | None = None
    thinking_budget: Natural | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    modalities: list[str] | None = None
    audio: Any = None
    prediction: Any = None
    functions: Any = None
    function_call: Any = None
    echo: bool | None = None
    # llama-server's and vLLM's
    grammar: str | None = None
    json_schema: Any = None
    id_slot: Annotated[int, Meta(ge=-1)] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None


class CompletionFields(SharedFields, kw_only=True):
    """`POST /v1/completions`."""

    prompt: str | list[str | Natural | list[Natural]] | None = None
    suffix: str | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    best_of: Count | None = None


_CHAT_NAMES = frozenset(ChatFields.__struct_fields__) | SAMPLING.names
_COMPLETION_NAMES = frozenset(CompletionFields.__struct_fields__) | SAMPLING.names
_NOT_OFFERED = ("audio", "prediction", "functions", "function_call", "echo")


def parse_chat(body: dict[str, Any], request_id: str, settings: ServeSettings) -> Job:
    """A chat request. Raises `RequestError`."""
    fields = sort_fields(body, _CHAT_NAMES, strict=settings.strict_fields)
    asked = convert(fields.values, ChatFields)
    for name in _NOT_OFFERED:
        if getattr(asked, name) is not None:
            raise RequestError(f"{name} is not supported here", code="unsupported_parameter", param=name)
    if asked.modalities is not None and asked.modalities != ["text"]:
        raise RequestError("modalities: only text can be produced", code="unsupported_value", param="modalities")
    left_out = LeftOut()
    messages = parse_messages(asked.messages if asked.messages is not None else _missing("messages"), left_out)
    offer = read_tools(asked.tools, CHAT, strict=settings.strict_fields)
    tools = offer.tools
    choice, ignored = read_choice(asked.tool_choice, offer)
    if asked.strict_tool_calls and (asked.stream or asked.logprobs):
        other = "stream" if asked.stream else "logprobs"
        raise RequestError(f"strict_tool_calls cannot be combined with {other}", param="strict_tool_calls")
    thinking, kwargs = _parse_thinking(asked, settings)
    request = GenerationRequest(
        request_id=request_id,
        messages=messages,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=asked.parallel_tool_calls is not False,
        strict_tool_calls=bool(asked.strict_tool_calls),
        output=_parse_output(asked, settings.strict_fields),
        sampling=SamplingParams(**SAMPLING.read(fields.values), logit_bias=_logit_bias(asked.logit_bias)),
        max_tokens=_read_limit(asked, asked.max_completion_tokens, least=1),
        stop=parse_stops(asked.stop),
        ignore_leading_stop=bool(asked.ignore_leading_stop),
        n=asked.n or 1,
        top_logprobs=_read_logprobs(asked),
        thinking=thinking,
        thinking_budget=asked.thinking_budget,
        thinking_optional=_thinks_by_effort(asked) and not settings.strict_fields,
        reasoning_effort="xhigh" if asked.reasoning_effort == "max" else asked.reasoning_effort,
        preserve_thinking=asked.preserve_thinking,
        prefill_thinking=settings.prefill_thinking,
        continue_assistant=_continues(asked, settings) and _is_continued(asked, messages, tools),
        template_kwargs=kwargs,
        cache_slot=asked.id_slot if asked.cache_slot is None and asked.id_slot != -1 else asked.cache_slot,
        cache_prompt=asked.cache_prompt is not False,
    )
    form = ChatForm(request, include_usage=_wants_usage(asked))
    ignored = (*fields.unknown, *offer.left_out, *left_out.places, *ignored)
    return Job((request,), bool(asked.stream), asked.model, form, ignored, _name_effort(asked))


def count_chat_tokens(
    body: dict[str, Any], model: ServedModel, request_id: str, settings: ServeSettings
) -> dict[str, Any]:
    """How many tokens the prompt of a chat request has, also of one that does not fit. Raises `RequestError`."""
    (request,) = parse_chat(body, request_id, settings).requests
    return {"object": "response.input_tokens", "input_tokens": len(model.prepare(request, any_length=True).tokens)}


def _continues(asked: ChatFields, settings: ServeSettings) -> bool:
    """Whether a last assistant message is to be continued: as asked for, else as the flag says."""
    if asked.continue_final_message and asked.add_generation_prompt:
        message = "continue_final_message and add_generation_prompt contradict each other: send one of them"
        raise RequestError(message, param="add_generation_prompt")
    if asked.continue_final_message is not None:
        return asked.continue_final_message
    return settings.continue_assistant if asked.add_generation_prompt is None else not asked.add_generation_prompt


def _is_continued(asked: ChatFields, messages: tuple[Message, ...], tools: tuple[ToolSpec, ...]) -> bool:
    """Whether the last message is continued. Raises `RequestError` where that was asked for and cannot be."""
    if is_continued(messages, tools, f"messages[{len(messages) - 1}]"):
        return True
    if asked.continue_final_message or asked.add_generation_prompt is False:
        name = "continue_final_message" if asked.continue_final_message else "add_generation_prompt"
        raise RequestError(f"{name}: there is no assistant message at the end to go on with", param=name)
    return False


def parse_completion(body: dict[str, Any], request_id: str, settings: ServeSettings) -> Job:
    """A completion request. Raises `RequestError`."""
    fields = sort_fields(body, _COMPLETION_NAMES, strict=settings.strict_fields)
    asked = convert(fields.values, CompletionFields)
    if asked.best_of is not None and asked.best_of > 1:
        raise RequestError("best_of above 1 is not supported", code="unsupported_value", param="best_of")
    prompts = parse_prompts(asked.prompt if asked.prompt is not None else _missing("prompt"))
    sampling = SamplingParams(**SAMPLING.read(fields.values), logit_bias=_logit_bias(asked.logit_bias))
    requests = tuple(
        GenerationRequest(
            request_id=request_id,
            prompt=prompt,
            suffix=asked.suffix,
            sampling=sampling,
            max_tokens=_read_limit(asked, None, least=0 if asked.echo else 1),
            stop=parse_stops(asked.stop),
            ignore_leading_stop=bool(asked.ignore_leading_stop),
            n=asked.n or 1,
            top_logprobs=asked.logprobs or None,
            echo=bool(asked.echo),
            cache_slot=asked.cache_slot,
            cache_prompt=asked.cache_prompt is not False,
        )
        for prompt in prompts
    )
    form = CompletionForm(requests, include_usage=_wants_usage(asked))
    return Job(requests, bool(asked.stream), asked.model, form, fields.unknown)


def _missing(name: str) -> Any:
    raise RequestError(f"{name} is required", param=name)


def _wants_usage(asked: SharedFields) -> bool:
    return asked.stream_options is not None and bool(asked.stream_options.include_usage)


def _logit_bias(value: dict[str, float] | None) -> Mapping[int, float]:
    biases: dict[int, float] = {}
    if value is not None and len(value) > MAX_BIASES:
        raise RequestError(f"logit_bias holds more than {MAX_BIASES} tokens: send fewer", param="logit_bias")
    for key, bias in (value or {}).items():
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise RequestError(f"logit_bias: {quoted(key)} is no token id", param="logit_bias")
        biases[int(key)] = bias
    return biases


def _parse_thinking(asked: ChatFields, settings: ServeSettings) -> tuple[bool, dict[str, Any]]:
    """Whether to reason, and what else the template is told."""
    kwargs, wanted = split_template_kwargs(asked.chat_template_kwargs)
    if wanted is None:
        wanted = asked.enable_thinking
    if wanted is None:
        wanted = settings.think if asked.reasoning_effort is None else asked.reasoning_effort != "none"
    return wanted, kwargs


def _name_effort(asked: ChatFields) -> str:
    return "" if asked.reasoning_effort is None else "reasoning_effort"


def _read_limit(asked: SharedFields, newer: int | None, *, least: int) -> int | None:
    """The most tokens of an answer; None where there is no limit. Raises `RequestError`."""
    name = "max_tokens" if newer is None else "max_completion_tokens"
    limit = asked.max_tokens if newer is None else newer
    if limit is None or limit == -1:
        return None
    if limit < least:
        hint = "" if least == 0 else ": 0 needs echo" if isinstance(asked, CompletionFields) else ""
        raise RequestError(f"{name} must be at least 1, or -1 for no limit{hint}", param=name)
    return limit


def _read_logprobs(asked: ChatFields) -> int | None:
    """How many candidates are told beside each token; asking for some asks for log-probabilities, unless `logprobs` is
    false in so many words."""
    wanted = asked.logprobs or asked.top_logprobs is not None
    return asked.top_logprobs or 0 if wanted and asked.logprobs is not False else None


def _thinks_by_effort(asked: ChatFields) -> bool:
    """Whether only an effort, or the server's flag, asks for reasoning; a model without any answers then as it can."""
    return not any((asked.enable_thinking, (asked.chat_template_kwargs or {}).get("enable_thinking")))


def _parse_output(asked: ChatFields, strict: bool) -> OutputFormat:
    """`response_format`, or llama-server's `grammar` and `json_schema`; one of them at most."""
    named = {"response_format": asked.response_format, "json_schema": asked.json_schema, "grammar": asked.grammar}
    given = [name for name, value in named.items() if value is not None and value != ""]
    if len(given) > 1:
        raise RequestError(f"{given[0]} and {given[1]} say the same: send one of them", param=given[1])
    if given == ["json_schema"]:
        return schema_output(asked.json_schema, "json_schema", strict)
    if given == ["grammar"]:
        return OutputFormat("grammar", pattern=asked.grammar)
    return parse_output(asked.response_format, strict=strict)
