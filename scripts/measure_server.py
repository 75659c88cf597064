"""What the server costs beside its engine: the same prompts asked of the engine itself and over HTTP, in turns.

    python scripts/measure_server.py MODEL.gguf [--rounds N] [--tokens N] [--streams N]

Engine and listener live in this process, as when serving; the client is a process of its own that reads streams from
plain sockets, so that it costs the engine's cores as little as a client can. Prints the medians of the rounds: one
stream's decode time and time to the first token, and the tokens a second of several streams at once.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from phobos.chat.events import Event, Failed, Finished, TextDelta
from phobos.counters import Counters
from phobos.engine.engine import Engine
from phobos.http.listener import Listener
from phobos.http.openai import parse_chat
from phobos.runtime import LoadLog, start_engine
from phobos.settings import EngineSettings, ServeSettings

STORIES = ("a whale", "a lighthouse", "a clock", "a violin", "a river", "a baker", "a comet", "a fox")
WARM_UP_S = 4.0  # before anything is counted, so that the processor's clock has settled


@dataclass(frozen=True)
class Timing:
    """One round: seconds from asking to the first text and to the end, the first of all streams to the last."""

    first_s: float
    decode_s: float
    whole_s: float
    n_tokens: int


def write_body(index: int, n_tokens: int) -> dict[str, Any]:
    """A chat request that is answered at length."""
    return {
        "messages": [{"role": "user", "content": f"Write a very long story about {STORIES[index % len(STORIES)]}."}],
        "temperature": 0,
        "max_tokens": n_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


# --- the client, in a process of its own ------------------------------------------------------------------------------


def read_stream(connection: socket.socket, body: bytes) -> tuple[float, float, float, bytes]:
    """Send a request; seconds on this clock at the asking, the first text and the end; and the reply's last bytes."""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
    asked_s = time.perf_counter()
    connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
    tail, first_s = b"", 0.0
    while not tail.endswith(b"0\r\n\r\n"):
        data = connection.recv(1 << 16)
        if not data:
            raise SystemExit("the server closed the connection")
        if not first_s and b'"content":"' in (tail + data).replace(b'"content":""', b""):
            first_s = time.perf_counter()
        tail = (tail + data)[-4096:]
    return asked_s, first_s, time.perf_counter(), tail


def run_client(address: str) -> None:
    """Do what each line of standard input says: a list of bodies, asked at once."""
    place = urlsplit(address)
    connections: list[socket.socket] = []
    for line in sys.stdin:
        bodies = [json.dumps(body).encode() for body in json.loads(line)]
        while len(connections) < len(bodies):
            connections.append(socket.create_connection((str(place.hostname), int(place.port or 0))))
        found: list[Any] = [None] * len(bodies)

        def ask(index: int, body: bytes, found: list[Any] = found) -> None:
            *times, tail = read_stream(connections[index], body)
            usage = json.loads(tail[tail.rindex(b'"usage":') + 8 :].partition(b"}}")[0] + b"}}")
            found[index] = [*times, usage["completion_tokens"]]

        threads = [threading.Thread(target=ask, args=pair) for pair in enumerate(bodies)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(json.dumps(found), flush=True)


# --- the two ways -----------------------------------------------------------------------------------------------------


def ask_server(client: subprocess.Popen[str], bodies: list[dict[str, Any]]) -> Timing:
    """Over HTTP."""
    assert client.stdin is not None and client.stdout is not None
    client.stdin.write(json.dumps(bodies) + "\n")
    client.stdin.flush()
    return read_times(json.loads(client.stdout.readline()))


def ask_engine(engine: Engine, bodies: list[dict[str, Any]]) -> Timing:
    """Without HTTP: prepared and submitted here."""
    found: list[list[float]] = []
    done = threading.Semaphore(0)

    def sink_into(times: list[float]) -> Any:
        def sink(event: Event) -> None:
            if isinstance(event, TextDelta) and len(times) == 1:
                times.append(time.perf_counter())
            elif isinstance(event, Finished):
                times.extend((time.perf_counter(), event.usage.n_generated))
                done.release()
            elif isinstance(event, Failed):
                raise event.error

        return sink

    requests = [parse_chat(body, f"direct-{i}", ServeSettings()).requests[0] for i, body in enumerate(bodies)]
    for request in requests:
        found.append([time.perf_counter()])
        engine.submit(request, engine.model.prepare(request), sink_into(found[-1]))
    for _ in requests:
        done.acquire()
    return read_times(found)


def read_times(found: list[list[float]]) -> Timing:
    """From rows of asked, first text, end, tokens."""
    asked, first, ended, tokens = zip(*found, strict=True)
    return Timing(first[0] - asked[0], ended[0] - first[0], max(ended) - min(asked), int(sum(tokens)))


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=192, help="of each answer, at most")
    parser.add_argument("--streams", type=int, default=4, help="asked at once for the throughput")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        run_client(options.client)
        return 0
    counters = Counters()
    listener = Listener(ServeSettings(listen="127.0.0.1:0"), counters)
    listener.start()
    engine = start_engine(EngineSettings(options.model, n_ctx=2048, n_slots=options.streams), counters, LoadLog())
    listener.attach(engine)
    command = [sys.executable, __file__, str(options.model), "--client", listener.address]
    client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        for n_streams in (1, options.streams):
            compare(engine, client, options, n_streams)
    finally:
        client.terminate()
        listener.close(0.0)
        engine.close(0.0)
    return 0


def compare(engine: Engine, client: subprocess.Popen[str], options: argparse.Namespace, n_streams: int) -> None:
    """Rounds of both ways in turns, and what their medians say."""
    bodies = [write_body(index, options.tokens) for index in range(n_streams)]
    warm_until_s = time.monotonic() + WARM_UP_S
    while time.monotonic() < warm_until_s:
        ask_engine(engine, bodies)
        ask_server(client, bodies)
    own, served = [], []
    for _ in range(options.rounds):
        own.append(ask_engine(engine, bodies))
        served.append(ask_server(client, bodies))
    own_rate, served_rate = (median(t.n_tokens / t.whole_s for t in ways) for ways in (own, served))
    print(
        f"{n_streams} at once, {own[0].n_tokens} tokens: {own_rate:.1f} tokens/s by the engine, {served_rate:.1f} "
        f"served ({100 * (served_rate / own_rate - 1):+.1f}%)",
        flush=True,
    )
    if n_streams > 1:
        return
    for name, times in (("decoding", lambda t: t.decode_s), ("first token", lambda t: t.first_s)):
        own_ms, served_ms = (1e3 * median(map(times, ways)) for ways in (own, served))
        print(
            f"{name}: {own_ms:.2f} ms by the engine, {served_ms:.2f} ms served ({served_ms - own_ms:+.2f} ms, "
            f"{100 * (served_ms / own_ms - 1):+.1f}%)",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
