"""A small HTTP client for one server: JSON in, JSON or a stream of events out. Standard library only.

Every request has a connection of its own; so a request is ended by closing its socket, which the server notices.
Errors are `PhobosError`s with the server's own sentence where it sent one.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from phobos.errors import PhobosError, RequestError, UnavailableError, UsageError

DEFAULT_PORT = 8080
CONNECT_S = 5.0


@dataclass(frozen=True)
class ServerAddress:
    """Where a server listens; `path` is what stands before its routes, without `/v1`."""

    host: str
    port: int = DEFAULT_PORT
    secure: bool = False
    path: str = ""
    unix: str | None = None

    def __str__(self) -> str:
        if self.unix is not None:
            return f"unix:{self.unix}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.secure else ''}://{host}:{self.port}{self.path}"


def parse_address(text: str) -> ServerAddress:
    """`http://host:port[/v1]`, `host:port`, `:port`, `host` or `unix:/path`. Raises `UsageError`."""
    if text.startswith("unix:"):
        if not text[len("unix:") :]:
            raise UsageError("unix: needs a socket path: write unix:/path")
        return ServerAddress("localhost", unix=text[len("unix:") :])
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{text} is not a server address: write http://127.0.0.1:8080") from error
    if parts.scheme not in ("http", "https") or (not parts.hostname and not port):
        raise UsageError(f"{text} is not a server address: write http://127.0.0.1:8080")
    secure = parts.scheme == "https"
    if port is None:
        port = (443 if secure else 80) if "://" in text else DEFAULT_PORT
    path = parts.path.rstrip("/").removesuffix("/v1")
    return ServerAddress(parts.hostname or "127.0.0.1", port, secure, path)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a socket file."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Open the socket file."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Call:
    """One request under way; `close` ends it from any thread."""

    def __init__(self, connection: http.client.HTTPConnection, address: ServerAddress) -> None:
        self._connection = connection
        self._address = address
        self._response: http.client.HTTPResponse | None = None
        self.is_closed = False

    def send(self, method: str, path: str, body: bytes | None, headers: dict[str, str], read_s: float | None) -> int:
        """Send it and wait for the head of the reply, `read_s` seconds for each part of it; the status."""
        try:
            self._connection.request(method, self._address.path + path, body, headers)
            if self._connection.sock is not None:
                self._connection.sock.settimeout(read_s)
            self._response = self._connection.getresponse()
        except (OSError, http.client.HTTPException, AttributeError) as error:
            raise self._unreachable(error) from error
        return self._response.status

    def lines(self) -> Iterator[bytes]:
        """The reply line by line, as it comes."""
        while True:
            try:
                line = self._response.readline() if self._response is not None else b""
            except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
                raise self._unreachable(error) from error
            if not line:
                return
            yield line

    def read(self) -> bytes:
        """The whole reply."""
        return b"".join(self.lines())

    def close(self) -> None:
        """End it; a read that waits returns."""
        self.is_closed = True
        with contextlib.suppress(OSError, AttributeError):
            if self._connection.sock is not None:
                self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _unreachable(self, error: Exception) -> UnavailableError:
        if isinstance(error, TimeoutError):
            return UnavailableError(
                f"{self._address} does not answer: check whether the server is stuck, or restart it"
            )
        if isinstance(error, ConnectionRefusedError | FileNotFoundError | socket.gaierror):
            return UnavailableError(
                f"no server answers on {self._address}: start one with --listen, or leave --attach out"
            )
        if isinstance(error, ssl.SSLError):
            return UnavailableError(f"{self._address} does not offer a trusted TLS certificate: try http:// instead")
        return UnavailableError(f"the connection to {self._address} broke: see the server's log and try again")


class HttpClient:
    """Talks to one server; `key` goes along where it is given. Any thread may use it."""

    def __init__(self, address: ServerAddress, key: str | None = None) -> None:
        self.address = address
        self._key = key

    def open(self, *, connect_s: float = CONNECT_S) -> Call:
        """A call ready to be sent."""
        address = self.address
        if address.unix is not None:
            return Call(_UnixConnection(address.unix, connect_s), address)
        kind = http.client.HTTPSConnection if address.secure else http.client.HTTPConnection
        return Call(kind(address.host, address.port, timeout=connect_s), address)

    def send(self, call: Call, method: str, path: str, body: Any = None, *, read_s: float | None = None) -> int:
        """Send a call; its status."""
        headers = {"accept": "application/json, text/event-stream", "user-agent": "phobos-cli"}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["content-type"] = "application/json"
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        return call.send(method, path, data, headers, read_s)

    def ask(
        self, method: str, path: str, body: Any = None, *, connect_s: float = CONNECT_S, read_s: float | None = 60.0
    ) -> Any:
        """A whole exchange; the reply's JSON (text where it is none). Raises `PhobosError`."""
        status, data = self.fetch(method, path, body, connect_s=connect_s, read_s=read_s)
        if status >= 400:
            raise read_refusal(status, data, self.address)
        try:
            return json.loads(data)
        except ValueError:
            return data.decode("utf-8", "replace")

    def fetch(
        self, method: str, path: str, body: Any = None, *, connect_s: float = CONNECT_S, read_s: float | None = 60.0
    ) -> tuple[int, bytes]:
        """A whole exchange, whatever its status. Raises `UnavailableError` where there is none."""
        call = self.open(connect_s=connect_s)
        try:
            return self.send(call, method, path, body, read_s=read_s), call.read()
        finally:
            call.close()


def read_refusal(status: int, data: bytes, address: ServerAddress) -> PhobosError:
    """The error a reply tells of, in the server's own words where it has some."""
    envelope: Any = None
    with contextlib.suppress(ValueError):
        envelope = json.loads(data)
    error = envelope.get("error") if isinstance(envelope, dict) else None
    return error_of(error, status, address)


def error_of(error: Any, status: int, address: ServerAddress) -> PhobosError:
    """An error object of the interface as an error of ours."""
    code = "server_error"
    message = None
    if isinstance(error, dict):
        message, code = error.get("message"), str(error.get("code") or code)
    elif isinstance(error, str):
        message = error
    if status == 401:
        message = f"{address} requires an API key: set PHOBOS_API_KEY"
    if not isinstance(message, str) or not message:
        message = f"{address} answered with HTTP status {status}: see the server's log"
    if status >= 500:
        return UnavailableError(message)
    return RequestError(message, code=code, status=status)
