"""Attached to a server: the real listener over a scripted engine, and servers that are less than that."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from doubles.chat_scripted import talk
from doubles.scripted_engine import Script, ScriptedEngine, ScriptedModel, endless, eventually, finished
from phobos.chat.events import Event, Failed, Finished, ReasoningDelta, TextDelta
from phobos.chat.messages import GenerationRequest
from phobos.counters import Counters
from phobos.errors import PhobosError, RequestError, UnavailableError, UsageError
from phobos.http.listener import Listener
from phobos.repl import remote
from phobos.repl.exchange import Answer, run_exchange
from phobos.repl.http_client import HttpClient, ServerAddress, parse_address
from phobos.repl.local import LocalPartner
from phobos.repl.partner import Partner
from phobos.repl.remote import RemotePartner, find_server, open_remote, read_events
from phobos.repl.session import AskHooks, Session
from phobos.repl.settings import ChatSettings
from phobos.settings import EngineSettings, SamplingDefaults, ServeSettings

from .conftest import PseudoTerminal

ADDRESS = ServerAddress("127.0.0.1", 8080)


@dataclass
class Server:
    listener: Listener
    engine: ScriptedEngine

    @property
    def url(self) -> str:
        return self.listener.address


Serve = Callable[..., Server]


@pytest.fixture
def serve() -> Iterator[Serve]:
    running: list[Server] = []

    def start(
        script: Script = talk, model: ScriptedModel | None = None, *, load: bool = True, **settings: object
    ) -> Server:
        listener = Listener(ServeSettings(**{"listen": "127.0.0.1:0", **settings}), Counters())  # type: ignore[arg-type]
        listener.bind()
        listener.start()
        running.append(Server(listener, ScriptedEngine(model, script)))
        if load:
            listener.attach(running[-1].engine)
        return running[-1]

    yield start
    for server in running:
        server.listener.close(0)
        server.engine.close()


def session_with(partner: Partner, **settings: object) -> Session:
    return Session(ChatSettings(resolve=lambda name: Path("m"), engine=EngineSettings, **settings), partner)  # type: ignore[arg-type]


def ask(session: Session, text: str) -> Answer:
    return session.ask(text, AskHooks(lambda answer: None, lambda answer: None, lambda: False))


def quiet(text: str) -> None:
    raise AssertionError(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080/v1/", "http://127.0.0.1:8080"),
        ("localhost:9000", "http://localhost:9000"),
        (":9000", "http://127.0.0.1:9000"),
        ("box", "http://box:8080"),
        ("http://box", "http://box:80"),
        ("https://box/proxy/v1", "https://box:443/proxy"),
        ("http://[::1]:81", "http://[::1]:81"),
        ("unix:/run/p.sock", "unix:/run/p.sock"),
    ],
)
def test_addresses(text: str, address: str) -> None:
    assert str(parse_address(text)) == address


@pytest.mark.parametrize("text", ["ftp://a", "http://", "http://a:port", "a:99999", "unix:", "http://[::1"])
def test_wrong_addresses(text: str) -> None:
    with pytest.raises(UsageError):
        parse_address(text)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "unix"])
def test_a_conversation_over_http(serve: Serve, tmp_path: Path, listen: str) -> None:
    server = serve(listen=f"unix:{tmp_path}/s" if listen == "unix" else listen)
    partner = open_remote(server.url, None, quiet)
    assert (partner.info.model, partner.info.n_ctx, partner.info.can_think) == ("scripted", 4096, True)
    assert partner.info.where == server.url
    session = session_with(
        partner, system="be kind", sampling=SamplingDefaults(temperature=0.25, seed=7, max_tokens=99)
    )
    session.thinking = True
    answer = ask(session, "think: Grüße 中")
    assert answer.error is None
    assert answer.reasoning == "first this, then that " and answer.text.startswith("Answer 1: 1 lines, 14 letters")
    assert answer.finished is not None and answer.finished.usage.n_cached == 7
    assert answer.rate is not None and answer.rate > 1
    ask(session, "second")
    first, second = server.engine.submitted
    assert [m.role for m in second.messages] == ["system", "user", "assistant", "user"]
    assert second.messages[2].reasoning == answer.reasoning
    assert (first.sampling.temperature, first.sampling.seed, first.max_tokens, first.thinking) == (0.25, 7, 99, True)
    assert first.sampling.top_k is None  # the server's own value holds


def test_tokens_by_the_servers_routes(serve: Serve) -> None:
    partner = open_remote(serve().url, None, quiet)
    assert [(t.token_id, t.text) for t in partner.tokenize("ab")] == [(97, "a"), (98, "b")]
    session = session_with(partner)
    ask(session, "hello")
    assert partner.count_prompt(session.build_request()) > 20


def test_deciding_by_the_servers_route_is_as_by_an_engine_here(serve: Serve) -> None:
    server = serve()
    partner = open_remote(server.url, None, quiet)
    assert partner.can_decide()
    found = partner.decide("User: hello", "polite?", ("yes", "no", "a little"))
    here = LocalPartner(server.engine).decide("User: hello", "polite?", ("yes", "no", "a little"))  # type: ignore[arg-type]
    assert found.labels == here.labels
    assert found.probabilities == pytest.approx(here.probabilities, abs=1e-6)
    assert found.confidence == pytest.approx(here.confidence, abs=1e-6)
    with canned(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n") as url:
        assert not RemotePartner(HttpClient(parse_address(url)), [{"id": "m"}]).can_decide()


def test_a_model_without_chat_format_continues_the_text(serve: Serve) -> None:
    server = serve(model=replace(ScriptedModel(), template=None))
    partner = open_remote(server.url, None, quiet)
    assert not partner.info.has_chat
    ask(session_with(partner), "The sky is")
    assert server.engine.submitted[0].prompt == "The sky is"


def test_stopping_closes_the_connection(serve: Serve) -> None:
    server = serve(endless())
    partner = open_remote(server.url, None, quiet)
    seen: list[str] = []
    answer = run_exchange(
        partner,
        GenerationRequest("r", prompt="x"),
        on_event=lambda answer: seen.append(answer.text),
        on_tick=lambda answer: None,
        stopped=lambda: len(seen) > 5,
    )
    assert answer.stopped and answer.text.startswith("tick tick")
    assert eventually(lambda: server.engine.cancelled == 1)


def test_failures_come_as_the_servers_own_sentence(serve: Serve) -> None:
    def half(request: GenerationRequest, tokens: tuple[int, ...], choice: int) -> Iterator[Event | float]:
        yield TextDelta("half ")
        yield 0.05
        yield Failed(RequestError("the answer broke: try again"))

    server = serve(half)
    session = session_with(open_remote(server.url, None, quiet))
    answer = ask(session, "hi")
    assert (answer.text, str(answer.error)) == ("half ", "the answer broke: try again")
    refused = ask(session, "refuse this")
    assert "roles must alternate" in str(refused.error)
    long = ask(session, "x" * 5000)
    assert "the context holds 4096" in str(long.error)
    server.listener.close(0)
    gone = ask(session, "still there?")
    assert isinstance(gone.error, UnavailableError) and "no server answers on" in str(gone.error)


def test_keys(serve: Serve) -> None:
    server = serve(api_keys=("secret",))
    for key in (None, "wrong"):
        with pytest.raises(RequestError, match="set PHOBOS_API_KEY"):
            open_remote(server.url, key, quiet)
    assert ask(session_with(open_remote(server.url, "secret", quiet)), "hi").error is None


def test_a_server_that_still_loads_is_waited_for(serve: Serve) -> None:
    server = serve(load=False)
    said: list[str] = []
    threading.Timer(0.3, lambda: server.listener.attach(server.engine)).start()
    partner = open_remote(server.url, None, said.append)
    assert len(said) == 1 and "is loading its model" in said[0]
    assert partner.info.model == "scripted"


def test_nobody_there() -> None:
    with pytest.raises(UnavailableError, match=r"no server answers on http://127\.0\.0\.1:9"):
        open_remote("127.0.0.1:9", None, quiet)


# Finding a server unasked


@pytest.fixture
def usual_port(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make this address the one that is looked at."""
    return lambda url: monkeypatch.setattr(remote, "LOCAL_SERVER", parse_address(url))


def test_a_server_is_found(serve: Serve, usual_port: Callable[[str], None]) -> None:
    usual_port(serve().url)
    assert find_server(None, None) is not None
    assert find_server(None, Path("/elsewhere/model.gguf")) is not None  # the file the scripted model names
    assert find_server(None, Path("/elsewhere/other.gguf")) is None


def test_a_server_with_a_key_is_left_alone_without_it(serve: Serve, usual_port: Callable[[str], None]) -> None:
    usual_port(serve(api_keys=("secret",)).url)
    assert find_server(None, None) is None
    assert find_server("secret", None) is not None


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n",
        b"",
        None,
    ],
)
def test_what_is_no_phobos_is_left_alone(usual_port: Callable[[str], None], reply: bytes | None) -> None:
    with canned(reply) as url:
        usual_port(url)
        assert find_server(None, None) is None


class canned:  # noqa: N801
    """A socket that gives every connection the same bytes; `None`: it says nothing."""

    def __init__(self, reply: bytes | None) -> None:
        self._reply = reply
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._open.append(connection)
            if self._reply is not None:
                connection.recv(65536)
                connection.sendall(self._reply)
                connection.close()

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __exit__(self, *exc: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)
        for connection in self._open:
            connection.close()


# Streams of other servers


def stream(*chunks: object, end: str = "data: [DONE]\n\n") -> list[bytes]:
    text = ": hello\n\n" + "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + end
    return text.encode().splitlines(keepends=True)


def delta(**fields: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


STOP = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def test_a_bare_stream_is_enough() -> None:
    events = list(
        read_events(
            iter(stream(delta(role="assistant", content=""), delta(content="a"), delta(reasoning="r"), STOP)), ADDRESS
        )
    )
    assert [e for e in events if isinstance(e, TextDelta)] == [TextDelta("a")]
    assert [e for e in events if isinstance(e, ReasoningDelta)] == [ReasoningDelta("r")]
    last = events[-1]
    assert isinstance(last, Finished) and (last.reason, last.usage.n_generated) == ("stop", 0)


def test_usage_after_the_finish_counts() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": None}}
    last = list(read_events(iter(stream(delta(content="a"), STOP, usage)), ADDRESS))[-1]
    assert isinstance(last, Finished) and (last.usage.n_prompt, last.usage.n_generated) == (3, 2)


def test_guesses_are_read_from_the_timings() -> None:
    last = list(
        read_events(
            iter(stream(delta(content="a"), {**STOP, "timings": {"draft_n": 8, "draft_n_accepted": 6}})), ADDRESS
        )
    )[-1]
    assert isinstance(last, Finished) and (last.timings.n_draft, last.timings.n_draft_accepted) == (8, 6)


@pytest.mark.parametrize("end", ["", "data: [DONE]\n\n"])
def test_a_stream_cut_short_is_a_failure(end: str) -> None:
    with pytest.raises(UnavailableError, match="ended the answer early"):
        list(read_events(iter(stream(delta(content="a"), end=end)), ADDRESS))


def test_an_error_in_the_stream_is_raised() -> None:
    with pytest.raises(PhobosError, match="out of luck"):
        list(read_events(iter(stream(delta(content="a"), {"error": {"message": "out of luck"}})), ADDRESS))


@pytest.mark.parametrize("body", [b"data: {broken\n\n", b"data: [1]\n\n"])
def test_a_stream_that_cannot_be_read_is_a_failure(body: bytes) -> None:
    reply = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + body
    with canned(reply) as url:
        partner = RemotePartner(HttpClient(parse_address(url)), [{"id": "m"}])
        answer = ask(session_with(partner), "hi")
    assert isinstance(answer.error, UnavailableError)


@pytest.mark.parametrize("reply", [b'{"data": []}', b"[]", b"no json"])
def test_a_server_without_models(reply: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(reply)
    with canned(head + reply) as url, pytest.raises(UnavailableError, match="lists no model"):
        open_remote(url, None, lambda text: None)


def test_a_chat_on_a_terminal_through_a_server(serve: Serve, start_chat: Callable[..., PseudoTerminal]) -> None:
    server = serve()
    chat = start_chat("--attach", server.url, program=("-m", "phobos.cli"))
    assert f"on {server.url}" in chat.text
    assert "Answer 1: 1 lines, 5 letters, hello" in chat.ask("hello")
    assert server.url in chat.ask("/stats", "runs .*")
    assert "serves one model" in chat.ask("/model other", "serves one model")
    assert chat.quit() == 0


def test_finish_reason_length_is_told() -> None:
    cut = {"choices": [{"index": 0, "text": "a", "finish_reason": "length"}]}
    events = list(read_events(iter(stream(cut)), ADDRESS))
    assert events[1] == TextDelta("a")
    assert isinstance(events[-1], Finished) and events[-1].reason == "length"
    assert finished((1,), 1).reason == "stop"
