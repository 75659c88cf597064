"""OpenAI's replies: events in, a whole reply or a stream of chunks out. Requests are parsed in `openai.py`.

Both forms are fed the same events, so the joined stream is the whole reply. A chunk carries one kind of delta.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

import msgspec

import phobos
from phobos.chat.events import (
    Event,
    Finished,
    PromptLogprobs,
    ReasoningDelta,
    Started,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStart,
)
from phobos.chat.messages import GenerationRequest
from phobos.errors import RequestError
from phobos.http.protocols.ledger import Ledger, shape_logprob
from phobos.http.reply import ReplyFacts
from phobos.http.served import ServedTokenizer
from phobos.http.transport.wire import SSE_DONE, SSE_HEARTBEAT, Refusal, Response, sse, to_json

FINGERPRINT = f"phobos-{phobos.__version__}"


# --- what both endpoints share --------------------------------------------------------------------------------------


def _new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(12)


class _Replies:
    """What one reply says in each of its chunks."""

    def __init__(self, facts: ReplyFacts, kind: str, prefix: str) -> None:
        self.frame: dict[str, Any] = {
            "id": _new_id(prefix),
            "object": kind,
            "created": facts.created,
            "model": facts.model,
            "system_fingerprint": FINGERPRINT,
        }


# --- chat -----------------------------------------------------------------------------------------------------------


@dataclass
class _ChatChoice:
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    calls: dict[int, tuple[str, str, list[str]]] = field(default_factory=dict)
    reason: str | None = None

    def push(self, event: Event) -> None:
        match event:
            case TextDelta():
                self.text.append(event.text)
                self.logprobs.extend(event.logprobs)
            case ReasoningDelta():
                self.reasoning.append(event.text)
            case ToolCallStart():
                self.calls[event.index] = (event.id, event.name, [])
            case ToolCallDelta():
                self.calls[event.index][2].append(event.arguments)
            case Finished():
                self.reason = event.reason

    def message(self) -> dict[str, Any]:
        text = "".join(self.text)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if self.calls and not text else text,
            "refusal": None,
        }
        if self.reasoning:
            message["reasoning_content"] = "".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = [
                {"id": call_id, "type": "function", "function": {"name": name, "arguments": "".join(pieces) or "{}"}}
                for _, (call_id, name, pieces) in sorted(self.calls.items())
            ]
        return message

    def check_calls(self) -> None:
        """With strict tool calls, a call that is not whole is no answer."""
        for _, name, pieces in self.calls.values():
            try:
                whole = isinstance(msgspec.json.decode("".join(pieces) or "{}"), dict)
            except msgspec.DecodeError:
                whole = False
            if not whole or self.reason == "length":
                raise RequestError(
                    f"the call of {name} was cut off or is not valid: raise max_tokens or try again",
                    code="invalid_model_tool_call",
                    status=502,
                    kind="server_error",
                )


class ChatFold:
    """A whole chat reply."""

    def __init__(self, request: GenerationRequest, facts: ReplyFacts) -> None:
        self._request = request
        self._replies = _Replies(facts, "chat.completion", "chatcmpl-")
        self._ledger = Ledger(request.n)
        self._choices = [_ChatChoice() for _ in range(request.n)]

    def push(self, choice: int, event: Event) -> None:
        """Take one event."""
        self._ledger.push(choice, event)
        self._choices[choice].push(event)

    def reply(self) -> dict[str, Any]:
        """The reply's body."""
        with_logprobs = self._request.top_logprobs is not None
        choices = []
        for index, choice in enumerate(self._choices):
            if self._request.strict_tool_calls:
                choice.check_calls()
            logprobs = {"content": [shape_logprob(entry) for entry in choice.logprobs], "refusal": None}
            choices.append(
                {
                    "index": index,
                    "message": choice.message(),
                    "logprobs": logprobs if with_logprobs else None,
                    "finish_reason": choice.reason,
                }
            )
        return {**self._replies.frame, "choices": choices, "usage": self._ledger.usage(), **self._ledger.extras()}


class _ChunkWriter:
    """What the streams of both endpoints share; a text chunk is assembled from bytes made once."""

    def __init__(self, facts: ReplyFacts, kind: str, prefix: str, copies: int, include_usage: bool) -> None:
        self._frame = _Replies(facts, kind, prefix).frame
        self._ledger = Ledger(copies)
        self._include_usage = include_usage
        self._head = b"data: " + to_json(self._frame)[:-1] + b',"choices":[{"index":'
        self._tail = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._n_open = 0

    def _finish(self, choices: list[dict[str, Any]]) -> bytes:
        """A finish chunk; the last one carries what is known of the whole."""
        self._n_open -= 1
        extras = {} if self._n_open else self._ledger.extras()
        usage = {"usage": None} if self._include_usage else {}
        return sse({**self._frame, "choices": choices, **usage, **extras})

    def end(self) -> bytes:
        """The usage chunk, if it was asked for, and the end mark."""
        if not self._include_usage:
            return SSE_DONE
        return sse({**self._frame, "choices": [], "usage": self._ledger.usage()}) + SSE_DONE

    def fail(self, refusal: Refusal) -> bytes:
        """One error event and the end mark."""
        return sse(refusal.envelope()) + SSE_DONE


class ChatWriter(_ChunkWriter):
    """A streamed chat reply."""

    def __init__(self, request: GenerationRequest, facts: ReplyFacts, *, include_usage: bool) -> None:
        super().__init__(facts, "chat.completion.chunk", "chatcmpl-", request.n, include_usage)
        self._with_logprobs = request.top_logprobs is not None
        self._n_open = request.n

    def push(self, choice: int, event: Event) -> bytes:
        """The chunk of one event."""
        self._ledger.push(choice, event)
        match event:
            case TextDelta():
                if not event.text and not event.logprobs:
                    return b""
                return self._delta(choice, b'{"content":' + to_json(event.text) + b"}", event.logprobs)
            case ReasoningDelta():
                return self._delta(choice, b'{"reasoning_content":' + to_json(event.text) + b"}")
            case Started():
                return self._delta(choice, b'{"role":"assistant","content":""}')
            case ToolCallStart():
                function = {"name": event.name, "arguments": ""}
                call = {"index": event.index, "id": event.id, "type": "function", "function": function}
                return self._delta(choice, to_json({"tool_calls": [call]}))
            case ToolCallDelta():
                part = {"index": event.index, "function": {"arguments": event.arguments}}
                return self._delta(choice, to_json({"tool_calls": [part]}))
            case Finished():
                last = {"index": choice, "delta": {}, "logprobs": None, "finish_reason": event.reason}
                return self._finish([last])
        return b""

    def _delta(self, choice: int, delta: bytes, logprobs: tuple[TokenLogprob, ...] = ()) -> bytes:
        shown = b"null"
        if self._with_logprobs and logprobs:
            shown = to_json({"content": [shape_logprob(entry) for entry in logprobs], "refusal": None})
        middle = b',"logprobs":' + shown + b',"finish_reason":null}]'
        return self._head + str(choice).encode() + b',"delta":' + delta + middle + self._tail


class ChatForm:
    """How `/v1/chat/completions` replies."""

    heartbeat = SSE_HEARTBEAT

    def __init__(self, request: GenerationRequest, *, include_usage: bool) -> None:
        self._request = request
        self._include_usage = include_usage

    def fold(self, facts: ReplyFacts) -> ChatFold:
        """A collector for a whole reply."""
        return ChatFold(self._request, facts)

    def writer(self, facts: ReplyFacts) -> ChatWriter:
        """A writer for a stream."""
        return ChatWriter(self._request, facts, include_usage=self._include_usage)

    def error(self, refusal: Refusal) -> Response:
        """OpenAI's envelope."""
        return refusal.response()


# --- completions ----------------------------------------------------------------------------------------------------


def _by_spelling(entry: TokenLogprob) -> dict[str, float]:
    """The candidates by their texts: the best of those that are spelt alike, and the chosen token."""
    best: dict[str, float] = {}
    for candidate in (*entry.top, entry):
        best[candidate.text] = max(candidate.logprob, best.get(candidate.text, candidate.logprob))
    return best


class _CompletionChoice:
    """One choice's text so far; turns events into pieces of text with their log-probabilities."""

    def __init__(self, request: GenerationRequest, tokenizer: ServedTokenizer | None) -> None:
        self._with_logprobs = request.top_logprobs is not None
        self._n_chars = 0
        self._echo = ""
        if request.echo and not self._with_logprobs and tokenizer is not None:
            parts = (request.prompt,) if isinstance(request.prompt, str) else request.prompt or ()
            texts = (x if isinstance(x, str) else tokenizer.decode([x], special=True) for x in parts)
            self._echo = "".join(texts)
        self.text: list[str] = []
        self.logprobs: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        self.reason: str | None = None

    def piece(self, event: Event) -> tuple[str, dict[str, list[Any]] | None] | None:
        """The text an event adds and its legacy `logprobs`, or None where it adds nothing."""
        match event:
            case Started() if self._echo:
                return self._add(self._echo, ())
            case PromptLogprobs():
                return self._add("".join(entry.text for entry in event.tokens), event.tokens, first_unknown=True)
            case TextDelta() if event.text or event.logprobs:
                return self._add(event.text, event.logprobs)
            case Finished():
                self.reason = event.reason
        return None

    def _add(
        self, text: str, entries: tuple[TokenLogprob, ...], *, first_unknown: bool = False
    ) -> tuple[str, dict[str, list[Any]] | None]:
        self.text.append(text)
        start, self._n_chars = self._n_chars, self._n_chars + len(text)
        if not self._with_logprobs:
            return text, None
        part: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for index, entry in enumerate(entries):
            unknown = first_unknown and index == 0
            part["tokens"].append(entry.text)
            part["token_logprobs"].append(None if unknown else entry.logprob)
            part["top_logprobs"].append(None if unknown else _by_spelling(entry))
            part["text_offset"].append(start)
            start += len(entry.text)
        for name, values in part.items():
            self.logprobs[name].extend(values)
        return text, part


class CompletionFold:
    """A whole completion reply."""

    def __init__(self, requests: tuple[GenerationRequest, ...], facts: ReplyFacts) -> None:
        self._replies = _Replies(facts, "text_completion", "cmpl-")
        self._with_logprobs = requests[0].top_logprobs is not None
        self._ledger = Ledger(requests[0].n)
        self._choices = _completion_choices(requests, facts)

    def push(self, choice: int, event: Event) -> None:
        """Take one event."""
        self._ledger.push(choice, event)
        self._choices[choice].piece(event)

    def reply(self) -> dict[str, Any]:
        """The reply's body."""
        choices = [
            {
                "index": index,
                "text": "".join(choice.text),
                "logprobs": choice.logprobs if self._with_logprobs else None,
                "finish_reason": choice.reason,
            }
            for index, choice in enumerate(self._choices)
        ]
        return {**self._replies.frame, "choices": choices, "usage": self._ledger.usage(), **self._ledger.extras()}


class CompletionWriter(_ChunkWriter):
    """A streamed completion reply."""

    def __init__(self, requests: tuple[GenerationRequest, ...], facts: ReplyFacts, *, include_usage: bool) -> None:
        super().__init__(facts, "text_completion", "cmpl-", requests[0].n, include_usage)
        self._choices = _completion_choices(requests, facts)
        self._n_open = len(self._choices)

    def push(self, choice: int, event: Event) -> bytes:
        """The chunk of one event."""
        self._ledger.push(choice, event)
        piece = self._choices[choice].piece(event)
        if piece is not None:
            text, logprobs = piece
            middle = b',"logprobs":' + to_json(logprobs) + b',"finish_reason":null}]'
            return self._head + str(choice).encode() + b',"text":' + to_json(text) + middle + self._tail
        if isinstance(event, Finished):
            return self._finish([{"index": choice, "text": "", "logprobs": None, "finish_reason": event.reason}])
        return b""


def _completion_choices(requests: tuple[GenerationRequest, ...], facts: ReplyFacts) -> list[_CompletionChoice]:
    return [_CompletionChoice(request, facts.tokenizer) for request in requests for _ in range(request.n)]


class CompletionForm:
    """How `/v1/completions` replies."""

    heartbeat = SSE_HEARTBEAT

    def __init__(self, requests: tuple[GenerationRequest, ...], *, include_usage: bool) -> None:
        self._requests = requests
        self._include_usage = include_usage

    def fold(self, facts: ReplyFacts) -> CompletionFold:
        """A collector for a whole reply."""
        return CompletionFold(self._requests, facts)

    def writer(self, facts: ReplyFacts) -> CompletionWriter:
        """A writer for a stream."""
        return CompletionWriter(self._requests, facts, include_usage=self._include_usage)

    def error(self, refusal: Refusal) -> Response:
        """OpenAI's envelope."""
        return refusal.response()
