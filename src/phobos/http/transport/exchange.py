"""The protocol of one server connection, pure: bytes in, events out, bytes out. No sockets, no clock.

h11 does the parsing, one `h11.Connection` a request. In front of it stands a small state of our own, because h11
forgives what a server behind a proxy must not: a request head is collected here first, up to its blank line, and
checked for repeated or doubled framing before h11 sees a byte of it. What follows the end of a message stays here
until the next cycle, so pipelined requests are answered in order.

States: HEAD (collecting a head) -> BODY (h11 delivers it) -> ANSWER (ours to speak) -> HEAD again by `next_cycle`,
or DEAD after a malformed request.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import h11

from phobos.http.transport.wire import Headers, RequestHead

MAX_HEAD_BYTES = 32 << 10
MAX_HEADERS = 100
MAX_LEADING_BLANKS = 8
_SUPPORTED = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"})


class State(Enum):
    """Where the connection is in its cycle."""

    HEAD = "head"
    BODY = "body"
    ANSWER = "answer"
    DEAD = "dead"


@dataclass(frozen=True)
class BodyPiece:
    """Some bytes of the request's body."""

    data: bytes


@dataclass(frozen=True)
class BodyEnd:
    """The request is complete."""


@dataclass(frozen=True)
class Malformed:
    """The bytes are no request; answer with `status` and close."""

    status: int
    message: str


@dataclass(frozen=True)
class PeerClosed:
    """The client has said all it will, and no request is open."""


WireEvent = RequestHead | BodyPiece | BodyEnd | Malformed | PeerClosed


class Exchange:
    """One connection's protocol state; see the module's text."""

    def __init__(self) -> None:
        self.state = State.HEAD
        self.eof = False
        self._buffer = bytearray()
        self._scanned = 0
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._head_only = False
        self._chunked = False

    @property
    def n_buffered(self) -> int:
        """Bytes received and not yet turned into events."""
        return len(self._buffer)

    @property
    def started(self) -> bool:
        """Whether the first byte of a request is here."""
        return self.state is not State.HEAD or bool(self._buffer)

    def receive(self, data: bytes) -> None:
        """Take bytes from the socket; empty means the client has ended its side."""
        if not data:
            self.eof = True
        self._buffer += data

    def next_event(self) -> WireEvent | None:
        """The next event, or None when more bytes are needed (or it is our turn to answer)."""
        if self.state is State.HEAD:
            return self._next_head()
        if self.state is State.BODY:
            return self._next_body()
        return None

    def _next_head(self) -> WireEvent | None:
        blanks = 0
        while blanks < len(self._buffer) and self._buffer[blanks] in b"\r\n":
            blanks += 1
        if blanks > MAX_LEADING_BLANKS:
            return self._malformed(400, "blank lines stand before the request line")
        end = self._find_head_end(blanks)
        if end < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                return self._malformed(431, f"the request head is over {MAX_HEAD_BYTES} bytes")
            if self._buffer and not _plausible(self._buffer, blanks):
                return self._malformed(400, "this is not an HTTP request")
            if self.eof:
                self.state = State.DEAD
                return PeerClosed()
            return None
        if end > MAX_HEAD_BYTES:
            return self._malformed(431, f"the request head is over {MAX_HEAD_BYTES} bytes")
        head = bytes(self._buffer[blanks:end])
        del self._buffer[:end]
        self._scanned = 0
        problem = _framing_problem(head)
        if problem is not None:
            return problem if self._kill() else None
        return self._parse_head(head)

    def _find_head_end(self, blanks: int) -> int:
        """Index after the blank line that ends the head, or -1; never scans a byte more than a few times."""
        start = max(blanks, self._scanned - 3)
        self._scanned = len(self._buffer)
        crlf = self._buffer.find(b"\n\r\n", start)
        bare = self._buffer.find(b"\n\n", start)
        ends = [index + width for index, width in ((crlf, 3), (bare, 2)) if index >= 0]
        return min(ends) if ends else -1

    def _parse_head(self, head: bytes) -> WireEvent:
        try:
            self._h11.receive_data(head)
            event = self._h11.next_event()
        except h11.RemoteProtocolError as error:
            return self._malformed(error.error_status_hint, _plain(str(error)))
        if not isinstance(event, h11.Request):
            return self._malformed(400, "the request head is incomplete")
        try:
            target = event.target.decode("ascii")
            headers = tuple((name.decode("ascii"), value.decode("latin-1")) for name, value in event.headers)
        except UnicodeDecodeError:
            return self._malformed(400, "the request line has bytes outside ASCII")
        version = event.http_version.decode("ascii")
        if version not in ("1.0", "1.1"):
            return self._malformed(505, "this server speaks HTTP/1.1")
        if version == "1.0" and any(name == "transfer-encoding" for name, _ in headers):
            return self._malformed(400, "HTTP/1.0 has no Transfer-Encoding")
        method = event.method.decode("ascii")
        if method not in _SUPPORTED:
            return self._malformed(501, "this method is not known")
        self.state = State.BODY
        self._head_only = method == "HEAD"
        host, place = _split_target(target)
        if host is not None:  # RFC 9112, 3.2.2: it counts, whatever the Host header says
            headers = (("host", host), *(line for line in headers if line[0] != "host"))
        path, _, query = place.partition("?")
        waits = self._h11.they_are_waiting_for_100_continue
        return RequestHead(method, path, query, headers, version, waits)

    def _next_body(self) -> WireEvent | None:
        try:
            if self._buffer:
                self._h11.receive_data(bytes(self._buffer))
                self._buffer.clear()
            elif self.eof and self._h11.their_state is h11.SEND_BODY:
                self._kill()
                return PeerClosed()
            event = self._h11.next_event()
        except h11.RemoteProtocolError as error:
            return self._malformed(error.error_status_hint, _plain(str(error)))
        if isinstance(event, h11.Data):
            return BodyPiece(bytes(event.data))
        if isinstance(event, h11.EndOfMessage):
            self.state = State.ANSWER
            self._buffer[:0] = self._h11.trailing_data[0]
            return BodyEnd()
        if self.eof:
            self._kill()
            return PeerClosed()
        return None

    def _kill(self) -> bool:
        self.state = State.DEAD
        self._buffer.clear()
        return True

    def _malformed(self, status: int, message: str) -> Malformed:
        self._kill()
        return Malformed(status, message)

    # --- our side -----------------------------------------------------------------------------------------------

    def send_continue(self) -> bytes:
        """An interim `100 Continue`; nothing for a client older than HTTP/1.1 or once we have begun to answer."""
        if self._h11.our_state is not h11.SEND_RESPONSE or self._h11.their_http_version != b"1.1":
            return b""
        return self._h11.send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")) or b""

    def send_response(self, status: int, headers: Headers, body: bytes, *, close: bool) -> bytes:
        """A whole response; the body of an answer to HEAD is left out, its length is not."""
        lines = [*headers, ("content-length", str(len(body)))] if status not in (204, 304) else list(headers)
        data = self._start(status, lines, close)
        if body and not self._head_only and status not in (204, 304):
            data += self._h11.send(h11.Data(data=body)) or b""
        return data + (self._h11.send(h11.EndOfMessage()) or b"")

    def start_stream(self, status: int, headers: Headers, *, close: bool) -> bytes:
        """The head of a streamed response: chunked, or ended by closing for HTTP/1.0."""
        self._chunked = self._h11.their_http_version == b"1.1"
        return self._start(status, list(headers), close)

    def send_data(self, data: bytes) -> bytes:
        """A piece of a streamed body. Framed here: h11 would take as long over a token as all the rest together."""
        if self._head_only or not data:
            return b""
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data

    def end_stream(self) -> bytes:
        """The end of a streamed body."""
        return self._h11.send(h11.EndOfMessage()) or b""

    def _start(self, status: int, headers: list[tuple[str, str]], close: bool) -> bytes:
        if close or self.state is not State.ANSWER:
            headers = [*headers, ("connection", "close")]
        if self.state is State.DEAD and self._h11.our_state not in (h11.SEND_RESPONSE, h11.IDLE):
            return b""
        raw = [(name.encode("ascii"), value.encode("latin-1", "replace")) for name, value in headers]
        return self._h11.send(h11.Response(status_code=status, headers=raw, reason=_REASONS.get(status, b""))) or b""

    @property
    def reusable(self) -> bool:
        """Whether the answer is out and the connection may carry another request."""
        return self.state is State.ANSWER and self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE

    def next_cycle(self) -> None:
        """Begin to read the next request."""
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self.state = State.HEAD
        self._scanned = 0


_REASONS = {
    200: b"OK",
    204: b"No Content",
    400: b"Bad Request",
    401: b"Unauthorized",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    413: b"Content Too Large",
    415: b"Unsupported Media Type",
    422: b"Unprocessable Content",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    505: b"HTTP Version Not Supported",
}


def _plausible(buffer: bytearray, start: int) -> bool:
    """Whether the first bytes can open a request line, so that noise is refused before the deadline."""
    return all(65 <= byte <= 90 for byte in buffer[start : start + 3])


def _split_target(target: str) -> tuple[str | None, str]:
    """Host and path of a target; the host only of an absolute one, as proxies send it."""
    for scheme in ("http://", "https://"):
        if target.lower().startswith(scheme):
            host, slash, rest = target[len(scheme) :].partition("/")
            host, mark, query = host.partition("?")
            return host, slash + rest if slash else "/" + mark + query
    return None, target


def _framing_problem(head: bytes) -> Malformed | None:
    """What h11 would let pass: repeated lengths, length and encoding together, folded or too many lines."""
    lines = head.split(b"\n")[1:]
    if len(lines) > MAX_HEADERS + 2:
        return Malformed(431, f"the request has more than {MAX_HEADERS} headers")
    if b"\0" in head:
        return Malformed(400, "the request head holds a NUL byte")
    if any(line[:1] in (b" ", b"\t") for line in lines):
        return Malformed(400, "a header line is folded")
    if head.replace(b"\r\n", b"").find(b"\r") >= 0:
        return Malformed(400, "a carriage return stands alone in the request head")
    names = [line.partition(b":")[0].strip().lower() for line in lines]
    n_lengths, n_encodings = names.count(b"content-length"), names.count(b"transfer-encoding")
    if n_lengths > 1 or n_encodings > 1:
        return Malformed(400, "the length of the body is given twice")
    if n_lengths and n_encodings:
        return Malformed(400, "both Content-Length and Transfer-Encoding are given")
    if names.count(b"host") > 1:
        return Malformed(400, "the Host header is given twice")
    for name, line in zip(names, lines, strict=True):
        value = line.partition(b":")[2].strip()
        if name == b"content-length" and not (value.isdigit() and len(value) <= 18):
            return Malformed(400, "the Content-Length is not a number")
    return None


def _plain(message: str) -> str:
    """h11's reason without the bytes it quotes."""
    return "the request is malformed: " + message.partition("bytearray")[0].partition("b'")[0].strip(" :")
