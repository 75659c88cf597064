"""The `messages` of a chat request, checked and turned into `Message`s.

Text parts are joined; developer reads as system. Every fault is a `RequestError` whose `param` is the place in the
list (`messages[2].content`). A tool's result must answer one call that is known and has no answer yet.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from phobos.chat.messages import Message, Role, ToolCall, ToolSpec
from phobos.errors import RequestError
from phobos.http.protocols.history import OTHER_PARTS, CallBook, LeftOut, invalid_message, mend_arguments, unreadable
from phobos.http.protocols.tools import check_tool_name
from phobos.http.transport.wire import quoted

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}

RESERVED_KWARGS = frozenset(
    {
        *("self", "messages", "documents", "add_generation_prompt"),
        *("tools", "functions", "xml_tools"),
        *("bos_token", "eos_token", "unk_token", "pad_token"),
    }
)


def split_template_kwargs(given: dict[str, Any] | None) -> tuple[dict[str, Any], bool | None]:
    """What goes to the template as it is, and whether it is told to reason. Raises `RequestError` for names that are
    the server's own."""
    kwargs = dict(given or {})
    reserved = sorted(RESERVED_KWARGS & kwargs.keys())
    if reserved:
        param = f"chat_template_kwargs.{reserved[0]}"
        raise RequestError(f"{param} cannot be set: it is the server's own", param=param)
    thinking = kwargs.pop("enable_thinking", None)
    if thinking is not None and not isinstance(thinking, bool):
        param = "chat_template_kwargs.enable_thinking"
        raise RequestError(f"{param} must be true or false", param=param)
    return kwargs, thinking


def parse_messages(value: Any, left_out: LeftOut) -> tuple[Message, ...]:
    """The conversation. Raises `RequestError`."""
    param = "messages"
    if not isinstance(value, list):
        raise invalid_message(f"{param} must be a list of messages", param)
    if not value:
        raise invalid_message(f"{param} must hold at least one message", param)
    calls = CallBook()
    messages = []
    for index, item in enumerate(value):
        place = f"{param}[{index}]"
        if not isinstance(item, dict):
            raise invalid_message(f"{place} must be an object with a role and content", place)
        message = _parse_message(item, place, left_out)
        made = tuple(replace(call, id=calls.note_call(call.id, f"{place}.tool_calls")) for call in message.tool_calls)
        message = replace(message, tool_calls=made)
        if message.role == "tool":
            own_id = calls.note_result(message.tool_call_id, f"{place}.tool_call_id")
            message = replace(message, tool_call_id=own_id)
        messages.append(message)
    left_out.check()
    return tuple(messages)


def is_continued(messages: tuple[Message, ...], tools: tuple[ToolSpec, ...], place: str) -> bool:
    """Whether the last message is the assistant's and to be continued; `place` names it. Raises `RequestError` where
    it cannot be."""
    last = messages[-1]
    if last.role != "assistant":
        return False
    if last.tool_calls or (tools and last.content):
        raise invalid_message(f"{place}: an assistant message cannot be continued together with tools", place)
    if not last.content:
        return False
    if last.content[-1].isspace():
        raise invalid_message(
            f"{place}: an assistant message that is to be continued must not end in white space", f"{place}.content"
        )
    return True


def _parse_message(item: dict[str, Any], place: str, left_out: LeftOut) -> Message:
    name = item.get("role")
    if not isinstance(name, str) or name not in _ROLES:
        known = ", ".join(_ROLES)
        found = "is missing" if name is None else f"is {quoted(name)}"
        raise invalid_message(f"{place}.role {found}: it must be one of {known}", f"{place}.role")
    role = _ROLES[name]
    calls = _parse_calls(item.get("tool_calls"), f"{place}.tool_calls")
    if calls and role != "assistant":
        raise invalid_message(f"{place}.tool_calls belongs to assistant messages", f"{place}.tool_calls")
    reasoning = _text_field(item, "reasoning_content", place) or _text_field(item, "reasoning", place)
    if role == "user":
        left_out.begin_user()
    content = _parse_content(item.get("content"), f"{place}.content", left_out, by_user=role == "user")
    if content is None:
        if role == "tool" or (role == "assistant" and not calls) or (calls and reasoning):
            content = ""
        elif not calls:
            raise invalid_message(f"{place}.content is required for role {name}", f"{place}.content")
    return Message(
        role,
        content,
        reasoning=reasoning,
        tool_calls=calls,
        tool_call_id=_text_field(item, "tool_call_id", place),
        name=_text_field(item, "name", place),
    )


def _text_field(item: dict[str, Any], name: str, place: str) -> str | None:
    value = item.get(name)
    if value is not None and not isinstance(value, str):
        raise invalid_message(f"{place}.{name} must be a string", f"{place}.{name}")
    return value


def _parse_content(value: Any, place: str, left_out: LeftOut, *, by_user: bool) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise invalid_message(f"{place} must be a string or a list of parts", place)
    parts = enumerate(value)
    return "".join(_parse_part(part, f"{place}[{index}]", left_out, by_user=by_user) for index, part in parts)


def _parse_part(part: Any, place: str, left_out: LeftOut, *, by_user: bool) -> str:
    if not isinstance(part, dict):
        raise invalid_message(f"{place} must be an object with a type", place)
    kind = part.get("type")
    field = "refusal" if kind == "refusal" else "text"
    if isinstance(kind, str) and kind in OTHER_PARTS:
        return left_out.replace(kind, place, by_user=by_user)
    if kind not in ("text", "refusal"):
        raise unreadable(kind, place)
    text = part.get(field)
    if not isinstance(text, str):
        raise invalid_message(f"{place}.{field} must be a string", f"{place}.{field}")
    return text


def _parse_calls(value: Any, place: str) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise _invalid_call(f"{place} must be a list", place)
    return tuple(_parse_call(item, f"{place}[{index}]") for index, item in enumerate(value))


def _parse_call(item: Any, place: str) -> ToolCall:
    function = item.get("function") if isinstance(item, dict) else None
    if not isinstance(function, dict) or item.get("type", "function") != "function":
        raise _invalid_call(f"{place} must be a function call with a function object", place)
    call_id = item.get("id")
    if not isinstance(call_id, str) or not call_id:
        raise _invalid_call(f"{place}.id must be a string", f"{place}.id")
    name = check_tool_name(function.get("name"), f"{place}.function.name")
    return ToolCall(call_id, name, _parse_arguments(function.get("arguments"), f"{place}.function.arguments"))


def _parse_arguments(value: Any, place: str) -> str:
    """The JSON text of an object, as it was sent where it was sent as text, so that numbers keep every digit; what was
    cut off is closed."""
    if value is None or value == "":
        return "{}"
    if isinstance(value, dict):
        return msgspec.json.encode(value).decode()
    if isinstance(value, str):
        return mend_arguments(value)
    raise _invalid_call(f"{place} must be the JSON text of an object", place)


def _invalid_call(message: str, param: str) -> RequestError:
    return RequestError(message, code="invalid_tool_call", param=param)
