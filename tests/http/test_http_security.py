"""Keys, the Host guard, CORS, addresses, and what errors and logs must not tell."""

from __future__ import annotations

import gc
import logging
import socket

import pytest

from doubles.scripted_engine import chat
from phobos.counters import Counters
from phobos.errors import PhobosError, UsageError
from phobos.http.listener import Listener
from phobos.http.transport.addresses import Address, bind_socket, check_exposed, parse_address
from phobos.http.transport.security import build_guard, host_name
from phobos.settings import ServeSettings

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Basic first"}, 401),
        ({"authorization": "Bearer"}, 401),
        ({"x-api-key": "firs"}, 401),
        ({"authorization": "Bearer first"}, 200),
        ({"authorization": "bearer second"}, 200),
        ({"x-api-key": "second"}, 200),
        ({"x-api-key": "ÿ\xe4"}, 401),
    ],
)
def test_keys(serve, headers, status):
    server = serve(api_keys=("first", "second"))
    for method, path, body in (("POST", CHAT, chat()), ("GET", "/metrics", None), ("GET", "/v1/models", None)):
        reply = server.ask(method, path, body, headers)
        assert reply.status == status
        if status == 401:
            assert reply.error["code"] == "invalid_api_key"


def test_without_a_key_health_tells_only_that_it_is_well(serve):
    server = serve(api_keys=("k",))
    assert server.get("/health").json == {"status": "ok"}
    assert "scheduler" in server.get("/health", {"x-api-key": "k"}).json


def test_any_key_is_accepted_where_none_is_set(serve):
    assert serve().post(CHAT, chat(), {"authorization": "Bearer whatever"}).status == 200


HOSTS = [
    ("localhost", True),
    ("LOCALHOST:8080", True),
    ("localhost.", True),
    ("127.0.0.1:1", True),
    ("127.8.9.1", True),
    ("[::1]:8080", True),
    ("evil.example", False),
    ("evil.example:8080", False),
    ("localhost.evil.example", False),
    ("127.0.0.1.evil.example", False),
    ("localhost:8080@evil.example", False),
    ("[::2]", False),
    ("", False),
    ("a b", False),
]


@pytest.mark.parametrize(("host", "known"), HOSTS)
def test_the_host_guard(serve, host, known):
    server = serve()
    for method, path in (("GET", "/"), ("OPTIONS", CHAT), ("GET", "/health"), ("HEAD", "/")):
        status = server.ask(method, path, None, {"host": host}).status
        assert (status != 403) is known


def test_allowed_hosts(serve):
    server = serve(allowed_hosts=("LLM.example", "10.0.0.7"))
    for host, status in (("llm.example:443", 200), ("10.0.0.7", 200), ("other.example", 403), ("localhost", 200)):
        assert server.get("/", {"host": host}).status == status


def test_any_host_is_allowed_with_a_warning(serve, caplog):
    with caplog.at_level(logging.WARNING, "phobos.http"):
        server = serve(allowed_hosts=("*",))
        assert server.get("/", {"host": "evil.example"}).status == 200
    assert "DNS rebinding" in caplog.text


def test_the_bind_address_is_a_known_host():
    guard = build_guard(ServeSettings(), Address(host="10.1.2.3", port=1))
    assert guard.knows_host("10.1.2.3:1") and not guard.knows_host("10.1.2.4")
    assert host_name("[2001:DB8::1]:80") == "2001:db8::1"


LOCAL, OURS = "http://localhost:5173", "https://ui.example"
CORS = [
    ((), LOCAL, LOCAL),
    ((), "tauri://localhost", "tauri://localhost"),
    ((), "http://[::1]:3000", "http://[::1]:3000"),
    ((), OURS, None),
    ((), "http://localhost.evil.example", None),
    ((), "null", None),
    ((OURS,), OURS, OURS),
    ((OURS,), LOCAL, None),
    (("+" + OURS,), OURS, OURS),
    (("+" + OURS,), LOCAL, LOCAL),
    (("*",), "https://anything.example", "*"),
]


@pytest.mark.parametrize(("origins", "origin", "allowed"), CORS)
def test_cors(serve, origins, origin, allowed):
    server = serve(cors_origins=origins)
    asked = {"origin": origin, "access-control-request-method": "POST", "access-control-request-headers": "x-extra"}
    for method, path, body in (("OPTIONS", CHAT, None), ("POST", CHAT, chat()), ("GET", "/nowhere", None)):
        reply = server.ask(method, path, body, asked)
        assert reply.headers.get("access-control-allow-origin") == allowed
        if method == "OPTIONS":
            assert ("access-control-allow-methods" in reply.headers) is (allowed is not None)
            assert allowed is None or "x-extra" in reply.headers["access-control-allow-headers"]
    streamed = server.post(CHAT, chat(stream=True), {"origin": origin})
    assert streamed.headers.get("access-control-allow-origin") == allowed


@pytest.mark.parametrize(
    ("text", "host", "port", "path"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080, None),
        ("[::1]:8080", "::1", 8080, None),
        (":8080", "", 8080, None),
        ("localhost:0", "localhost", 0, None),
        ("unix:/run/x.sock", None, 0, "/run/x.sock"),
    ],
)
def test_addresses(text, host, port, path):
    assert parse_address(text) == Address(host, port, path)


@pytest.mark.parametrize("text", ["", "8080", "host", "host:", "host:x", "host:99999", "::1:8080", "unix:", "host:-1"])
def test_wrong_addresses_are_usage_errors(text):
    with pytest.raises(UsageError, match="--listen"):
        parse_address(text)
    with pytest.raises(UsageError, match="names no port: they go from 0 to 65535"):
        parse_address("127.0.0.1:65536")


@pytest.mark.parametrize("host", ["0.0.0.0", "", "192.168.1.5", "::", "example.org"])
def test_a_bind_that_others_reach_needs_a_key(host):
    address = Address(host, 1)
    with pytest.raises(UsageError, match="--api-key"):
        check_exposed(address, has_key=False, insecure=False)
    check_exposed(address, has_key=True, insecure=False)
    check_exposed(address, has_key=False, insecure=True)
    for local in (Address("127.0.0.1", 1), Address("::1", 1), Address("localhost", 1), Address(path="/x")):
        check_exposed(local, has_key=False, insecure=False)


def test_a_busy_port_is_one_sentence():
    sock, address = bind_socket(Address("127.0.0.1", 0))
    with sock:
        listener = Listener(ServeSettings(listen=f"127.0.0.1:{address.port}"), Counters())
        with pytest.raises(PhobosError, match=r"in use.*--listen") as caught:
            listener.bind()
        assert caught.value.exit_code == 1 and "\n" not in str(caught.value)


def test_unix_sockets_in_the_way(tmp_path):
    path = str(tmp_path / "s")
    sock, _ = bind_socket(Address(path=path))
    with sock, pytest.raises(PhobosError, match="in use"):
        bind_socket(Address(path=path))
    again, _ = bind_socket(Address(path=path))  # the first one's owner is gone: its leftover is replaced
    again.close()
    plain = tmp_path / "file"
    plain.write_text("keep me")
    with pytest.raises(PhobosError):
        bind_socket(Address(path=str(plain)))
    assert plain.read_text() == "keep me"
    with pytest.raises(PhobosError):
        bind_socket(Address("no.such.host.invalid", 1))


def test_port_zero_is_told(serve):
    server = serve()
    assert server.counters.address == server.url and not server.url.endswith(":0")
    with socket.create_connection(server.where, timeout=2):
        pass


def test_a_client_accepted_as_the_server_ends_is_closed(serve):
    for _ in range(10):
        server = serve()
        with socket.create_connection(server.where, timeout=2):
            server.listener.close(0)
        server.engine.close()
    gc.collect()  # a socket that was lost would warn here


def test_the_port_answers_before_anything_is_loaded(serve):
    assert serve(load=False).get("/").body == b"phobos-inference"


def test_logs_hold_no_content_and_errors_no_paths(serve, caplog):
    secret = "my darkest secret"
    server = serve()
    with caplog.at_level(logging.DEBUG):
        server.post(CHAT, chat(secret), {"authorization": "Bearer topsecretkey"})
        server.post(CHAT, chat(secret, **{"odd-field": 1}))
        server.post(CHAT, {"messages": [{"role": "user", "content": [{"type": secret}]}]})
        server.post(CHAT, chat("refuse this " + secret))
        props = server.get("/props")
    assert secret not in caplog.text and "topsecretkey" not in caplog.text
    assert "odd-field" in caplog.text
    assert b"/secret/place" not in props.body and props.json["model_path"] == "model.gguf"


def test_only_trace_logs_hold_content(serve, caplog):
    server = serve()
    with caplog.at_level(5, "phobos.http"):
        server.post(CHAT, chat("in plain sight"))
    assert "in plain sight" in caplog.text


def test_an_unknown_path_is_noted_in_the_log(serve, caplog):
    server = serve()
    with caplog.at_level(logging.INFO, "phobos.http"):
        server.get("/v1/embeddings\x7f" + "a" * 500)
        server.get("/nowhere")
    assert "/nowhere" in caplog.text and "a" * 400 not in caplog.text


def test_a_client_that_aborts_is_a_debug_line(serve, caplog):
    server = serve()
    with caplog.at_level(logging.DEBUG, "phobos.http"), server.connect() as client:
        client.send(b"POST / HTTP/1.1\r\nhost: loc")
    assert all(record.levelno < logging.WARNING for record in caplog.records)
