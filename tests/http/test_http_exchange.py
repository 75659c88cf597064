"""The protocol of a connection without sockets: whole, byte by byte, with a tail, and attacked."""

from __future__ import annotations

import random

import pytest

from phobos.http.transport.exchange import BodyEnd, BodyPiece, Exchange, Malformed, PeerClosed, State
from phobos.http.transport.wire import RequestHead

GET = b"GET /health?x=1 HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"POST /b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKED += b"3\r\nabc\r\n2;ext=1\r\nde\r\n0\r\nTrailer: x\r\n\r\n"


def read_all(exchange: Exchange) -> list:
    events = []
    while (event := exchange.next_event()) is not None:
        events.append(event)
        if isinstance(event, Malformed | PeerClosed):
            break
    return events


def answer(exchange: Exchange) -> bytes:
    data = exchange.send_response(200, (), b"ok", close=False)
    if exchange.reusable:
        exchange.next_cycle()
    return data


def run(data: bytes, step: int) -> list[tuple[str, str, bytes]]:
    """Requests found when bytes arrive `step` at a time; each is answered at once."""
    exchange = Exchange()
    found, head, body = [], None, b""
    for start in range(0, len(data), step):
        exchange.receive(data[start : start + step])
        again = True
        while again:
            again = False
            for event in read_all(exchange):
                if isinstance(event, RequestHead):
                    head, body = event, b""
                elif isinstance(event, BodyPiece):
                    body += event.data
                elif isinstance(event, BodyEnd):
                    found.append((head.method, head.path, body))
                    answer(exchange)
                    again = True
    return found


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64, 10_000])
def test_pipelined_requests_are_the_same_however_they_arrive(step):
    expected = [("GET", "/health", b""), ("POST", "/a", b"hello"), ("POST", "/b", b"abcde"), ("GET", "/health", b"")]
    assert run(GET + POST + CHUNKED + GET, step) == expected


def test_a_tail_waits_for_the_next_cycle():
    exchange = Exchange()
    exchange.receive(POST + GET[:10])
    assert [type(e) for e in read_all(exchange)] == [RequestHead, BodyPiece, BodyEnd]
    assert exchange.next_event() is None and exchange.n_buffered == 10
    answer(exchange)
    assert exchange.next_event() is None
    exchange.receive(GET[10:])
    head = exchange.next_event()
    assert isinstance(head, RequestHead) and head.path == "/health" and head.query == "x=1"


def head_with(*lines: bytes, request: bytes = b"POST / HTTP/1.1") -> bytes:
    return b"\r\n".join([request, b"Host: a", *lines, b"", b""])


ATTACKS = {
    "two lengths": (head_with(b"Content-Length: 5", b"Content-Length: 6"), 400),
    "the same length twice": (head_with(b"Content-Length: 5", b"Content-Length: 5"), 400),
    "a list of lengths": (head_with(b"Content-Length: 5, 5"), 400),
    "a signed length": (head_with(b"Content-Length: +5"), 400),
    "a huge length": (head_with(b"Content-Length: " + b"9" * 30), 400),
    "both framings": (head_with(b"Content-Length: 5", b"Transfer-Encoding: chunked"), 400),
    "two encodings": (head_with(b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"), 400),
    "an unknown encoding": (head_with(b"Transfer-Encoding: gzip"), 501),
    "a space before the colon": (head_with(b"Content-Length : 5"), 400),
    "a folded header": (head_with(b"A: b", b" c"), 400),
    "a bare carriage return": (head_with(b"A: b\rContent-Length: 5"), 400),
    "a NUL": (head_with(b"A: b\0c"), 400),
    "two hosts": (head_with(b"Host: b"), 400),
    "no host": (b"GET / HTTP/1.1\r\nA: b\r\n\r\n", 400),
    "a version from the future": (head_with(request=b"GET / HTTP/3.7"), 505),
    "chunks in HTTP/1.0": (head_with(b"Transfer-Encoding: chunked", request=b"POST / HTTP/1.0"), 400),
    "no version": (b"GET /\r\n\r\n", 400),
    "noise": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "an unknown method": (head_with(request=b"BREW / HTTP/1.1"), 501),
    "many headers": (head_with(*[b"A: b"] * 150), 431),
    "an endless head": (b"GET / HTTP/1.1\r\nA: " + b"a" * 40_000, 431),
    "endless blank lines": (b"\r\n" * 100, 400),
}


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("step", [1, 100_000])
def test_a_framing_attack_is_refused_and_closes(name, step):
    data, status = ATTACKS[name]
    exchange = Exchange()
    found = []
    for start in range(0, len(data), step):
        exchange.receive(data[start : start + step])
        found += read_all(exchange)
        if found:
            break
    assert isinstance(found[-1], Malformed), found
    assert found[-1].status == status
    reply = exchange.send_response(found[-1].status, (), b"{}", close=True)
    assert reply.startswith(b"HTTP/1.1 %d " % status) and b"connection: close" in reply.lower()
    assert not exchange.reusable


@pytest.mark.parametrize("tail", [b"zz\r\n", b"-1\r\n", b"3\r\nabcd\r\n", b"ffffffffffffffffffffff\r\n"])
def test_a_bad_chunk_is_refused(tail):
    exchange = Exchange()
    exchange.receive(head_with(b"Transfer-Encoding: chunked") + tail)
    assert isinstance(read_all(exchange)[-1], Malformed)


def test_a_client_that_ends_inside_a_body_is_gone():
    exchange = Exchange()
    exchange.receive(POST[:-2])
    assert read_all(exchange)[-1] == BodyPiece(b"hel")
    exchange.receive(b"")
    assert isinstance(exchange.next_event(), PeerClosed | Malformed)


def test_a_head_reply_has_a_length_and_no_body():
    exchange = Exchange()
    exchange.receive(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n")
    read_all(exchange)
    data = answer(exchange)
    assert b"content-length: 2\r\n" in data.lower() and data.endswith(b"\r\n\r\n")
    assert exchange.state is State.HEAD


def test_an_old_client_gets_a_stream_that_ends_by_closing():
    exchange = Exchange()
    exchange.receive(b"GET / HTTP/1.0\r\n\r\n")
    read_all(exchange)
    data = exchange.start_stream(200, (), close=False) + exchange.send_data(b"x") + exchange.end_stream()
    assert b"chunked" not in data and data.endswith(b"\r\n\r\nx") and not exchange.reusable
    assert exchange.send_continue() == b""


def test_an_absolute_target_is_its_path():
    exchange = Exchange()
    exchange.receive(b"GET http://a:80/v1/models?x HTTP/1.1\r\nHost: a\r\n\r\n")
    head = exchange.next_event()
    assert isinstance(head, RequestHead) and head.path == "/v1/models"


SEEDS = [GET, POST, CHUNKED, *(data for data, _ in ATTACKS.values() if len(data) < 2000)]
TOKENS = [
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b"Content-Length: ",
    b"Transfer-Encoding: chunked",
    b":",
    b" ",
    b"0\r\n\r\n",
    b"\xff",
]


def mutate(chance: random.Random) -> bytes:
    data = bytearray(b"".join(chance.choice(SEEDS) for _ in range(chance.randint(1, 3))))
    for _ in range(chance.randint(0, 6)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(4):
            case 0:
                data[at:at] = chance.choice(TOKENS)
            case 1:
                del data[at : at + chance.randint(1, 20)]
            case 2:
                data[at : at + 1] = bytes([chance.randrange(256)])
            case 3:
                data[at:at] = chance.randbytes(chance.randint(1, 40))
    return bytes(data)


def fuzz(n_bytes: int, seed: int) -> int:
    """Feed mutated requests in pieces; every one must end in events or a refusal, never in an exception or a loop."""
    chance = random.Random(seed)
    fed = 0
    while fed < n_bytes:
        data = mutate(chance) if chance.random() < 0.9 else chance.randbytes(200)
        fed += len(data)
        exchange = Exchange()
        at, n_events = 0, 0
        while at < len(data) or not exchange.eof:
            step = chance.choice([1, 5, 50, 1000]) if at < len(data) else 1
            exchange.receive(data[at : at + step])
            at += step
            while (event := exchange.next_event()) is not None:
                n_events += 1
                assert n_events < 10_000, (seed, data)
                if isinstance(event, Malformed):
                    assert exchange.send_response(event.status, (), b"{}", close=True).startswith(b"HTTP/1.1 ")
                    at, exchange.eof = len(data), True
                    break
                if isinstance(event, PeerClosed):
                    break
                if isinstance(event, BodyEnd):
                    assert exchange.send_response(200, (), b"ok", close=False)
                    if exchange.reusable:
                        exchange.next_cycle()
    return fed


def test_a_short_fuzz_run():
    assert fuzz(300_000, seed=1) >= 300_000


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(10))
def test_ten_million_bytes_of_noise(seed):
    assert fuzz(1_000_000, seed=100 + seed) >= 1_000_000
