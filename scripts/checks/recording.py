"""A go-between for the scripts here: hands requests on to a server and remembers them with their answers."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_HOP = {"connection", "keep-alive", "transfer-encoding", "host", "content-length"}


@dataclass(frozen=True)
class Exchange:
    """A request and its answer."""

    method: str
    path: str
    asked: bytes
    status: int
    answered: bytes

    @property
    def is_refused(self) -> bool:
        """Whether the server said no; a client may look for what is not there."""
        return self.status >= 400 and (self.method == "POST" or self.status != 404)

    @property
    def is_broken(self) -> bool:
        """Whether a stream that had begun ended with an error."""
        return self.status == 200 and (b'data: {"error"' in self.answered or b"event: error" in self.answered)

    def describe_refusal(self) -> str:
        """`400 POST /v1/responses: tools[3].type ...`."""
        try:
            error = json.loads(self.answered)["error"]
            said = error["message"] if isinstance(error, dict) else str(error)
        except (ValueError, KeyError, TypeError):
            said = self.answered[-200:].decode("utf-8", "replace")
        return f"{self.status} {self.method} {self.path.partition('?')[0]}: {said}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream = ("", 0)
    exchanges: list[Exchange]

    def _hand_on(self) -> None:
        body = self._read_body()
        connection = http.client.HTTPConnection(*self.upstream, timeout=300)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
        connection.request(self.command, self.path, body or None, headers)
        reply = connection.getresponse()
        self.send_response(reply.status)
        for name, value in reply.getheaders():
            if name.lower() not in _HOP:
                self.send_header(name, value)
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        pieces = []
        with suppress(OSError):  # the client left
            while piece := reply.read1(65536):
                pieces.append(piece)
                self.wfile.write(piece)
                self.wfile.flush()
        connection.close()
        self.exchanges.append(Exchange(self.command, self.path, body, reply.status, b"".join(pieces)))

    do_GET = do_POST = do_HEAD = do_OPTIONS = do_DELETE = _hand_on  # noqa: N815

    def _read_body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing is printed."""


@contextmanager
def record(address: str) -> Iterator[tuple[str, list[Exchange]]]:
    """An address that stands for `address`, and the exchanges that went through it, in the order of their ends."""
    parts = urlsplit(address)
    exchanges: list[Exchange] = []
    handler = type("Handler", (_Handler,), {"upstream": (parts.hostname, parts.port), "exchanges": exchanges})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", exchanges
    finally:
        server.shutdown()
        server.server_close()
