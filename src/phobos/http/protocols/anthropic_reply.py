"""Anthropic's replies: events in, a message or its stream of named events out. Requests are parsed in `anthropic.py`.

A message is a list of content blocks. `_Blocks` turns events into blocks, one open at a time, and both the whole
reply and the stream are made from what it says, so that they agree.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from phobos.chat.events import (
    Event,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
)
from phobos.http.reply import ReplyFacts
from phobos.http.transport.wire import Refusal, Response, bounded, json_response, to_json

PING = b'event: ping\ndata: {"type":"ping"}\n\n'
SIGNATURE = "phobos"  # reasoning is not signed here, and clients send this back as they got it

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
# What the checks of a model call a field, and what this protocol calls it.
_NAMES = {"enable_thinking": "thinking", "reasoning_effort": "output_config.effort", "response_format": "output_config"}


def anthropic_error(refusal: Refusal, request_id: str | None) -> Response:
    """A refusal in Anthropic's envelope."""
    body = {**_error(refusal), "request_id": request_id}
    return replace(json_response(body, refusal.status, refusal.headers), close=refusal.close)


def _error(refusal: Refusal) -> dict[str, Any]:
    message = refusal.message
    if refusal.param in _NAMES:
        message = message.replace(refusal.param, _NAMES[refusal.param], 1)
    kind = _ERROR_TYPES.get(refusal.status, "api_error" if refusal.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": bounded(message)}}


def _event(name: str, **fields: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + to_json({"type": name, **fields}) + b"\n\n"


@dataclass(frozen=True)
class _Opened:
    block: dict[str, Any]


@dataclass(frozen=True)
class _Grown:
    delta: dict[str, Any]


@dataclass(frozen=True)
class _Closed:
    pass


_Step = _Opened | _Grown | _Closed


class _Blocks:
    """Events to steps of content blocks; `index` is the open block's."""

    def __init__(self, *, omits_thinking: bool) -> None:
        self.index = -1
        self._kind: str | None = None
        self._omits_thinking = omits_thinking

    def push(self, event: Event) -> Iterator[_Step]:
        """The steps of one event. `index` holds for each step as it comes."""
        match event:
            case TextDelta() if event.text:
                if self._kind != "text":
                    yield from self._open("text", {"type": "text", "text": ""})
                yield _Grown({"type": "text_delta", "text": event.text})
            case ReasoningDelta() if event.text:
                if self._kind != "thinking":
                    yield from self._open("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                if not self._omits_thinking:
                    yield _Grown({"type": "thinking_delta", "thinking": event.text})
            case ToolCallStart():
                block = {"type": "tool_use", "id": event.id, "name": event.name, "input": {}}
                yield from self._open("tool_use", block)
            case ToolCallDelta() if event.arguments:
                yield _Grown({"type": "input_json_delta", "partial_json": event.arguments})
            case Finished():
                yield from self._close()

    def _open(self, kind: str, block: dict[str, Any]) -> Iterator[_Step]:
        yield from self._close()
        self.index += 1
        self._kind = kind
        yield _Opened(block)

    def _close(self) -> Iterator[_Step]:
        if self._kind == "thinking":
            yield _Grown({"type": "signature_delta", "signature": SIGNATURE})
        if self._kind is not None:
            self._kind = None
            yield _Closed()


class _Account:
    """What a message says of itself and of its tokens."""

    def __init__(self, facts: ReplyFacts) -> None:
        self._id = "msg_" + secrets.token_hex(12)
        self._model = facts.model
        self._started: Started | None = None
        self._finished: Finished | None = None

    def push(self, event: Event) -> None:
        """Note what concerns the books."""
        if isinstance(event, Started):
            self._started = event
        elif isinstance(event, Finished):
            self._finished = event

    def message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        """The message with what is known so far."""
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            **self.stop(),
            "usage": self.usage(),
        }

    def stop(self) -> dict[str, Any]:
        """Why it ended, and by which stop sequence."""
        end = self._finished
        if end is None:
            return {"stop_reason": None, "stop_sequence": None}
        reason = "stop_sequence" if end.stop_text is not None and end.reason == "stop" else _STOP_REASONS[end.reason]
        return {"stop_reason": reason, "stop_sequence": end.stop_text if reason == "stop_sequence" else None}

    def usage(self) -> dict[str, Any]:
        """Tokens; the prompt is split into what was computed and what a slot held already."""
        n_prompt = n_cached = n_generated = n_reasoning = 0
        if self._started is not None:
            n_prompt, n_cached = self._started.n_prompt, self._started.n_cached
        if self._finished is not None:
            counted = self._finished.usage
            n_prompt, n_cached = counted.n_prompt, counted.n_cached
            n_generated, n_reasoning = counted.n_generated, counted.n_reasoning
        return {
            "input_tokens": n_prompt - n_cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": n_cached,
            "output_tokens": n_generated,
            "output_tokens_details": {"thinking_tokens": n_reasoning},
        }


class MessageFold:
    """A whole message."""

    def __init__(self, facts: ReplyFacts, *, omits_thinking: bool) -> None:
        self._account = _Account(facts)
        self._blocks = _Blocks(omits_thinking=omits_thinking)
        self._content: list[dict[str, Any]] = []
        self._arguments = ""

    def push(self, choice: int, event: Event) -> None:
        """Take one event."""
        self._account.push(event)
        for step in self._blocks.push(event):
            if isinstance(step, _Opened):
                self._content.append(dict(step.block))
                self._arguments = ""
            elif isinstance(step, _Grown):
                self._grow(self._content[-1], step.delta)
            elif self._content[-1]["type"] == "tool_use":
                self._content[-1]["input"] = _read_arguments(self._arguments)

    def _grow(self, block: dict[str, Any], delta: dict[str, Any]) -> None:
        match delta["type"]:
            case "text_delta":
                block["text"] += delta["text"]
            case "thinking_delta":
                block["thinking"] += delta["thinking"]
            case "signature_delta":
                block["signature"] = delta["signature"]
            case _:
                self._arguments += delta["partial_json"]

    def reply(self) -> dict[str, Any]:
        """The reply's body."""
        return self._account.message(self._content)


def _read_arguments(text: str) -> dict[str, Any]:
    """A call's arguments as an object; those of a call that was cut off are no JSON, and are left out."""
    try:
        value = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


class MessageWriter:
    """A streamed message."""

    def __init__(self, facts: ReplyFacts, *, omits_thinking: bool) -> None:
        self._account = _Account(facts)
        self._blocks = _Blocks(omits_thinking=omits_thinking)

    def push(self, choice: int, event: Event) -> bytes:
        """The events of one event."""
        self._account.push(event)
        if isinstance(event, Started):
            return _event("message_start", message=self._account.message([])) + PING
        return b"".join(self._write(step) for step in self._blocks.push(event))

    def _write(self, step: _Step) -> bytes:
        index = self._blocks.index
        if isinstance(step, _Opened):
            return _event("content_block_start", index=index, content_block=step.block)
        if isinstance(step, _Grown):
            return _event("content_block_delta", index=index, delta=step.delta)
        return _event("content_block_stop", index=index)

    def end(self) -> bytes:
        """Why it ended, with the final counts, and the end mark."""
        delta = _event("message_delta", delta=self._account.stop(), usage=self._account.usage())
        return delta + _event("message_stop")

    def fail(self, refusal: Refusal) -> bytes:
        """One error event."""
        return b"event: error\ndata: " + to_json(_error(refusal)) + b"\n\n"


class MessageForm:
    """How `/v1/messages` replies."""

    heartbeat = PING

    def __init__(self, request_id: str, *, omits_thinking: bool) -> None:
        self._request_id = request_id
        self._omits_thinking = omits_thinking

    def fold(self, facts: ReplyFacts) -> MessageFold:
        """A collector for a whole message."""
        return MessageFold(facts, omits_thinking=self._omits_thinking)

    def writer(self, facts: ReplyFacts) -> MessageWriter:
        """A writer for a stream."""
        return MessageWriter(facts, omits_thinking=self._omits_thinking)

    def error(self, refusal: Refusal) -> Response:
        """Anthropic's envelope."""
        return anthropic_error(refusal, self._request_id)
