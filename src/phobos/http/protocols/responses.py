"""OpenAI's Responses API, stateless: fields in, a `Job` out. Replies are made in `responses_reply.py`.

Input items become the messages every protocol shares: what the assistant thought, said and called between two others'
turns is one message. Nothing is stored: what would need an earlier response is refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from phobos.chat.messages import (
    MAX_TOP_LOGPROBS,
    GenerationRequest,
    Message,
    OutputFormat,
    SamplingParams,
    ToolCall,
    ToolChoice,
    ToolSpec,
)
from phobos.errors import RequestError
from phobos.http.generation import Job
from phobos.http.protocols.conversation import CallBook, check_tool_name, is_continued, parse_flat_tools
from phobos.http.protocols.fields import convert, sort_fields
from phobos.http.protocols.openai import parse_output, schema_output
from phobos.http.protocols.responses_reply import ResponseDialect
from phobos.http.protocols.sampling import SAMPLING
from phobos.http.transport.wire import quoted
from phobos.settings import ServeSettings

_Natural = Annotated[int, Meta(ge=0)]
_Count = Annotated[int, Meta(ge=1)]
_Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]

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
    max_output_tokens: _Count | None = None
    max_tool_calls: Any = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    include: list[str] | None = None
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    text: TextField | None = None
    reasoning: ReasoningField | None = None
    enable_thinking: bool | None = None
    thinking_budget: _Natural | None = None
    stream: bool | None = None
    stream_options: Any = None
    truncation: Literal["auto", "disabled"] | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    cache_slot: _Natural | None = None
    cache_prompt: bool | None = None


_NAMES = frozenset(ResponsesFields.__struct_fields__) | SAMPLING.names


def parse_response_job(body: dict[str, Any], request_id: str, settings: ServeSettings) -> Job:
    """A responses request. Raises `RequestError`."""
    fields = sort_fields(body, _NAMES, strict=settings.strict_fields)
    asked = convert(_without_nulls(fields.values), ResponsesFields)
    _refuse_what_is_not_here(asked)
    messages, place = parse_input(asked.instructions, asked.input)
    tools = parse_flat_tools(asked.tools, kinds=("function",), schema="parameters", strict=settings.strict_fields)
    effort = asked.reasoning.effort if asked.reasoning is not None else None
    thinking = asked.enable_thinking if asked.enable_thinking is not None else effort not in (None, "none")
    sampling = SamplingParams(**SAMPLING.read(fields.values))
    request = GenerationRequest(
        request_id=request_id,
        messages=messages,
        tools=tools,
        tool_choice=_parse_choice(asked.tool_choice, tools),
        parallel_tool_calls=asked.parallel_tool_calls is not False,
        output=_parse_format(asked.text, settings.strict_fields),
        sampling=sampling,
        max_tokens=asked.max_output_tokens,
        top_logprobs=_parse_logprobs(asked),
        thinking=thinking,
        thinking_budget=asked.thinking_budget,
        reasoning_effort=effort,
        prefill_thinking=settings.prefill_thinking,
        continue_assistant=settings.continue_assistant and is_continued(messages, tools, place),
        cache_slot=asked.cache_slot,
        cache_prompt=asked.cache_prompt is not False,
    )
    dialect = ResponseDialect(_echo(asked, sampling, body.get("metadata")))
    return Job((request,), bool(asked.stream), asked.model, dialect, fields.unknown)


def _without_nulls(values: dict[str, Any]) -> dict[str, Any]:
    """Null equals absent in the option objects too."""
    return {
        name: {k: v for k, v in value.items() if v is not None}
        if name in ("reasoning", "text") and isinstance(value, dict)
        else value
        for name, value in values.items()
    }


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
    if asked.truncation == "auto":
        raise RequestError(
            "truncation must be disabled: nothing is cut out of a prompt", code="unsupported_value", param="truncation"
        )
    for name in asked.include or ():
        if name not in _INCLUDES:
            raise RequestError(f"include: {quoted(name)} is not here", code="unsupported_value", param="include")


def _parse_logprobs(asked: ResponsesFields) -> int | None:
    if asked.top_logprobs or _LOGPROBS in (asked.include or ()):
        return asked.top_logprobs or 0
    return None


def _parse_choice(value: Any, tools: tuple[ToolSpec, ...]) -> ToolChoice:
    if value is None:
        return ToolChoice()
    if isinstance(value, dict) and value.get("type") == "function":
        name = value.get("name")
        if not isinstance(name, str):
            raise RequestError("tool_choice.name is required", param="tool_choice")
        if name not in {tool.name for tool in tools}:
            raise RequestError(f"tool_choice names {quoted(name)}, which is not among the tools", param="tool_choice")
        return ToolChoice("function", name)
    if not isinstance(value, str) or value not in ("auto", "none", "required"):
        raise RequestError("tool_choice must be auto, none, required or a named function", param="tool_choice")
    if value == "required" and not tools:
        raise RequestError("tool_choice is required, but there are no tools", param="tool_choice")
    return ToolChoice("required" if value == "required" else "none" if value == "none" else "auto")


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


# --- input items ----------------------------------------------------------------------------------------------------


class _Turn:
    """What the assistant thought, said and called between two others' turns."""

    def __init__(self) -> None:
        self.reasoning: list[str] = []
        self.texts: list[str] = []
        self.calls: list[ToolCall] = []

    def message(self) -> Message | None:
        """The turn as one message; None where there was none."""
        if not (self.reasoning or self.texts or self.calls):
            return None
        text = "".join(self.texts)
        content = None if self.calls and not text else text
        return Message("assistant", content, reasoning="".join(self.reasoning) or None, tool_calls=tuple(self.calls))


def parse_input(instructions: str | None, value: Any) -> tuple[tuple[Message, ...], str]:
    """`instructions` and `input` as messages, and where the last item stands. Raises `RequestError`."""
    messages = [Message("system", instructions)] if instructions else []
    if isinstance(value, str):
        return (*messages, Message("user", value)), "input"
    if value is None:
        raise RequestError("input is required", param="input")
    if not isinstance(value, list) or not value:
        raise _invalid("input must be text or a list of at least one item", "input")
    calls = CallBook()
    turn = _Turn()
    for index, item in enumerate(value):
        place = f"input[{index}]"
        if not isinstance(item, dict):
            raise _invalid(f"{place} must be an object", place)
        message = _parse_item(item, place, turn, calls)
        if message is not None:
            messages += [m for m in (turn.message(),) if m is not None]
            messages.append(message)
            turn = _Turn()
    messages += [m for m in (turn.message(),) if m is not None]
    return tuple(messages), f"input[{len(value) - 1}]"


def _parse_item(item: dict[str, Any], place: str, turn: _Turn, calls: CallBook) -> Message | None:
    """A message of another's turn, or None where the item joined the assistant's `turn`."""
    kind = item.get("type", "message")
    if kind == "message":
        role = item.get("role")
        text = _join_text(item.get("content"), f"{place}.content")
        if role == "assistant":
            turn.texts.append(text)
            return None
        if role not in ("user", "system", "developer"):
            found = "is missing" if role is None else f"is {quoted(role)}"
            raise _invalid(f"{place}.role {found}: use user, assistant, system or developer", f"{place}.role")
        return Message("user" if role == "user" else "system", text)
    if kind == "function_call":
        turn.calls.append(_parse_call(item, place))
        calls.note_call(turn.calls[-1].id, f"{place}.call_id")
        return None
    if kind == "function_call_output":
        call_id = item.get("call_id")
        if call_id is not None and not isinstance(call_id, str):
            raise _invalid(f"{place}.call_id must be a string", f"{place}.call_id")
        calls.note_result(call_id, f"{place}.call_id")
        return Message("tool", _join_text(item.get("output"), f"{place}.output"), tool_call_id=call_id)
    if kind == "reasoning":
        if item.get("content") is not None:
            turn.reasoning.append(_join_text(item["content"], f"{place}.content"))
        elif item.get("summary") is not None:
            turn.reasoning.append(_join_text(item["summary"], f"{place}.summary"))
        return None
    raise RequestError(
        f"{place}.type {quoted(kind)} is not supported here", code="unsupported_content", param=f"{place}.type"
    )


def _parse_call(item: dict[str, Any], place: str) -> ToolCall:
    call_id, arguments = item.get("call_id"), item.get("arguments")
    if not isinstance(call_id, str) or not call_id:
        raise RequestError(f"{place}.call_id must be a string", code="invalid_tool_call", param=f"{place}.call_id")
    name = check_tool_name(item.get("name"), f"{place}.name")
    try:
        fits = isinstance(arguments, str) and isinstance(msgspec.json.decode(arguments or "{}"), dict)
    except (msgspec.DecodeError, RecursionError):
        fits = False
    if not fits:
        where = f"{place}.arguments"
        raise RequestError(f"{where} must be the JSON text of an object", code="invalid_tool_call", param=where)
    return ToolCall(call_id, name, arguments or "{}")


_TEXT_PARTS = frozenset({"input_text", "output_text", "text", "reasoning_text", "summary_text"})


def _join_text(content: Any, place: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _invalid(f"{place} must be a string or a list of parts", place)
    texts = []
    for index, part in enumerate(content):
        where = f"{place}[{index}]"
        if not isinstance(part, dict):
            raise _invalid(f"{where} must be an object with a type", where)
        kind = part.get("type")
        field = "refusal" if kind == "refusal" else "text"
        if not isinstance(kind, str) or (kind != "refusal" and kind not in _TEXT_PARTS):
            raise RequestError(
                f"{where}.type {quoted(kind)} is not supported: this model reads text only",
                code="unsupported_content",
                param=f"{where}.type",
            )
        if not isinstance(part.get(field), str):
            raise _invalid(f"{where}.{field} must be a string", f"{where}.{field}")
        texts.append(part[field])
    return "".join(texts)


def _invalid(message: str, param: str) -> RequestError:
    return RequestError(message, code="invalid_message", param=param)
