"""A server on a real socket with a scripted engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest

from doubles.scripted_engine import RawClient, Reply, Script, ScriptedEngine, ScriptedModel, parrot
from phobos.counters import Counters
from phobos.http.listener import Listener
from phobos.settings import ServeSettings


@dataclass
class Server:
    """A running listener, its engine and how to reach it."""

    listener: Listener
    engine: ScriptedEngine
    counters: Counters
    clients: list[RawClient] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.listener.address

    @property
    def where(self) -> tuple[str, int] | str:
        if self.url.startswith("unix:"):
            return self.url[len("unix:") :]
        parts = urlsplit(self.url)
        assert parts.hostname is not None and parts.port is not None
        return parts.hostname, parts.port

    def connect(self, timeout_s: float = 10.0) -> RawClient:
        client = RawClient(self.where, timeout_s)
        self.clients.append(client)
        return client

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
        with self.connect() as client:
            return client.ask(method, path, body, headers)

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Reply:
        return self.ask("POST", path, body, headers)

    def get(self, path: str, headers: dict[str, str] | None = None) -> Reply:
        return self.ask("GET", path, None, headers)


Serve = Callable[..., Server]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a server: `serve(script=…, model=…, load=True, **settings)`."""
    running: list[Server] = []

    def start(
        script: Script = parrot, model: ScriptedModel | None = None, *, load: bool = True, **settings: Any
    ) -> Server:
        settings = {"listen": "127.0.0.1:0", **settings}
        counters = Counters()
        listener = Listener(ServeSettings(**settings), counters)
        engine = ScriptedEngine(model, script)
        listener.bind()
        listener.start()
        server = Server(listener, engine, counters)
        running.append(server)
        if load:
            listener.attach(engine)
        return server

    yield start
    for server in running:
        for client in server.clients:
            client.socket.close()
        server.listener.close(0)
        server.engine.close()
