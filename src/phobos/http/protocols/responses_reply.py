"""Replies of `/v1/responses`: events in, a response or its stream of named events out. Requests: `responses.py`.

A response is a list of output items: reasoning, messages, function calls. `_Items` turns events into items, one open
at a time, and both the whole reply and the stream are made from what it says, so that they agree.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from phobos.chat.events import (
    Event,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
)
from phobos.http.protocols.ledger import shape_logprob
from phobos.http.protocols.tools import INPUT, Called
from phobos.http.reply import ReplyFacts
from phobos.http.transport.wire import SSE_HEARTBEAT, Refusal, Response, bounded, to_json

# What stands before a free-form tool's text, and characters of it that are all there.
_HEAD = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_WHOLE = re.compile(
    r'(?:[^"\\]|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4})*'
)
_Step = tuple[str, dict[str, Any]]
# What a call's id begins with, the name of its events, and the field that holds its text.
_CALLS = {
    "function_call": ("fc_", "function_call_arguments", "arguments"),
    "custom_tool_call": ("ctc_", "custom_tool_call_input", INPUT),
}
_TEXT = {"message": "output_text", "reasoning": "reasoning_text"}


class FreeText:
    """Takes the text of a free-form tool out of the JSON of its arguments, as it comes."""

    def __init__(self) -> None:
        self._rest = ""
        self._begun = False

    def push(self, piece: str) -> str:
        """What the next piece adds to the text."""
        self._rest += piece
        if not self._begun:
            head = _HEAD.match(self._rest)
            if head is None:
                return ""
            self._begun, self._rest = True, self._rest[head.end() :]
        whole = _WHOLE.match(self._rest)
        assert whole is not None
        self._rest = self._rest[whole.end() :]
        text: str = json.loads(f'"{whole[0]}"', strict=False)
        return text


class _Items:
    """Events to items and the stream's steps (an event's name and fields)."""

    def __init__(self, called: Mapping[str, Called]) -> None:
        self.done: list[dict[str, Any]] = []
        self._called = called
        self._free: FreeText | None = None
        self._item: dict[str, Any] | None = None
        self._pieces: list[str] = []
        self._logprobs: list[dict[str, Any]] = []

    def push(self, event: Event) -> Iterator[_Step]:
        """The steps of one event."""
        match event:
            case TextDelta() if event.text or event.logprobs:
                yield from self._speak("message", event.text, [shape_logprob(entry) for entry in event.logprobs])
            case ReasoningDelta() if event.text:
                yield from self._speak("reasoning", event.text, [])
            case ToolCallStart():
                yield from self._open(self._new_call(event))
            case ToolCallDelta() if event.arguments:
                text = event.arguments if self._free is None else self._free.push(event.arguments)
                if text:
                    self._pieces.append(text)
                    assert self._item is not None
                    yield f"response.{_CALLS[self._item['type']][1]}.delta", self._where() | {"delta": text}
            case Finished():
                yield from self._close(cut=event.reason == "length")

    def _new_call(self, event: ToolCallStart) -> dict[str, Any]:
        """A call that begins, by the name its tool was sent with."""
        called = self._called.get(event.name, Called(event.name))
        kind = "custom_tool_call" if called.is_free else "function_call"
        prefix, _, field = _CALLS[kind]
        self._free = FreeText() if called.is_free else None
        item = {"id": prefix + secrets.token_hex(12), "type": kind, "status": "in_progress", "call_id": event.id}
        namespace = {} if called.namespace is None else {"namespace": called.namespace}
        return {**item, "name": called.name, **namespace, field: ""}

    def _where(self) -> dict[str, Any]:
        assert self._item is not None
        return {"item_id": self._item["id"], "output_index": len(self.done)}

    def _speak(self, kind: str, text: str, logprobs: list[dict[str, Any]]) -> Iterator[_Step]:
        if self._item is None or self._item["type"] != kind:
            yield from self._open(_new_item(kind))
            yield "response.content_part.added", self._where() | {"content_index": 0, "part": _part(kind, "", [])}
        self._pieces.append(text)
        self._logprobs += logprobs
        fields = self._where() | {"content_index": 0, "delta": text}
        if kind == "message":
            fields["logprobs"] = logprobs
        yield f"response.{_TEXT[kind]}.delta", fields

    def _open(self, item: dict[str, Any]) -> Iterator[_Step]:
        yield from self._close(cut=False)
        self._item = item
        yield "response.output_item.added", {"output_index": len(self.done), "item": dict(item)}

    def _close(self, *, cut: bool) -> Iterator[_Step]:
        item = self._item
        if item is None:
            return
        where, text, logprobs = self._where(), "".join(self._pieces), self._logprobs
        self._pieces, self._logprobs = [], []
        if item["type"] in _CALLS:
            _, name, field = _CALLS[item["type"]]
            item[field] = text if text or cut or field == INPUT else "{}"
            yield f"response.{name}.done", where | {field: item[field]}
        else:
            kind = item["type"]
            part = _part(kind, text, logprobs)
            item["content"] = [part]
            fields = where | {"content_index": 0, "text": text}
            yield f"response.{_TEXT[kind]}.done", fields | ({"logprobs": logprobs} if kind == "message" else {})
            yield "response.content_part.done", where | {"content_index": 0, "part": part}
        item["status"] = "incomplete" if cut else "completed"
        yield "response.output_item.done", {"output_index": where["output_index"], "item": item}
        self.done.append(item)
        self._item = None


def _new_item(kind: str) -> dict[str, Any]:
    if kind == "message":
        shape: dict[str, Any] = {"id": "msg_" + secrets.token_hex(12), "type": kind, "role": "assistant"}
    else:
        shape = {"id": "rs_" + secrets.token_hex(12), "type": kind, "summary": []}
    return shape | {"status": "in_progress", "content": []}


def _part(kind: str, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    part: dict[str, Any] = {"type": _TEXT[kind], "text": text}
    return part | {"annotations": [], "logprobs": logprobs} if kind == "message" else part


class _Account:
    """The response object, as far as it has come. `echo` are the request's fields it repeats."""

    def __init__(self, facts: ReplyFacts, echo: Mapping[str, Any], called: Mapping[str, Called]) -> None:
        self._frame = {
            "id": "resp_" + secrets.token_hex(12),
            "object": "response",
            "created_at": facts.created,
            "model": facts.model,
        }
        self._echo = dict(echo)
        self._started: Started | None = None
        self._finished: Finished | None = None
        self.items = _Items(called)

    def push(self, event: Event) -> list[_Step]:
        """Take one event; the steps it comes to."""
        if isinstance(event, Started):
            self._started = event
        elif isinstance(event, Finished):
            self._finished = event
        return list(self.items.push(event))

    def status(self) -> str:
        """Where it stands."""
        if self._finished is None:
            return "in_progress"
        return "incomplete" if self._finished.reason == "length" else "completed"

    def response(self, error: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The response object."""
        status = self.status() if error is None else "failed"
        return {
            **self._frame,
            "status": status,
            "background": False,
            "completed_at": None,
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": list(self.items.done),
            "previous_response_id": None,
            "store": False,
            "truncation": "disabled",
            **self._echo,
            "usage": self._usage(),
            "x_phobos": {"seed": None if self._started is None else self._started.seed},
        }

    def _usage(self) -> dict[str, Any] | None:
        if self._finished is None:
            return None
        usage = self._finished.usage
        return {
            "input_tokens": usage.n_prompt,
            "input_tokens_details": {"cached_tokens": usage.n_cached, "cache_write_tokens": 0},
            "output_tokens": usage.n_generated,
            "output_tokens_details": {"reasoning_tokens": usage.n_reasoning},
            "total_tokens": usage.n_prompt + usage.n_generated,
        }


class ResponseFold:
    """A whole response."""

    def __init__(self, facts: ReplyFacts, echo: Mapping[str, Any], called: Mapping[str, Called]) -> None:
        self._account = _Account(facts, echo, called)

    def push(self, choice: int, event: Event) -> None:
        """Take one event."""
        self._account.push(event)

    def reply(self) -> dict[str, Any]:
        """The reply's body."""
        return self._account.response()


class ResponseWriter:
    """A streamed response."""

    def __init__(self, facts: ReplyFacts, echo: Mapping[str, Any], called: Mapping[str, Called]) -> None:
        self._account = _Account(facts, echo, called)
        self._n_sent = 0

    def _event(self, name: str, fields: Mapping[str, Any]) -> bytes:
        body = to_json({"type": name, "sequence_number": self._n_sent, **fields})
        self._n_sent += 1
        return b"event: " + name.encode() + b"\ndata: " + body + b"\n\n"

    def push(self, choice: int, event: Event) -> bytes:
        """The events of one event."""
        steps = self._account.push(event)
        if isinstance(event, Started):
            steps = [
                (f"response.{name}", {"response": self._account.response()}) for name in ("created", "in_progress")
            ]
        return b"".join(self._event(name, fields) for name, fields in steps)

    def end(self) -> bytes:
        """The whole response once more."""
        return self._event(f"response.{self._account.status()}", {"response": self._account.response()})

    def fail(self, refusal: Refusal) -> bytes:
        """One event that says what went wrong."""
        message = bounded(refusal.message)
        if not self._n_sent:
            return self._event("error", {"code": refusal.code, "message": message, "param": refusal.param})
        error = {"code": "server_error" if refusal.status >= 500 else refusal.code, "message": message}
        return self._event("response.failed", {"response": self._account.response(error)})


class ResponseForm:
    """How `/v1/responses` replies."""

    heartbeat = SSE_HEARTBEAT

    def __init__(self, echo: Mapping[str, Any], called: Mapping[str, Called]) -> None:
        self._echo = echo
        self._called = called

    def fold(self, facts: ReplyFacts) -> ResponseFold:
        """A collector for a whole response."""
        return ResponseFold(facts, self._echo, self._called)

    def writer(self, facts: ReplyFacts) -> ResponseWriter:
        """A writer for a stream."""
        return ResponseWriter(facts, self._echo, self._called)

    def error(self, refusal: Refusal) -> Response:
        """OpenAI's envelope."""
        return refusal.response()
