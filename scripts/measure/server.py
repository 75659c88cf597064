"""What the server costs beside its engine: the same prompts asked of the engine itself and over HTTP, in turns.

    python scripts/measure/server.py MODEL.gguf [--rounds N] [--tokens N] [--streams N]

Engine and listener live in this process, as when serving; the client is a process of its own that wakes up for each
stream's first text and for its end, so that it costs the engine's cores as little as a client elsewhere would. Both
ways run the same passes: nothing is guessed ahead, since how much is depends on how long passes took. Both begin after
the same rest: after one, passes may take some percent longer for a second, on a virtual machine. Which goes first
alternates. Prints medians of the rounds, and of each round's difference with its interval of 95%: one stream's decode
time and time to the first token, and the tokens a second of several streams at once.
"""

from __future__ import annotations

import argparse
import json
import select
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

from turns import bounds_of_median

from phobos.chat.events import Event, Failed, Finished, TextDelta
from phobos.counters import Counters
from phobos.engine.engine import Engine
from phobos.http.listener import Listener
from phobos.http.protocols.openai import parse_chat
from phobos.runtime import LoadLog, start_engine
from phobos.settings import EngineSettings, ServeSettings

STORIES = ("a whale", "a lighthouse", "a clock", "a violin", "a river", "a baker", "a comet", "a fox")
WARM_UP_S = 4.0  # before anything is counted, so that the processor's clock has settled
REST_S = 0.05  # before each round, in which the server accepts the client's connections


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


def ask(connection: socket.socket, body: bytes) -> float:
    """Send a request; when, on this clock."""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
    asked_s = time.perf_counter()
    connection.sendall(head.encode() + b"Connection: close\r\nContent-Type: application/json\r\n\r\n" + body)
    return asked_s


def read_streams(connections: list[socket.socket]) -> list[tuple[float, float, bytes]]:
    """When, on this clock, each stream's first text and its end came, and its last bytes."""
    poller = select.poll()
    for connection in connections:
        poller.register(connection, select.POLLIN)
    index_of = {connection.fileno(): index for index, connection in enumerate(connections)}
    first_s, ended_s, tails = ([0.0] * len(connections), [0.0] * len(connections), [b""] * len(connections))
    while not all(ended_s):
        for number, _ in poller.poll():
            index = index_of[number]
            data = connections[index].recv(1 << 20, socket.MSG_DONTWAIT)
            now_s = time.perf_counter()
            if not data:
                ended_s[index] = now_s
                poller.unregister(number)
            elif not first_s[index] and b'"content":"' in (tails[index] + data).replace(b'"content":""', b""):
                first_s[index] = now_s
                # Sleep until the end: what follows is read by nobody who shares the engine's cores.
                connections[index].setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1 << 20)
            tails[index] = (tails[index] + data)[-4096:]
    return list(zip(first_s, ended_s, tails, strict=True))


def run_client(address: str) -> None:
    """Do what each line of standard input says: a list of bodies, asked at once."""
    place = urlsplit(address)
    for line in sys.stdin:
        bodies = [json.dumps(body).encode() for body in json.loads(line)]
        connections = [socket.create_connection((str(place.hostname), int(place.port or 0))) for _ in bodies]
        time.sleep(REST_S)
        asked_s = [ask(connection, body) for connection, body in zip(connections, bodies, strict=True)]
        found = []
        for asked, (first, ended, tail) in zip(asked_s, read_streams(connections), strict=True):
            usage = json.loads(tail[tail.rindex(b'"usage":') + 8 :].partition(b"}}")[0] + b"}}")
            found.append([asked, first, ended, usage["completion_tokens"]])
        for connection in connections:
            connection.close()
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
    time.sleep(REST_S)
    for request in requests:
        found.append([time.perf_counter()])
        engine.submit(engine.model.prepare(request), sink_into(found[-1]))
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
    parser.add_argument("--rounds", type=int, default=25)
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
    engine = start_engine(
        EngineSettings(options.model, n_ctx=2048, n_slots=options.streams, lookup=False), counters, LoadLog()
    )
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
    for index in range(options.rounds):
        if index % 2:
            served.append(ask_server(client, bodies))
        own.append(ask_engine(engine, bodies))
        if not index % 2:
            served.append(ask_server(client, bodies))
    rates = [tuple(t.n_tokens / t.whole_s for t in pair) for pair in zip(own, served, strict=True)]
    own_rate, served_rate = map(median, zip(*rates, strict=True))
    more, low, high = bounds_of_median(100 * (theirs / ours - 1) for ours, theirs in rates)
    print(
        f"{n_streams} at once, {own[0].n_tokens} tokens: {own_rate:.1f} tokens/s by the engine, {served_rate:.1f} "
        f"served: {more:+.1f}% ({low:+.1f} to {high:+.1f}%)",
        flush=True,
    )
    if n_streams > 1:
        return
    decoding = [(1e3 * ours.decode_s, 1e3 * theirs.decode_s) for ours, theirs in zip(own, served, strict=True)]
    more, low, high = bounds_of_median(100 * (theirs / ours - 1) for ours, theirs in decoding)
    print(f"decoding: {_name_medians(decoding)}: {more:+.1f}% ({low:+.1f} to {high:+.1f}%)", flush=True)
    first = [(1e3 * ours.first_s, 1e3 * theirs.first_s) for ours, theirs in zip(own, served, strict=True)]
    more, low, high = bounds_of_median(theirs - ours for ours, theirs in first)
    print(f"first token: {_name_medians(first)}: {more:+.2f} ms ({low:+.2f} to {high:+.2f} ms)", flush=True)


def _name_medians(pairs: list[tuple[float, float]]) -> str:
    own_ms, served_ms = map(median, zip(*pairs, strict=True))
    return f"{own_ms:.2f} ms by the engine, {served_ms:.2f} ms served"


if __name__ == "__main__":
    sys.exit(main())
