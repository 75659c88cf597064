"""What goes over the wire, as values: requests, responses, server-sent events, JSON text, the error envelope.

Nothing here knows about sockets. A `Request` is complete (its body has arrived); a `Response` is complete too; a
reply that comes in pieces is written through a `Channel`, which the connection provides. Header names are lower
case in both directions.
"""

from __future__ import annotations

import secrets
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import msgspec

from phobos.errors import PhobosError, RequestError, UnavailableError

Headers = tuple[tuple[str, str], ...]

JSON_TYPE = "application/json"
SSE_TYPE = "text/event-stream; charset=utf-8"
SSE_DONE = b"data: [DONE]\n\n"
SSE_HEARTBEAT = b": waiting\n\n"
MAX_MESSAGE_BYTES = 600


@dataclass(frozen=True)
class RequestHead:
    """A request line and its headers; `path` has no query. `query` is the raw text after `?`."""

    method: str
    path: str
    query: str
    headers: Headers
    http_version: str
    expects_continue: bool

    def header(self, name: str) -> str | None:
        """The first value of a header, by its lower-case name."""
        return next((value for key, value in self.headers if key == name), None)


@dataclass(frozen=True)
class Request:
    """A whole request. `peer` is the client's address without port, or "unix"; `asker` the name of the owner of the
    key it carries, "" where none is asked for."""

    head: RequestHead
    body: bytes
    peer: str
    request_id: str
    asker: str = ""

    @property
    def told(self) -> str:
        """What logs call it."""
        return f"{self.request_id} for {self.asker}" if self.asker else self.request_id

    @property
    def method(self) -> str:
        """The method, upper case."""
        return self.head.method

    @property
    def path(self) -> str:
        """The path without query."""
        return self.head.path


@dataclass(frozen=True)
class Response:
    """A whole response. `close` asks for the connection to end after it."""

    status: int
    body: bytes = b""
    content_type: str = JSON_TYPE
    headers: Headers = ()
    close: bool = False

    def with_headers(self, headers: Headers) -> Response:
        """The same response with further headers."""
        return replace(self, headers=self.headers + headers)


class Channel(Protocol):
    """How a handler streams: `open` once, then `send`s; a send waits while the client is slower than we are."""

    @property
    def opened(self) -> bool:
        """Whether the status line is out."""

    async def open(self, status: int, content_type: str, headers: Headers) -> None:
        """Send the status line and headers of a streamed reply."""

    async def send(self, data: bytes) -> None:
        """Send a piece of the body."""


def new_request_id() -> str:
    """A fresh id, unique enough to name a request in logs and replies."""
    return "req_" + secrets.token_hex(12)


def to_json(value: Any) -> bytes:
    """JSON text of a reply; non-finite numbers become null."""
    return msgspec.json.encode(value)


def json_response(value: Any, status: int = 200, headers: Headers = ()) -> Response:
    """A response whose body is the JSON text of `value`."""
    return Response(status, to_json(value), JSON_TYPE, headers)


def text_response(text: str, status: int = 200, content_type: str = "text/plain; charset=utf-8") -> Response:
    """A response in plain text."""
    return Response(status, text.encode(), content_type)


def sse(value: Any) -> bytes:
    """One `data:` event."""
    return b"data: " + to_json(value) + b"\n\n"


def bounded(text: str, limit: int = MAX_MESSAGE_BYTES) -> str:
    """`text` cut to `limit` bytes of UTF-8 at a character, combining marks not torn off, controls made visible."""
    clean = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[: limit * 2])
    data = clean.encode("utf-8", "replace")
    if len(data) <= limit and len(text) <= limit * 2:
        return clean
    cut = data[: limit - 3].decode("utf-8", "ignore")
    while len(cut) > 1 and cut and unicodedata.combining(cut[-1]):
        cut = cut[:-1]
    return cut + "…"


def quoted(name: object, limit: int = 64) -> str:
    """A name a client sent, quoted back and bounded to `limit` bytes."""
    return "'" + bounded(str(name), limit) + "'"


@dataclass(frozen=True)
class Refusal:
    """Why a request is not answered, in the terms of every protocol's envelope."""

    status: int
    message: str
    kind: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    details: Mapping[str, int | str] = field(default_factory=dict)
    headers: Headers = ()
    close: bool = False

    def envelope(self) -> dict[str, Any]:
        """The body of OpenAI's error reply."""
        error: dict[str, Any] = {
            "message": bounded(self.message),
            "type": self.kind,
            "param": None if self.param is None else bounded(self.param, 128),
            "code": self.code,
        }
        error.update(self.details)
        return {"error": error}

    def response(self) -> Response:
        """The refusal as a response."""
        return Response(self.status, to_json(self.envelope()), JSON_TYPE, self.headers, self.close)


def refusal_of(error: BaseException) -> Refusal:
    """Map an error to its refusal. What is not a `PhobosError` is masked: its text may hold anything."""
    if isinstance(error, RequestError):
        retry = getattr(error, "retry_after_s", None)
        headers: Headers = () if retry is None else (("retry-after", str(retry)),)
        return Refusal(error.status, str(error), error.kind, error.param, error.code, error.details, headers)
    if isinstance(error, UnavailableError):
        headers = (("retry-after", "5"),)
        return Refusal(503, str(error), "server_error", code="engine_unavailable", headers=headers)
    if isinstance(error, PhobosError):
        return Refusal(
            500, "the engine failed on this request; see the server's log", "server_error", code="engine_error"
        )
    return Refusal(500, "an internal error occurred; see the server's log", "server_error", code="internal_error")
