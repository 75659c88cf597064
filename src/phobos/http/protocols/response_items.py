"""The input items of a Responses request as the messages every protocol shares: what the assistant thought, said and
called between two others' turns is one message."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from phobos.chat.messages import Message, ToolCall
from phobos.errors import RequestError
from phobos.http.protocols.history import OTHER_PARTS, CallBook, LeftOut, invalid_message, mend_arguments, unreadable
from phobos.http.protocols.tools import INPUT, Offer, check_tool_name
from phobos.http.transport.wire import quoted

_TEXT_PARTS = frozenset({"input_text", "output_text", "text", "reasoning_text", "summary_text"})


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


def parse_input(
    instructions: str | None, value: Any, offer: Offer, left_out: LeftOut
) -> tuple[tuple[Message, ...], str]:
    """`instructions` and `input` as messages, and where the last item stands. Raises `RequestError`."""
    messages = [Message("system", instructions)] if instructions else []
    if isinstance(value, str):
        return (*messages, Message("user", value)), "input"
    if value is None:
        raise RequestError("input is required", param="input")
    if not isinstance(value, list) or not value:
        raise invalid_message("input must be text or a list of at least one item", "input")
    reader = _Reader(offer, left_out)
    turn = _Turn()
    for index, item in enumerate(value):
        place = f"input[{index}]"
        if not isinstance(item, dict):
            raise invalid_message(f"{place} must be an object", place)
        message = reader.read(item, place, turn)
        if message is not None:
            messages += [m for m in (turn.message(),) if m is not None]
            messages.append(message)
            turn = _Turn()
    messages += [m for m in (turn.message(),) if m is not None]
    left_out.check()
    if not messages:
        raise invalid_message("input must hold at least one message", "input")
    return tuple(messages), f"input[{len(value) - 1}]"


class _Reader:
    """Reads the items of one conversation."""

    def __init__(self, offer: Offer, left_out: LeftOut) -> None:
        self._offer = offer
        self._left_out = left_out
        self._calls = CallBook()

    def read(self, item: dict[str, Any], place: str, turn: _Turn) -> Message | None:
        """A message of another's turn, or None where the item joined the assistant's `turn` or is left out: items of
        tools that a host runs, and references to what a host keeps."""
        kind = item.get("type", "message")
        if kind == "message":
            return self._message(item, place, turn)
        if kind in ("function_call", "custom_tool_call"):
            call = self._call(item, place, is_free=kind == "custom_tool_call")
            turn.calls.append(replace(call, id=self._calls.note_call(call.id, f"{place}.call_id")))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            call_id = item.get("call_id")
            if call_id is not None and not isinstance(call_id, str):
                raise invalid_message(f"{place}.call_id must be a string", f"{place}.call_id")
            own_id = self._calls.note_result(call_id, f"{place}.call_id")
            return Message("tool", self._join(item.get("output"), f"{place}.output"), tool_call_id=own_id)
        elif kind == "reasoning":
            for field in ("content", "summary"):
                if item.get(field) is not None:
                    turn.reasoning.append(self._join(item[field], f"{place}.{field}"))
                    break
        elif isinstance(kind, str):
            self._left_out.places.append(f"{place}.{kind}")
        else:
            raise invalid_message(f"{place}.type must be a string", f"{place}.type")
        return None

    def _message(self, item: dict[str, Any], place: str, turn: _Turn) -> Message | None:
        role = item.get("role")
        if role == "user":
            self._left_out.begin_user()
        text = self._join(item.get("content"), f"{place}.content", by_user=role == "user")
        if role == "assistant":
            turn.texts.append(text)
            return None
        if role not in ("user", "system", "developer"):
            found = "is missing" if role is None else f"is {quoted(role)}"
            raise invalid_message(f"{place}.role {found}: use user, assistant, system or developer", f"{place}.role")
        return Message("user" if role == "user" else "system", text)

    def _call(self, item: dict[str, Any], place: str, *, is_free: bool) -> ToolCall:
        call_id, field = item.get("call_id"), INPUT if is_free else "arguments"
        if not isinstance(call_id, str) or not call_id:
            raise RequestError(f"{place}.call_id must be a string", code="invalid_tool_call", param=f"{place}.call_id")
        name = check_tool_name(item.get("name"), f"{place}.name")
        text = item.get(field)
        if not isinstance(text, str):
            where = f"{place}.{field}"
            raise RequestError(f"{where} must be a string", code="invalid_tool_call", param=where)
        namespace = item.get("namespace")
        offered = self._offer.find(name, namespace if isinstance(namespace, str) else None)
        arguments = json.dumps({INPUT: text}, ensure_ascii=False) if is_free else mend_arguments(text)
        return ToolCall(call_id, offered or name, arguments)

    def _join(self, content: Any, place: str, *, by_user: bool = False) -> str:
        if isinstance(content, str):
            return content
        if not isinstance(content, list):
            raise invalid_message(f"{place} must be a string or a list of parts", place)
        parts = enumerate(content)
        return "".join(self._part(part, f"{place}[{index}]", by_user=by_user) for index, part in parts)

    def _part(self, part: Any, place: str, *, by_user: bool) -> str:
        if not isinstance(part, dict):
            raise invalid_message(f"{place} must be an object with a type", place)
        kind = part.get("type")
        if isinstance(kind, str) and kind in OTHER_PARTS:
            return self._left_out.replace(kind, place, by_user=by_user)
        field = "refusal" if kind == "refusal" else "text"
        if not isinstance(kind, str) or (kind != "refusal" and kind not in _TEXT_PARTS):
            raise unreadable(kind, place)
        text = part.get(field)
        if not isinstance(text, str):
            raise invalid_message(f"{place}.{field} must be a string", f"{place}.{field}")
        return text
