"""Anthropic's Messages API: fields in, a `Job` out. Replies are made in `anthropic_reply.py`.

A message's content blocks become the messages every protocol shares: text is joined, `tool_use` becomes a call,
`tool_result` a tool's message of its own, `thinking` the reasoning. What is left out of the tables is ignored, and
reported; what Phobos knows and cannot do is refused by name.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import msgspec

from phobos.chat.messages import (
    GenerationRequest,
    Message,
    OutputFormat,
    SamplingParams,
    ToolCall,
    ToolChoice,
)
from phobos.errors import RequestError
from phobos.http.protocols.anthropic_reply import MessageForm
from phobos.http.protocols.conversation import is_continued
from phobos.http.protocols.fields import Count, Fields, Natural, convert, sort_fields, without_nulls
from phobos.http.protocols.history import OTHER_PARTS, CallBook, LeftOut, invalid_message, unreadable
from phobos.http.protocols.output_formats import schema_output
from phobos.http.protocols.prompts import parse_stops
from phobos.http.protocols.sampling import SAMPLING
from phobos.http.protocols.tools import MESSAGES, Offer, check_tool_name, read_tools
from phobos.http.reply import Job
from phobos.http.served import ServedModel
from phobos.http.transport.wire import quoted
from phobos.settings import ServeSettings

# Fields of the hosted service that have no meaning here.
_BOOKKEEPING = frozenset(
    {"cache_control", "inference_geo", "speed", "diagnostics", "user_profile_id", "workspace_id", "context_management"}
)
_NOT_OFFERED = ("container", "mcp_servers", "prefill")
# Blocks of tools that a host runs.
_HOSTED = frozenset(
    (
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "mcp_tool_use",
        "mcp_tool_result",
        "container_upload",
    )
)
_BILLING = "x-anthropic-billing-header:"  # a client's note to its vendor, new with every request


class Thinking(msgspec.Struct):
    """`thinking`."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Count | None = None
    display: Literal["summarized", "omitted"] | None = None


class ToolChoiceField(msgspec.Struct):
    """`tool_choice`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputConfig(msgspec.Struct):
    """`output_config`."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: Any = None


class MessagesFields(msgspec.Struct, kw_only=True):
    """`POST /v1/messages`, beside the sampling fields."""

    model: str | None = None
    max_tokens: Count | None = None
    messages: Any = None
    system: Any = None
    tools: Any = None
    tool_choice: ToolChoiceField | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_slot: Natural | None = None
    cache_prompt: bool | None = None
    container: Any = None
    mcp_servers: Any = None
    prefill: Any = None


_NAMES = frozenset(MessagesFields.__struct_fields__) | SAMPLING.names | _BOOKKEEPING


def parse_message_job(body: dict[str, Any], request_id: str, settings: ServeSettings) -> Job:
    """A messages request. Raises `RequestError`."""
    fields, asked = _read(body, settings)
    if asked.max_tokens is None:
        raise RequestError("max_tokens is required", param="max_tokens")
    request, ignored = _request(fields.values, asked, request_id, settings)
    omits = asked.thinking is not None and asked.thinking.display == "omitted"
    form = MessageForm(request_id, omits_thinking=omits)
    field = "thinking" if asked.thinking is not None and asked.thinking.type == "enabled" else ""
    return Job((request,), bool(asked.stream), asked.model, form, (*fields.unknown, *ignored), field)


def count_tokens(body: dict[str, Any], model: ServedModel, request_id: str, settings: ServeSettings) -> dict[str, Any]:
    """How many tokens the prompt of a messages request has, also of one that does not fit. Raises `RequestError`."""
    fields, asked = _read(body, settings)
    request, _ = _request(fields.values, asked, request_id, settings)
    return {"input_tokens": len(model.prepare(request, any_length=True).tokens)}


def _read(body: dict[str, Any], settings: ServeSettings) -> tuple[Fields, MessagesFields]:
    fields = sort_fields(body, _NAMES, strict=settings.strict_fields)
    asked = convert(without_nulls(fields.values, ("thinking", "tool_choice", "output_config")), MessagesFields)
    for name in _NOT_OFFERED:
        if getattr(asked, name) not in (None, []):
            raise RequestError(f"{name} is not supported here", code="unsupported_parameter", param=name)
    return fields, asked


def _request(
    values: dict[str, Any], asked: MessagesFields, request_id: str, settings: ServeSettings
) -> tuple[GenerationRequest, tuple[str, ...]]:
    """The request, and the places of what is left out of it."""
    if asked.messages is None:
        raise RequestError("messages is required", param="messages")
    left_out = LeftOut()
    messages = parse_conversation(asked.system, asked.messages, left_out)
    offer = read_tools(asked.tools, MESSAGES, strict=settings.strict_fields)
    tools = offer.tools
    choice, ignored = _parse_choice(asked.tool_choice, offer)
    thinking = asked.thinking.type if asked.thinking is not None else "adaptive" if settings.think else "disabled"
    effort = asked.output_config.effort if asked.output_config is not None else None
    place = f"messages[{len(asked.messages) - 1}]"
    request = GenerationRequest(
        request_id=request_id,
        messages=messages,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=not (asked.tool_choice is not None and asked.tool_choice.disable_parallel_tool_use),
        output=_parse_output(asked.output_config, settings.strict_fields),
        sampling=SamplingParams(**SAMPLING.read(values)),
        max_tokens=asked.max_tokens,
        stop=parse_stops(asked.stop_sequences, "stop_sequences"),
        thinking=thinking != "disabled",
        thinking_optional=thinking == "adaptive" or not settings.strict_fields,
        thinking_budget=asked.thinking.budget_tokens if asked.thinking is not None else None,
        reasoning_effort="xhigh" if effort == "max" else effort,
        prefill_thinking=settings.prefill_thinking,
        continue_assistant=settings.continue_assistant and is_continued(messages, tools, place),
        cache_slot=asked.cache_slot,
        cache_prompt=asked.cache_prompt is not False,
    )
    return request, (*offer.left_out, *left_out.places, *ignored)


# --- the conversation -----------------------------------------------------------------------------------------------


def parse_conversation(system: Any, value: Any, left_out: LeftOut) -> tuple[Message, ...]:
    """`system` and `messages`. Raises `RequestError`."""
    if not isinstance(value, list):
        raise invalid_message("messages must be a list of messages", "messages")
    if not value:
        raise invalid_message("messages must hold at least one message", "messages")
    messages: list[Message] = []
    if system is not None:
        text = _join_text(system, "system", left_out, skip=_BILLING)
        if text:
            messages.append(Message("system", text))
    calls = CallBook()
    for index, item in enumerate(value):
        place = f"messages[{index}]"
        if not isinstance(item, dict):
            raise invalid_message(f"{place} must be an object with a role and content", place)
        role, content = item.get("role"), item.get("content")
        if role == "assistant":
            messages.append(_parse_assistant(content, place, calls, left_out))
        elif role == "user":
            messages += _parse_user(content, place, calls, left_out)
        elif role == "system":
            messages.append(Message("system", _join_text(content, f"{place}.content", left_out)))
        else:
            found = "is missing" if role is None else f"is {quoted(role)}"
            raise invalid_message(f"{place}.role {found}: it must be user or assistant", f"{place}.role")
    left_out.check()
    return tuple(messages)


def _parse_user(content: Any, place: str, calls: CallBook, left_out: LeftOut) -> list[Message]:
    """Text as one message, each tool's result as one of its own, in their order."""
    left_out.begin_user()
    messages: list[Message] = []
    texts: list[str] = []
    for block, where in _blocks_of(content, f"{place}.content"):
        if block.get("type") != "tool_result":
            texts.append(_block_text(block, where, left_out, by_user=True))
            continue
        if texts:
            messages.append(Message("user", "\n".join(texts)))
            texts = []
        call_id = block.get("tool_use_id")
        if call_id is not None and not isinstance(call_id, str):
            raise invalid_message(f"{where}.tool_use_id must be a string", f"{where}.tool_use_id")
        own_id = calls.note_result(call_id, f"{where}.tool_use_id")
        messages.append(Message("tool", _result_text(block, where, left_out), tool_call_id=own_id))
    if texts or not messages:
        messages.append(Message("user", "\n".join(texts)))
    return messages


def _result_text(block: dict[str, Any], place: str, left_out: LeftOut) -> str:
    content = block.get("content")
    text = "" if content is None else _join_text(content, f"{place}.content", left_out)
    if block.get("is_error") is True and not text.lower().startswith("error"):
        return f"Error: {text}"
    return text


def _parse_assistant(content: Any, place: str, calls: CallBook, left_out: LeftOut) -> Message:
    texts: list[str] = []
    reasoning: list[str] = []
    made: list[ToolCall] = []
    for block, where in _blocks_of("" if content is None else content, f"{place}.content"):
        kind = block.get("type")
        if kind == "thinking":
            reasoning.append(_text_of(block, "thinking", where))
        elif kind == "tool_use":
            call = _parse_call(block, where)
            made.append(replace(call, id=calls.note_call(call.id, f"{where}.id")))
        elif isinstance(kind, str) and kind in _HOSTED:
            left_out.places.append(f"{where}.{kind}")
        elif kind != "redacted_thinking":
            texts.append(_block_text(block, where, left_out))
    text = "".join(texts)
    return Message(
        "assistant",
        None if made and not text else text,
        reasoning="".join(reasoning) or None,
        tool_calls=tuple(made),
    )


def _parse_call(block: dict[str, Any], place: str) -> ToolCall:
    call_id, arguments = block.get("id"), block.get("input")
    if not isinstance(call_id, str) or not call_id:
        raise RequestError(f"{place}.id must be a string", code="invalid_tool_call", param=f"{place}.id")
    if arguments is not None and not isinstance(arguments, dict):
        raise RequestError(f"{place}.input must be an object", code="invalid_tool_call", param=f"{place}.input")
    name = check_tool_name(block.get("name"), f"{place}.name")
    return ToolCall(call_id, name, msgspec.json.encode(arguments or {}).decode())


def _blocks_of(content: Any, place: str) -> list[tuple[dict[str, Any], str]]:
    """Content as blocks with their places; a string is one text block."""
    if isinstance(content, str):
        return [({"type": "text", "text": content}, place)]
    if not isinstance(content, list):
        raise invalid_message(f"{place} must be a string or a list of blocks", place)
    for index, block in enumerate(content):
        if not isinstance(block, dict):
            raise invalid_message(f"{place}[{index}] must be an object with a type", f"{place}[{index}]")
    return [(block, f"{place}[{index}]") for index, block in enumerate(content)]


def _join_text(content: Any, place: str, left_out: LeftOut, *, skip: str | None = None) -> str:
    texts = [_block_text(block, where, left_out) for block, where in _blocks_of(content, place)]
    return "\n".join(text for text in texts if skip is None or not text.startswith(skip))


def _block_text(block: dict[str, Any], place: str, left_out: LeftOut, *, by_user: bool = False) -> str:
    kind = block.get("type")
    if isinstance(kind, str) and kind in OTHER_PARTS:
        return left_out.replace(kind, place, by_user=by_user)
    if kind != "text":
        raise unreadable(kind, place)
    return _text_of(block, "text", place)


def _text_of(block: dict[str, Any], field: str, place: str) -> str:
    text = block.get(field)
    if not isinstance(text, str):
        raise invalid_message(f"{place}.{field} must be a string", f"{place}.{field}")
    return text


# --- tools and formats ----------------------------------------------------------------------------------------------


def _parse_choice(value: ToolChoiceField | None, offer: Offer) -> tuple[ToolChoice, tuple[str, ...]]:
    """`tool_choice`, and what of it is ignored. Raises `RequestError`."""
    if value is None or value.type == "auto":
        return ToolChoice(), ()
    if value.type == "none":
        return ToolChoice("none"), ()
    if value.type == "any":
        return (ToolChoice("required"), ()) if offer.tools else (ToolChoice(), ("tool_choice",))
    if value.name is None:
        raise RequestError("tool_choice.name is required", param="tool_choice.name")
    if value.name not in {tool.name for tool in offer.tools}:
        raise RequestError(
            f"tool_choice names {quoted(value.name)}, which is not among the tools", param="tool_choice.name"
        )
    return ToolChoice("function", value.name), ()


def _parse_output(config: OutputConfig | None, strict: bool) -> OutputFormat:
    if config is None or config.format is None:
        return OutputFormat()
    place = "output_config.format"
    if not isinstance(config.format, dict) or config.format.get("type") != "json_schema":
        raise RequestError(f"{place}.type must be json_schema", code="unsupported_value", param=f"{place}.type")
    return schema_output(config.format.get("schema"), f"{place}.schema", strict)
