"""One client's connection on the loop: deadlines, limits, back-pressure, and noticing that the client has left.

The protocol itself is `exchange.Exchange`; this file moves bytes between it and an asyncio transport. One task a
connection reads a request, lets the application answer, and goes round again while both sides keep alive. When the
transport breaks, the task is cancelled, and with it whatever the application was doing for it.

A client that ends its sending side may still read (a half-closed client), or may be gone: TCP tells the two apart
only when we send. So at the end of its stream we send what the client must skip (an interim `100 Continue`, or a
comment in an open event stream) and watch for the reset.
"""

from __future__ import annotations

import asyncio
import logging
import math
import select
import socket
from dataclasses import dataclass
from typing import Protocol

from phobos.http.transport.exchange import BodyEnd, BodyPiece, Exchange, Malformed, PeerClosed, State, WireEvent
from phobos.http.transport.wire import (
    SSE_HEARTBEAT,
    Channel,
    Headers,
    Refusal,
    Request,
    RequestHead,
    Response,
    new_request_id,
)

log = logging.getLogger("phobos.http")

READ_AHEAD_BYTES = 256 << 10
LINGER_S = 1.0
LINGER_BYTES = 8 << 20
PEER_CHECK_S = 0.02
EXCESS_S = 2.0  # a client that is one too many has to ask within this


@dataclass(frozen=True)
class ConnectionLimits:
    """Bounds of one connection; times in seconds."""

    max_body_bytes: int
    request_timeout_s: float
    keep_alive_s: float
    write_timeout_s: float


class Application(Protocol):
    """What a connection needs from the routes."""

    def refuse(self, head: RequestHead, peer: str) -> Response | None:
        """A refusal that needs no body (host, key, route, method, type), or None."""

    def express(self, refusal: Refusal, path: str) -> Response:
        """A refusal as the protocol of this path writes it."""

    async def answer(self, request: Request, channel: Channel) -> Response | None:
        """The response, or None when it went out through the channel."""

    def is_never_refused(self, head: RequestHead) -> bool:
        """Whether a request is answered however many clients are connected."""

    def decorate(self, head: RequestHead | None, request_id: str) -> Headers:
        """Headers every reply carries."""


class Roster(Protocol):
    """Who keeps count of the connections."""

    def join(self, connection: Connection) -> Refusal | None:
        """Take a connection in, or say why it is one too many."""

    def leave(self, connection: Connection) -> None:
        """Forget a connection; twice is fine."""


class _ClientGoneError(ConnectionError):
    """The client is not there any more, or has stopped reading."""


class Connection(asyncio.Protocol):
    """See the module's text. All methods run on the loop."""

    def __init__(self, app: Application, limits: ConnectionLimits, roster: Roster) -> None:
        self._app = app
        self._limits = limits
        self._roster = roster
        self._exchange = Exchange()
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._lost = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._channel: _StreamChannel | None = None
        self._answering = False
        self._head: RequestHead | None = None  # of the request being read
        self._closing = False
        self._excess: Refusal | None = None  # why it is one too many
        self._idle_since_s: float | None = None
        self._discarding = False
        self._n_discarded = 0
        self._reading_paused = False
        self._timer: asyncio.TimerHandle | None = None
        self.peer = "unix"

    # --- asyncio.Protocol -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        name = transport.get_extra_info("peername")
        self.peer = str(name[0]) if isinstance(name, tuple) else "unix"
        self._excess = self._roster.join(self)
        self._closing = self._excess is not None
        self._task = self._loop.create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        if self._discarding:
            self._n_discarded += len(data)
            if self._n_discarded > LINGER_BYTES:
                self._abort()
            return
        self._exchange.receive(data)
        self._arrived.set()
        if self._exchange.n_buffered > READ_AHEAD_BYTES and self._exchange.state is State.ANSWER:
            self._pause_reading()

    def eof_received(self) -> bool:
        """The client has ended its sending side; we may still answer."""
        self._exchange.receive(b"")
        self._arrived.set()
        if self._answering:
            self._probe()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport is gone."""
        self._lost.set()
        self._roster.leave(self)
        if self._timer is not None:
            self._timer.cancel()
        if exc is not None:
            log.debug("connection of %s lost: %s", self.peer, type(exc).__name__)
        self._writable.set()
        if self._task is not None and not self._task.done():
            self._task.cancel()

    def pause_writing(self) -> None:
        """The client reads slower than we write."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._writable.set()

    # --- for the listener and the roster --------------------------------------------------------------------------

    @property
    def idle_s(self) -> float | None:
        """How long it has been waiting for a request to begin; None while there is one."""
        since_s = self._idle_since_s
        return None if since_s is None or self._exchange.started or self._closing else self._loop.time() - since_s

    def retire(self) -> None:
        """Close now if idle, else after the answer at hand."""
        self._closing = True
        if not self._exchange.started and not self._answering and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End at once."""
        self._abort()

    async def gone(self) -> None:
        """Wait until the connection's task has ended and its transport is closed."""
        if self._task is not None:
            await asyncio.wait({self._task})
        await self._lost.wait()

    # --- the task -------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        try:
            idle_s = min(self._limits.request_timeout_s, EXCESS_S if self._excess else math.inf)
            while await self._serve_one(idle_s):
                self._exchange.next_cycle()
                self._resume_reading()
                idle_s = self._limits.keep_alive_s
        except (_ClientGoneError, asyncio.CancelledError):
            log.debug("client %s left", self.peer)
            self._abort()
        except Exception:
            log.exception("a connection failed")
            self._abort()
        finally:
            self._close()

    async def _serve_one(self, idle_s: float) -> bool:
        """Serve one request; whether another may follow."""
        if not await self._first_byte(idle_s):
            if self._excess is not None and not self._exchange.eof:
                await self._send_last(self._excess.response(), None)
            return False
        deadline = self._loop.time() + self._limits.request_timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                got = await self._read_request()
        except TimeoutError:
            got = self._refusal(408, "the request did not arrive in time (--request-timeout)", "request_timeout")
        if got is None:
            return False
        if isinstance(got, Response):
            await self._send_last(got, None)
            return False
        request, refusal = got
        if refusal is not None:
            return await self._send(refusal, request)
        return await self._answer(request)

    async def _first_byte(self, idle_s: float) -> bool:
        self._idle_since_s = self._loop.time()
        while not self._exchange.started:
            if self._exchange.eof or (self._closing and self._excess is None):
                return False
            self._arrived.clear()
            try:
                async with asyncio.timeout(idle_s):
                    await self._arrived.wait()
            except TimeoutError:
                return False
        self._idle_since_s = None
        return True

    async def _read_request(self) -> tuple[Request, Response | None] | Response | None:
        """A whole request with its refusal, if it has one; a response to send before closing; or None at the end."""
        self._head = None
        head = await self._next_event()
        if isinstance(head, Malformed):
            return self._malformed(head)
        if not isinstance(head, RequestHead):
            return None
        self._head = head
        request_id = new_request_id()
        refusal = self._app.refuse(head, self.peer)
        if refusal is None and self._excess is not None and not self._app.is_never_refused(head):
            refusal = self._ask_again(head.path)
        if refusal is None and _declared_length(head) > self._limits.max_body_bytes:
            refusal = self._too_large()
        if head.expects_continue:
            if refusal is not None:
                return refusal.with_headers(self._app.decorate(head, request_id))
            self._write(self._exchange.send_continue())
        elif refusal is not None and refusal.close:
            return refusal.with_headers(self._app.decorate(head, request_id))
        body = await self._read_body(keep=refusal is None)
        if isinstance(body, Response):
            return body.with_headers(self._app.decorate(head, request_id))
        if body is None:
            return None
        return Request(head, body, self.peer, request_id), refusal

    def _ask_again(self, path: str) -> Response | None:
        """It was one too many when it connected; a refusal if it still is."""
        self._excess = self._roster.join(self)
        self._closing = self._excess is not None
        if self._excess is None:
            return None
        log.info("refused a connection of %s: %s", self.peer, self._excess.message)
        return self._app.express(self._excess, path)

    async def _read_body(self, *, keep: bool) -> bytes | Response | None:
        pieces: list[bytes] = []
        n_bytes = 0
        while True:
            event = await self._next_event()
            if isinstance(event, BodyEnd):
                return b"".join(pieces)
            if isinstance(event, Malformed):
                return self._malformed(event)
            if not isinstance(event, BodyPiece):
                return None
            n_bytes += len(event.data)
            if n_bytes > self._limits.max_body_bytes:
                return self._too_large()
            if keep:
                pieces.append(event.data)

    async def _next_event(self) -> WireEvent:
        while True:
            event = self._exchange.next_event()
            if event is not None:
                return event
            if self._exchange.eof:
                return PeerClosed()
            self._arrived.clear()
            await self._arrived.wait()

    def _too_large(self) -> Response:
        limit = self._limits.max_body_bytes
        message = f"the request body is over {limit} bytes: shorten it or raise --max-body"
        return self._refusal(413, message, "request_too_large")

    def _malformed(self, malformed: Malformed) -> Response:
        code = {431: "headers_too_large", 501: "not_implemented"}.get(malformed.status, "malformed_request")
        return self._refusal(malformed.status, malformed.message, code)

    def _refusal(self, status: int, message: str, code: str) -> Response:
        """The last response on this connection, in the envelope of the path that was asked for, if known."""
        refusal = Refusal(status, message, code=code, close=True)
        log.info("refused a request of %s: %d %s", self.peer, status, message)
        return refusal.response() if self._head is None else self._app.express(refusal, self._head.path)

    # --- answering ------------------------------------------------------------------------------------------------

    async def _answer(self, request: Request) -> bool:
        channel = _StreamChannel(self, request)
        self._channel = channel
        self._answering = True
        if self._exchange.eof:
            self._probe()
        try:
            response = await self._app.answer(request, channel)
        finally:
            self._answering = False
            self._channel = None
        if channel.opened:
            self._write(self._exchange.end_stream())
            return await self._settle()
        assert response is not None
        return await self._send(response, request)

    async def _send(self, response: Response, request: Request) -> bool:
        headers = response.headers + self._app.decorate(request.head, request.request_id)
        if response.body or response.status not in (204, 304):
            headers = (("content-type", response.content_type), *headers)
        close = response.close or self._closing
        self._write(self._exchange.send_response(response.status, headers, response.body, close=close))
        return await self._settle()

    async def _settle(self) -> bool:
        await self._drained()
        return self._exchange.reusable and not self._closing

    async def _send_last(self, response: Response, head: RequestHead | None) -> None:
        """Answer and close, but let the client read the answer though it may still be sending."""
        headers: Headers = (("content-type", response.content_type), *response.headers)
        self._write(self._exchange.send_response(response.status, headers, response.body, close=True))
        await self._drained()
        transport = self._transport
        if transport is None or self._exchange.eof:
            return
        self._discarding = True
        self._resume_reading()
        try:
            transport.write_eof()
        except OSError:  # reset between our write and now
            raise _ClientGoneError from None
        deadline = self._loop.time() + LINGER_S
        while not self._exchange.eof and self._loop.time() < deadline:
            self._arrived.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._arrived.wait()
            except TimeoutError:
                return

    # --- transport ------------------------------------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            raise _ClientGoneError
        if data:
            self._transport.write(data)

    async def _drained(self) -> None:
        """Wait while the client is behind; one that takes nothing for `write_timeout_s` is let go."""
        while not self._writable.is_set():
            assert self._transport is not None
            before = self._transport.get_write_buffer_size()
            try:
                async with asyncio.timeout(self._limits.write_timeout_s):
                    await self._writable.wait()
            except TimeoutError:
                if self._transport.get_write_buffer_size() >= before:
                    log.info("a client stopped reading its answer: connection closed")
                    raise _ClientGoneError from None
        if self._transport is None or self._transport.is_closing():
            raise _ClientGoneError

    def _probe(self) -> None:
        channel = self._channel
        try:
            if channel is not None and channel.opened:
                self._write(self._exchange.send_data(SSE_HEARTBEAT))
            else:
                self._write(self._exchange.send_continue())
        except _ClientGoneError:
            return
        self._check_peer()

    def _check_peer(self) -> None:
        """Look for the reset that a client which is gone answers our probe with."""
        if not self._answering or self._transport is None or self._transport.is_closing():
            return
        if _hung_up(self._transport.get_extra_info("socket")):
            self._abort()
            return
        self._timer = self._loop.call_later(PEER_CHECK_S, self._check_peer)

    def _pause_reading(self) -> None:
        if self._transport is not None and not self._reading_paused and not self._transport.is_closing():
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._transport is not None and self._reading_paused and not self._transport.is_closing():
            self._reading_paused = False
            self._transport.resume_reading()

    def _close(self) -> None:
        """Flush and close; a client that does not take the rest in time is dropped."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            self._timer = self._loop.call_later(self._limits.write_timeout_s, self._abort)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class _StreamChannel:
    """The `Channel` of one request on a connection."""

    def __init__(self, connection: Connection, request: Request) -> None:
        self._connection = connection
        self._request = request
        self.opened = False

    async def open(self, status: int, content_type: str, headers: Headers) -> None:
        """Send the head of the streamed reply."""
        connection = self._connection
        lines: Headers = (
            ("content-type", content_type),
            ("cache-control", "no-cache"),
            ("x-accel-buffering", "no"),
            *headers,
            *connection._app.decorate(self._request.head, self._request.request_id),
        )
        self.opened = True
        connection._write(connection._exchange.start_stream(status, lines, close=connection._closing))

    async def send(self, data: bytes) -> None:
        """Send a piece; waits while the client is behind."""
        connection = self._connection
        connection._write(connection._exchange.send_data(data))
        if not connection._writable.is_set():
            await connection._drained()


def _declared_length(head: RequestHead) -> int:
    value = head.header("content-length")
    return int(value) if value is not None else 0


def _hung_up(sock: socket.socket | None) -> bool:
    """Whether both directions are down or reset, without reading."""
    if sock is None or sock.fileno() < 0:
        return True
    poller = select.poll()
    poller.register(sock.fileno(), 0)
    return any(flags & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, flags in poller.poll(0))
