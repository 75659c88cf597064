"""Many clients at once, some of them badly behaved: nothing lost, crossed or leaked.

The short run belongs to every test run; the minute with 200 clients is marked slow.
"""

from __future__ import annotations

import gc
import json
import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from doubles.scripted_engine import RawClient, chat, encode, eventually, finished, with_slots
from phobos.chat.events import TextDelta

CHAT = "/v1/chat/completions"


def repeat_after_me(request, tokens, choice):
    """Ten tokens, each naming the request it belongs to."""
    name = request.messages[-1].content
    for index in range(10):
        yield TextDelta(f"{name}.{index} ")
        yield 0.001
    yield finished(tokens, 10)


def expected(name):
    return "".join(f"{name}.{index} " for index in range(10))


class Crowd:
    """Clients that ask until told to stop, and what happened to them."""

    def __init__(self, server, n_clients: int, seed: int) -> None:
        self.server = server
        self.seen: Counter[str] = Counter()
        self.faults: list[str] = []
        self.stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._live, args=(index, seed), daemon=True) for index in range(n_clients)
        ]

    def run(self, seconds: float) -> None:
        for thread in self._threads:
            thread.start()
        time.sleep(seconds)
        self.stop.set()
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive(), "a client hangs"

    def _note(self, what: str) -> None:
        with self._lock:
            self.seen[what] += 1

    def _live(self, index: int, seed: int) -> None:
        chance = random.Random(seed * 1000 + index)
        kind = "garbage" if index % 10 == 0 else "abort" if index % 4 == 1 else "drip" if index % 25 == 7 else "good"
        n_asked = 0
        while not self.stop.is_set():
            n_asked += 1
            try:
                getattr(self, "_" + kind)(f"client{index}-{n_asked}", chance)
            except (ConnectionError, EOFError, TimeoutError):
                self._note(kind + " cut off")
                if kind == "good":
                    self.faults.append(f"client{index} was cut off")
            except Exception as error:
                self.faults.append(f"client{index}: {type(error).__name__}: {error}")

    def _good(self, name: str, chance: random.Random) -> None:
        with RawClient(self.server.where, 30) as client:
            for turn in range(3):
                mine = f"{name}-{turn}"
                stream = chance.random() < 0.5
                reply = client.ask("POST", CHAT, chat(mine, stream=stream))
                if reply.status in (429, 503):
                    assert reply.error["code"] in ("queue_full", "too_many_connections"), reply
                    self._note(f"refused {reply.status}")
                    time.sleep(0.01)
                    if reply.headers.get("connection") == "close":
                        return
                    continue
                assert reply.status == 200, reply
                if stream:
                    events = reply.events
                    assert events[-1] == "[DONE]"
                    text = "".join(e["choices"][0]["delta"].get("content", "") for e in events[:-1])
                else:
                    text = reply.json["choices"][0]["message"]["content"]
                if text != expected(mine):
                    self.faults.append(f"{mine} got {text!r}")
                self._note("answered")

    def _abort(self, name: str, chance: random.Random) -> None:
        with RawClient(self.server.where, 30) as client:
            data = encode("POST", CHAT, chat(name, stream=chance.random() < 0.5))
            client.send(data[: chance.randrange(1, len(data) + 1)])
            time.sleep(chance.random() * 0.05)
        self._note("aborted")

    def _garbage(self, name: str, chance: random.Random) -> None:
        with RawClient(self.server.where, 30) as client:
            client.send(chance.randbytes(chance.randrange(1, 400)))
            client.socket.settimeout(0.2)
            try:
                while client.socket.recv(4096):
                    pass
            except TimeoutError:
                pass
        self._note("garbage sent")

    def _drip(self, name: str, chance: random.Random) -> None:
        data = encode("POST", CHAT, chat(name))
        with RawClient(self.server.where, 30) as client:
            for byte in data:
                if self.stop.is_set():
                    return
                client.send(bytes([byte]))
                time.sleep(0.005)
            assert client.read().status in (200, 429, 503)
        self._note("dripped")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def n_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def hold_a_crowd(serve, n_clients: int, seconds: float, seed: int) -> Crowd:
    server = serve(
        repeat_after_me,
        with_slots(16),
        max_connections=n_clients,
        max_queue=n_clients // 2,
    )
    server.get("/")
    gc.collect()
    files_before, memory_before = n_open_files(), resident_bytes()
    crowd = Crowd(server, n_clients, seed)
    crowd.run(seconds)
    assert crowd.faults == []
    eventually(lambda: server.listener.n_connections == 0, 10)
    eventually(lambda: not server.engine.running)
    assert server.counters.queue_depth == 0
    eventually(lambda: n_open_files() <= files_before)
    health = json.loads(server.get("/health").body)["scheduler"]
    assert health["active"] == 0 and health["queued"] == 0
    assert health["failed"] == 0 and health["completed"] >= crowd.seen["answered"]
    gc.collect()
    assert resident_bytes() - memory_before < 64 << 20
    return crowd


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files under /proc")
def test_a_crowd_for_two_seconds(serve):
    crowd = hold_a_crowd(serve, 40, 2, seed=1)
    assert crowd.seen["answered"] > 20 and crowd.seen["aborted"] and crowd.seen["garbage sent"], crowd.seen


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files under /proc")
def test_two_hundred_clients_for_a_minute(serve):
    crowd = hold_a_crowd(serve, 200, 60, seed=2)
    print(dict(crowd.seen))
    assert crowd.seen["answered"] > 1000
