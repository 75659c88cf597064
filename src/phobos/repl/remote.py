"""A partner behind a server: the weights and the cache are the server's, shared with its other clients.

Speaks the OpenAI interface, streamed, and reads Phobos's own additions (`timings`, the routes of llama-server) where
they are; so other servers work too, with less to show.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from phobos.chat.events import (
    Event,
    Failed,
    Finished,
    FinishReason,
    ReasoningDelta,
    Sink,
    Started,
    Submission,
    TextDelta,
    Timings,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from phobos.chat.messages import GenerationRequest
from phobos.errors import PhobosError, RequestError, UnavailableError
from phobos.repl.http_client import Call, HttpClient, ServerAddress, error_of, parse_address, read_refusal
from phobos.repl.partner import PartnerInfo, Token, Verdict
from phobos.repl.transcript import message_object
from phobos.sampling_fields import FIELDS

LOCAL_SERVER = ServerAddress("127.0.0.1", 8080)
GREETING = "phobos-inference"
PROBE_S = 0.5  # a server on this machine says at once that it is there
_REASONS: dict[str, FinishReason] = {"length": "length", "tool_calls": "tool_calls"}


def find_server(api_key: str | None, model_file: Path | None) -> HttpClient | None:
    """Phobos on this machine's usual port, if it is there and lets us in; with `model_file` only if it has that
    model."""
    client = HttpClient(LOCAL_SERVER, api_key)
    try:
        if client.ask("GET", "/", connect_s=PROBE_S, read_s=PROBE_S) != GREETING:
            return None
        if model_file is not None:
            props = client.ask("GET", "/props", read_s=None)
            return client if isinstance(props, dict) and props.get("model_path") == model_file.name else None
        client.ask("GET", "/metrics", read_s=PROBE_S * 4)  # answers at any time, to those who have the key
    except PhobosError:
        return None
    return client


def open_remote(address: str, api_key: str | None, notify: Callable[[str], None]) -> RemotePartner:
    """Attach to the server at an address; waits for it while it loads. Raises `PhobosError`."""
    return attach(HttpClient(parse_address(address), api_key), notify)


def attach(client: HttpClient, notify: Callable[[str], None]) -> RemotePartner:
    """Ask a server what it has."""
    status, _ = client.fetch("GET", "/health", read_s=10.0)
    if status == 503:
        notify(f"{client.address} is loading its model …")
    listed = client.ask("GET", "/v1/models", read_s=None)
    models = listed.get("data") if isinstance(listed, dict) else None
    if not isinstance(models, list) or not models or not isinstance(models[0], dict):
        raise UnavailableError(f"{client.address} lists no model: it is not a chat server")
    return RemotePartner(client, models)


class RemoteTicket:
    """A request under way. Its reader is a thread of its own."""

    def __init__(self, call: Call, sink: Sink) -> None:
        self._call = call
        self._sink = sink
        self._lock = threading.RLock()
        self._is_over = False

    def deliver(self, event: Event) -> None:
        """Give an event on, unless all is over."""
        with self._lock:
            if not self._is_over:
                self._is_over = isinstance(event, Finished | Failed)
                self._sink(event)

    def cancel(self) -> None:
        """Close the connection: the server ends the request."""
        with self._lock:
            self._is_over = True
        self._call.close()


class RemotePartner:
    """See the module and `partner.Partner`."""

    failure: PhobosError | None = None  # a server may come back: every request finds out anew

    def __init__(self, client: HttpClient, models: list[dict[str, Any]]) -> None:
        self._client = client
        self._models = [str(model.get("id")) for model in models]
        first = models[0]
        meta = first["meta"] if isinstance(first.get("meta"), dict) else {}
        capabilities = first.get("capabilities")
        known = isinstance(capabilities, list)
        n_ctx = first.get("context_length") or first.get("max_model_len") or meta.get("n_ctx")
        self._info = PartnerInfo(
            model=str(meta.get("name") or first.get("id")),
            where=str(client.address),
            detail=", ".join(str(meta[key]) for key in ("architecture", "quantization") if meta.get(key)),
            n_ctx=n_ctx if isinstance(n_ctx, int) else None,
            has_chat=not known or "chat" in (capabilities or ()),
            can_think=not known or "reasoning" in (capabilities or ()),
        )
        self._can_decide: bool | None = None

    @property
    def info(self) -> PartnerInfo:
        """What is talked to."""
        return self._info

    def submit(self, request: GenerationRequest, sink: Sink) -> Submission:
        """Send it; a thread reads what comes back."""
        path = "/v1/chat/completions" if request.is_chat else "/v1/completions"
        call = self._client.open()
        ticket = RemoteTicket(call, sink)
        body = request_body(request, self._models[0])
        reader = threading.Thread(target=self._read, args=(call, ticket, path, body), name="chat-reader", daemon=True)
        reader.start()
        return ticket

    def _read(self, call: Call, ticket: RemoteTicket, path: str, body: dict[str, Any]) -> None:
        try:
            status = self._client.send(call, "POST", path, body)
            if status >= 400:
                raise read_refusal(status, call.read(), self._client.address)
            for event in read_events(call.lines(), self._client.address):
                ticket.deliver(event)
        except PhobosError as error:
            ticket.deliver(Failed(error))
        except Exception as error:
            failed = UnavailableError(
                f"{self._client.address} sent a reply that cannot be read ({type(error).__name__}): try again"
            )
            ticket.deliver(Failed(failed))
        finally:
            call.close()

    def prompt_progress(self) -> tuple[int, int] | None:
        """Not told by servers."""
        return None

    def tokenize(self, text: str) -> list[Token]:
        """By the server's route."""
        reply = self._client.ask("POST", "/tokenize", {"content": text, "parse_special": False, "with_pieces": True})
        tokens = reply.get("tokens", []) if isinstance(reply, dict) else []
        return [Token(int(token["id"]), _piece_text(token["piece"])) for token in tokens]

    def count_prompt(self, request: GenerationRequest) -> int:
        """By two of the server's routes: render, then count."""
        prompt = request.prompt
        if request.is_chat:
            messages = [message_object(message) for message in request.messages]
            reply = self._client.ask(
                "POST", "/apply-template", {"messages": messages, "enable_thinking": request.thinking}
            )
            prompt = reply["prompt"]
        counted = self._client.ask("POST", "/tokenize", {"content": prompt, "parse_special": True})
        return len(counted["tokens"])

    def models(self) -> list[str]:
        """What the server has."""
        return self._models

    def can_decide(self) -> bool:
        """Whether the server has the route: an empty question is refused by it, and unknown elsewhere."""
        if self._can_decide is None:
            try:
                self._client.ask("POST", "/v1/systemone", {}, read_s=10.0)
            except RequestError as error:
                self._can_decide = error.status not in (404, 405)
            except PhobosError:
                return False
        return bool(self._can_decide)

    def decide(self, state: str, question: str, labels: Sequence[str]) -> Verdict:
        """By the server's route."""
        asked = {"type": "choice", "instructions": question, "criteria": dict.fromkeys(labels)}
        reply = self._client.ask("POST", "/v1/systemone", {"state": state, "questions": {"q": asked}}, read_s=None)
        answer = reply["answers"]["q"]
        chances = answer["probabilities"]
        return Verdict(tuple(labels), tuple(float(chances[label]) for label in labels), float(answer["confidence"]))

    def close(self) -> None:
        """Nothing is held: every request has its own connection."""


def _piece_text(piece: Any) -> str:
    return bytes(piece).decode("utf-8", "replace") if isinstance(piece, list) else str(piece)


def request_body(request: GenerationRequest, model: str) -> dict[str, Any]:
    """The request in OpenAI's words; what is not set is left out, so that the server's own values hold."""
    body: dict[str, Any] = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    if request.is_chat:
        body["messages"] = [message_object(message) for message in request.messages]
    else:
        body["prompt"] = request.prompt
    for field in FIELDS:
        value = getattr(request.sampling, field.name)
        if value is not None:
            body[field.name] = value
    if request.max_tokens is not None:
        body["max_tokens"] = request.max_tokens
    if request.thinking:
        body["enable_thinking"] = True
    return body


def read_events(lines: Iterator[bytes], address: ServerAddress) -> Iterator[Event]:
    """The events of a streamed reply, ended by `Finished`; an error in the stream is raised."""
    fold = _ChunkFold(address)
    for line in lines:
        name, _, value = line.decode("utf-8", "replace").strip().partition(":")
        if name != "data":
            continue  # comments keep the connection alive; blank lines part events of one line each
        value = value.strip()
        if value == "[DONE]":
            break
        yield from fold.push(json.loads(value))
    if fold.reason is None:
        raise UnavailableError(f"{address} ended the answer early: see its log and try again")
    yield fold.finish()


class _ChunkFold:
    """Turns chunks into events and keeps the books for the last one."""

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        self._started = False
        self._usage: dict[str, Any] = {}
        self._timings: dict[str, Any] = {}
        self.reason: str | None = None

    def push(self, chunk: Any) -> Iterator[Event]:
        """The events of one chunk."""
        if not isinstance(chunk, dict):
            return
        if chunk.get("error"):
            error = chunk["error"]
            status = error.get("status", 500) if isinstance(error, dict) else 500
            raise error_of(error, status if isinstance(status, int) else 500, self._address)
        if not self._started:
            self._started = True
            yield Started(0, 0, 0, 0, 0.0)
        self._usage = chunk.get("usage") or self._usage
        self._timings = chunk.get("timings") or self._timings
        for choice in chunk.get("choices") or ():
            yield from self._read_choice(choice)

    def _read_choice(self, choice: dict[str, Any]) -> Iterator[Event]:
        delta = choice.get("delta") or {}
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        if reasoning:
            yield ReasoningDelta(reasoning)
        text = delta.get("content") or choice.get("text")
        if text:
            yield TextDelta(text)
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            if function.get("name"):
                yield ToolCallStart(call.get("index", 0), str(call.get("id")), function["name"])
            if function.get("arguments"):
                yield ToolCallDelta(call.get("index", 0), function["arguments"])
        self.reason = choice.get("finish_reason") or self.reason

    def finish(self) -> Finished:
        """The last event; figures the server did not send are zero."""
        usage, timings = self._usage, self._timings
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        reasoning = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
        return Finished(
            _REASONS.get(self.reason or "", "stop"),
            Usage(usage.get("prompt_tokens") or 0, cached, usage.get("completion_tokens") or 0, reasoning),
            Timings(
                (timings.get("prompt_ms") or 0.0) / 1000,
                (timings.get("predicted_ms") or 0.0) / 1000,
                timings.get("prompt_n") or 0,
                timings.get("draft_n") or 0,
                timings.get("draft_n_accepted") or 0,
            ),
        )
