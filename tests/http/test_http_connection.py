"""Connections on real sockets: order, continuation, limits, deadlines, clients that are slow, half gone or gone."""

from __future__ import annotations

import json
import socket
import struct
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles.scripted_engine import (
    RawClient,
    chat,
    encode,
    endless,
    eventually,
    finished,
    parrot,
    say,
    with_slots,
)
from phobos.chat.events import TextDelta
from phobos.http.transport import connection, roster

CHAT = "/v1/chat/completions"


def content(reply) -> str:
    return reply.json["choices"][0]["message"]["content"]


def test_a_connection_is_kept_alive(serve):
    with serve().connect() as client:
        for word in ("one", "two", "three"):
            reply = client.ask("POST", CHAT, chat(word))
            assert content(reply) == word
            assert "connection" not in reply.headers


def test_pipelined_requests_are_answered_in_order(serve):
    server = serve()
    with server.connect() as client:
        client.send(b"".join(encode("POST", CHAT, chat(f"number {i}")) for i in range(6)) + encode("GET", "/"))
        assert [content(client.read()) for _ in range(6)] == [f"number {i}" for i in range(6)]
        assert client.read().body == b"phobos-inference"


def test_a_request_a_byte_at_a_time_with_a_tail(serve):
    server = serve()
    data = encode("POST", CHAT, chat("slow and steady")) + encode("GET", "/health")
    with server.connect() as client:
        for byte in data:
            client.send(bytes([byte]))
        assert content(client.read()) == "slow and steady"
        assert client.read().status == 200


def test_a_chunked_body_is_read(serve):
    body = json.dumps(chat("in pieces")).encode()
    pieces = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (body[:7], body[7:])) + b"0\r\n\r\n"
    headers = {"transfer-encoding": "chunked", "content-type": "application/json"}
    with serve().connect() as client:
        client.send(encode("POST", CHAT, None, headers) + pieces)
        assert content(client.read()) == "in pieces"
        assert client.ask("GET", "/").status == 200


def test_continue_is_sent_before_the_body(serve):
    body = json.dumps(chat("patient")).encode()
    headers = {"expect": "100-continue", "content-length": str(len(body)), "content-type": "application/json"}
    with serve().connect(timeout_s=2) as client:
        client.send(encode("POST", CHAT, None, headers))
        assert client.read_head()[0] == 100
        client.send(body)
        assert content(client.read()) == "patient"


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"content-length": "99999999"}, 413), ({"content-length": "10", "authorization": "Bearer no"}, 401)],
)
def test_a_final_answer_takes_the_place_of_continue(serve, headers, status):
    server = serve(api_keys=("yes",) if status == 401 else ())
    with server.connect(timeout_s=2) as client:
        client.send(
            encode("POST", CHAT, None, {"expect": "100-continue", "content-type": "application/json", **headers})
        )
        assert client.read_head()[0] == status


def test_a_body_over_the_limit_is_413_however_it_comes(serve):
    server = serve(max_body_bytes=1000)
    declared = server.post(CHAT, b" " * 1001)
    assert declared.status == 413 and declared.error["code"] == "request_too_large"
    assert declared.headers["connection"] == "close" and "x-request-id" in declared.headers
    with server.connect() as client:
        client.send(encode("POST", CHAT, None, {"transfer-encoding": "chunked", "content-type": "application/json"}))
        client.send(b"800\r\n" + b"a" * 0x800 + b"\r\n")
        assert client.read().status == 413
        assert client.at_end()


def test_what_a_connection_refuses_is_told_in_the_envelope_of_its_path(serve):
    server = serve(max_body_bytes=1000, request_timeout_s=0.2)
    large = server.post("/v1/messages", b" " * 1001)
    assert large.status == 413 and large.json["type"] == "error"
    assert large.json["error"]["type"] == "request_too_large" and large.headers["connection"] == "close"
    for sent, status in ((b"he", 408), (b"", 400)):
        headers = {"content-type": "application/json"}
        headers |= {"content-length": "5"} if status == 408 else {"transfer-encoding": "chunked"}
        with server.connect() as client:
            client.send(encode("POST", "/v1/messages", None, headers) + (sent or b"zz\r\n"))
            reply = client.read()
            assert reply.status == status and reply.json["error"]["type"] == "invalid_request_error"


def test_a_large_refused_body_does_not_hide_the_answer(serve):
    server = serve(max_body_bytes=1000)
    with server.connect() as client:
        client.send(encode("POST", CHAT, b" " * (1 << 20)))
        assert client.read().status == 413


def test_a_body_is_drained_after_a_refusal(serve):
    server = serve(api_keys=("k",))
    with server.connect() as client:
        for headers, status in (({}, 401), ({"host": "evil.example"}, 403)):
            assert client.ask("POST", CHAT, chat("x" * 5000), headers).status == status
        assert client.ask("POST", CHAT, chat("after"), {"authorization": "Bearer k"}).status == 200


@pytest.mark.parametrize(
    "lines",
    ["content-length: 2\r\ncontent-length: 3", "content-length: 2\r\ntransfer-encoding: chunked", "bad header: x"],
)
def test_doubtful_framing_is_400_and_closes(serve, lines):
    with serve().connect() as client:
        client.send(f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\n{lines}\r\n\r\n{{}}".encode())
        reply = client.read()
        assert reply.status == 400 and reply.error["type"] == "invalid_request_error"
        assert client.at_end()


def test_head_and_options_and_wrong_methods(serve):
    server = serve(api_keys=("k",))
    head = server.ask("HEAD", "/health")
    assert head.status == 200 and int(head.headers["content-length"]) > 0
    preflight = server.ask(
        "OPTIONS", CHAT, None, {"origin": "http://localhost:3000", "access-control-request-method": "POST"}
    )
    assert preflight.status == 200
    assert preflight.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert "authorization" in preflight.headers["access-control-allow-headers"]
    wrong = server.get(CHAT, {"authorization": "Bearer k"})
    assert wrong.status == 405 and wrong.headers["allow"] == "POST, OPTIONS"
    assert wrong.error["code"] == "method_not_allowed"
    lost = server.get("/nowhere", {"authorization": "Bearer k"})
    assert lost.status == 404 and lost.error["code"] == "not_found"
    typed = server.post(CHAT, b"x", {"content-type": "text/plain", "authorization": "Bearer k"})
    assert typed.status == 415 and typed.error["code"] == "unsupported_media_type"


def test_the_query_and_the_prefix_do_not_change_the_route(serve):
    server = serve()
    assert server.post(CHAT + "?api-version=1", chat()).status == 200
    assert server.post("/chat/completions", chat()).status == 200
    assert server.get("/models").json == server.get("/v1/models").json
    assert server.get("/v1/health").status == 200


@pytest.mark.parametrize("sent", [b"", b"GET / HT", encode("POST", CHAT, None, {"content-length": "5"}) + b"he"])
def test_a_stalled_request_is_closed(serve, sent):
    with serve(request_timeout_s=0.2).connect() as client:
        client.send(sent)
        began = time.monotonic()
        if sent:
            assert client.read().status == 408
        assert client.at_end()
        assert time.monotonic() - began < 2


def test_a_dripping_request_meets_the_same_deadline(serve):
    with serve(request_timeout_s=0.3).connect() as client:
        data = encode("POST", CHAT, chat("never whole"))
        began = time.monotonic()
        with pytest.raises(OSError):
            for byte in data * 2:
                client.send(bytes([byte]))
                time.sleep(0.02)
                if time.monotonic() - began > 5:
                    pytest.fail("the dripping client was never cut off")
        assert time.monotonic() - began < 3


def test_an_idle_connection_is_closed(serve):
    with serve(keep_alive_s=0.2).connect() as client:
        assert client.ask("GET", "/").status == 200
        assert client.at_end()


def hold(server, n):
    """Connections with a request in the works."""
    clients = [server.connect() for _ in range(n)]
    for client in clients:
        client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n")
    eventually(lambda: server.listener.n_connections == n)
    return clients


def test_connections_beyond_the_limit_are_told(serve, caplog):
    caplog.set_level("INFO", "phobos.http")
    server = serve(max_connections=3)
    clients = hold(server, 3)
    with server.connect() as extra:
        reply = extra.ask("GET", "/v1/models")
        assert reply.status == 429 and reply.error["code"] == "too_many_connections"
        assert extra.at_end()
    assert "3 connections at once (--max-connections)" in caplog.text
    with server.connect() as extra:
        reply = extra.ask("POST", "/v1/messages", {})
        assert reply.status == 429 and reply.json["type"] == "error", "in the envelope of the path"
    clients.pop().socket.close()
    eventually(lambda: server.listener.n_connections <= 2)
    assert server.get("/v1/models").status == 200


def test_who_watches_is_never_refused(serve, monkeypatch):
    server = serve(max_connections=1)
    hold(server, 1)
    for path in ("/health", "/metrics"):
        with server.connect() as extra:
            reply = extra.ask("GET", path)
            assert reply.status == 200 and reply.headers["connection"] == "close"
            assert extra.at_end()
    monkeypatch.setattr(connection, "EXCESS_S", 0.1)
    with server.connect() as silent:
        assert silent.read().status == 429


def test_idle_connections_are_closed_before_anyone_is_refused(serve, monkeypatch):
    monkeypatch.setattr(roster, "IDLE_S", 0.2)
    server = serve(max_connections=3)
    clients = [server.connect() for _ in range(3)]
    for client in clients:
        assert client.ask("GET", "/").status == 200
        time.sleep(0.01)
    with server.connect() as extra:
        assert extra.ask("GET", "/v1/models").status == 429, "others may be about to ask"
    time.sleep(0.25)
    newer = [server.connect() for _ in range(2)]
    assert [client.ask("GET", "/").status for client in newer] == [200, 200]
    assert clients[0].at_end() and clients[1].at_end(), "those idle for longest"
    assert clients[2].ask("GET", "/").status == 200


def test_who_was_one_too_many_is_served_once_there_is_room(serve):
    server = serve(max_connections=1)
    (held,) = hold(server, 1)
    with server.connect() as extra:
        eventually(lambda: server.listener.n_connections == 2)
        held.socket.close()
        eventually(lambda: server.listener.n_connections == 1)
        assert [extra.ask("GET", "/v1/models").status for _ in range(2)] == [200, 200]


def test_one_address_elsewhere_may_be_bounded(serve, monkeypatch, caplog):
    caplog.set_level("INFO", "phobos.http")
    server = serve(max_connections_per_address=2)
    clients = hold(server, 4)
    assert server.get("/v1/models").status == 200, "this machine's own clients are not bounded"
    monkeypatch.setattr(roster, "is_local", lambda peer: False)
    with server.connect() as extra:
        assert extra.ask("GET", "/v1/models").status == 429
    assert "(--max-connections-per-address)" in caplog.text and len(clients) == 4


@pytest.mark.parametrize(
    ("peer", "local"),
    [("unix", True), ("127.0.0.1", True), ("127.8.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True),
     ("192.168.1.4", False), ("fe80::1%eth0", False), ("::ffff:10.0.0.1", False), ("nonsense", False)],
)  # fmt: skip
def test_which_addresses_are_this_machines_own(peer, local):
    assert roster.is_local(peer) == local


@given(st.none() | st.integers(0, 5000), st.integers(1, 2000))
def test_connections_fit_the_files_that_may_be_open(n_files, wanted):
    n_served, n_extra = roster.share_files(n_files, wanted)
    assert 1 <= n_served <= wanted and n_extra >= 1
    if n_files is None or n_files >= wanted + roster.EXTRA_CONNECTIONS + roster.FILES_BESIDE:
        assert (n_served, n_extra) == (wanted, roster.EXTRA_CONNECTIONS)
    elif n_files > roster.FILES_BESIDE + 1:
        assert n_served + n_extra + roster.FILES_BESIDE <= n_files


def test_a_line_a_minute(caplog):
    now_s = 0.0
    seldom = roster.Seldom("it happened %d times", lambda: now_s)
    for now_s in (0.0, 1.0, 59.0, 61.0, 62.0):  # noqa: B007
        seldom.note()
    assert caplog.messages == ["it happened 1 times", "it happened 3 times"]


def test_a_client_that_leaves_frees_the_engine(serve):
    server = serve(endless())
    for stream in (False, True):
        with server.connect() as client:
            client.send(encode("POST", CHAT, chat(stream=stream)))
            eventually(lambda: server.engine.running)
            if stream:
                client.read_until(b"tick ")
        began = time.monotonic()
        eventually(lambda: not server.engine.running)
        assert time.monotonic() - began < 0.5
    assert server.engine.cancelled == 2


def test_a_reset_frees_the_engine(serve):
    server = serve(endless())
    client = server.connect()
    client.send(encode("POST", CHAT, chat()))
    eventually(lambda: server.engine.running)
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()
    eventually(lambda: not server.engine.running)


@pytest.mark.parametrize("stream", [False, True])
def test_a_half_closed_client_still_gets_its_answer(serve, stream):
    server = serve(say("all ", "of ", "it", pause_s=0.1))
    with server.connect() as client:
        client.send(encode("POST", CHAT, chat(stream=stream)))
        client.socket.shutdown(socket.SHUT_WR)
        reply = client.read()
        assert reply.status == 200
        assert b"all of it" in reply.body if not stream else reply.events[-1] == "[DONE]"
        assert client.at_end()


def test_a_slow_reader_never_blocks_the_engine_and_loses_nothing(serve):
    n_pieces = 3000

    def flood(request, tokens, choice):
        if "flood" not in request.messages[-1].content:
            yield from parrot(request, tokens, choice)
            return
        for index in range(n_pieces):
            yield TextDelta(f"[{index}]" + "x" * 2000)
        yield finished(tokens, n_pieces)

    server = serve(flood, with_slots(2))
    with server.connect() as slow:
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        slow.send(encode("POST", CHAT, chat("flood", stream=True)))
        eventually(lambda: server.engine.finished == 1)
        assert content(server.post(CHAT, chat("others go on"))) == "others go on"
        events = slow.read().events
        text = "".join(e["choices"][0]["delta"].get("content", "") for e in events[:-1])
        assert [part.split("]")[0] for part in text.split("[")[1:]] == [str(i) for i in range(n_pieces)]


def test_a_client_that_stops_reading_is_let_go(serve):
    def flood(request, tokens, choice):
        while True:
            yield TextDelta("x" * 50_000)

    server = serve(flood, write_timeout_s=0.3)
    with server.connect() as client:
        client.send(encode("POST", CHAT, chat(stream=True)))
        eventually(lambda: server.engine.running)
        eventually(lambda: not server.engine.running and server.listener.n_connections == 0)


def test_ipv6_and_unix_sockets(serve, tmp_path):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    six = serve(listen="[::1]:0")
    assert six.url.startswith("http://[::1]:")
    assert content(six.post(CHAT, chat("six"))) == "six"
    path = str(tmp_path / "phobos.sock")
    unix = serve(listen="unix:" + path)
    assert content(unix.post(CHAT, chat("unix"))) == "unix"
    assert Path(path).stat().st_mode & 0o077 == 0
    unix.listener.close(0)
    assert not Path(path).exists()


def test_an_unread_answer_to_an_old_client_ends_by_closing(serve):
    with serve().connect() as client:
        body = json.dumps(chat("old", stream=True)).encode()
        head = f"POST {CHAT} HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        client.send(head.encode() + body)
        reply = client.read()
        assert reply.events[-1] == "[DONE]" and "transfer-encoding" not in reply.headers


def test_nothing_leaks(serve):
    server = serve(parrot)
    server.get("/")
    open_files = Path("/proc/self/fd")
    before = len(list(open_files.iterdir())) if open_files.is_dir() else None
    for index in range(40):
        client = RawClient(server.where)
        client.send(encode("POST", CHAT, chat(stream=bool(index % 2)))[: None if index % 3 else 60])
        client.socket.close()
    eventually(lambda: server.listener.n_connections == 0)
    if before is not None:
        eventually(lambda: len(list(open_files.iterdir())) <= before)
    assert not server.engine.running
