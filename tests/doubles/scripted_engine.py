"""A scripted engine: chosen events on a real thread, no weights. And a small raw HTTP client.

A script is a generator function `(request, tokens, choice)` that yields events, and floats to pause for so many
seconds. The engine adds `Started` itself, gives out slots and honours cancels between two items, as the real one does
between two turns.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from phobos.chat.events import Embedded, Event, Finished, Scores, Started, TextDelta, Timings, Usage
from phobos.chat.messages import EmbedRequest, GenerationRequest, ScoreRequest
from phobos.counters import ModelInfo, SlotReport
from phobos.engine.capabilities import check_request
from phobos.engine.model import Prepared
from phobos.engine.sampler import resolve_sampling
from phobos.errors import ContextLengthError, PhobosError, RequestError
from phobos.settings import EngineSettings, SamplingDefaults

Script = Callable[[GenerationRequest, tuple[int, ...], int], Iterator[Event | float]]

BOS, EOS = 256, 257


class ByteTokenizer:
    """A token a byte, then BOS and EOS."""

    n_vocab = 258
    bos_id = BOS
    eos_id = EOS
    end_ids = frozenset({EOS})

    def least_tokens(self, text: str) -> int:
        return 0

    def encode(self, text: str, *, special: bool = False, bos: bool = False, continues: bool = False) -> list[int]:
        return ([BOS] if bos else []) + list(text.encode())

    def decode(self, ids: Any, *, special: bool = False) -> str:
        return bytes(token for token in ids if token < 256).decode("utf-8", "replace")

    def piece(self, token: int, /) -> bytes:
        return bytes([token]) if token < 256 else b""


@dataclass(frozen=True)
class ScriptedTemplate:
    source: str = "{{ messages }}"


@dataclass(frozen=True)
class ScriptedModel:
    label: str = "GGUF, scripted"
    architecture: str = "scripted"
    created: int = 1_700_000_000
    n_ctx: int = 4096
    n_slots: int = 1
    tokenizer: ByteTokenizer = field(default_factory=ByteTokenizer)
    template: ScriptedTemplate | None = field(default_factory=ScriptedTemplate)
    info: ModelInfo = field(
        default_factory=lambda: ModelInfo("scripted", "scripted", "F32", 1, 4096, 1, 258, "plain", 100, 100, 100)
    )
    settings: EngineSettings = field(default_factory=lambda: EngineSettings(Path("/secret/place/model.gguf")))
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults)
    supports_tools: bool = True
    supports_grammar: bool = True
    supports_thinking: bool = True
    supports_infill: bool = False
    embeds: bool = False
    prepare_s: float = 0.0
    prepared: list[str] = field(default_factory=list)

    @property
    def supports_chat(self) -> bool:
        return self.template is not None

    def warm(self) -> None:
        pass

    def check(self, request: GenerationRequest) -> None:
        check_request(request, self)

    def prepare_text(self, text: str | tuple[int, ...]) -> tuple[int, ...]:
        tokens = tuple(self.tokenizer.encode(text, bos=True) if isinstance(text, str) else text)
        if not text:
            raise RequestError("input holds an empty text: send some", param="input")
        return tokens

    def prepare(self, request: GenerationRequest, *, any_length: bool = False) -> Prepared:
        self.check(request)
        self.prepared.append(request.request_id)
        if self.prepare_s:
            time.sleep(self.prepare_s)
        if isinstance(request.prompt, tuple):
            parts = ([x] if isinstance(x, int) else self.tokenizer.encode(x) for x in request.prompt)
            tokens = [token for part in parts for token in part]
        else:
            text = request.prompt
            if text is None:
                text = "".join(f"<{m.role}>{m.content or ''}" for m in request.messages)
            if "refuse this" in text:
                raise RequestError("the template refused: roles must alternate", code="invalid_message")
            if "break the server" in text:
                raise ValueError("secret internals")
            tokens = self.tokenizer.encode(text)
        if len(tokens) >= self.n_ctx and not any_length:
            raise ContextLengthError(len(tokens), self.n_ctx)
        return Prepared(request, tuple(tokens), resolve_sampling(request.sampling))


def last_text(request: GenerationRequest) -> str:
    if request.prompt is not None:
        parts = (request.prompt,) if isinstance(request.prompt, str) else request.prompt
        return "".join(x if isinstance(x, str) else bytes([x]).decode(errors="replace") for x in parts)
    return request.messages[-1].content or ""


def finished(tokens: tuple[int, ...], n_generated: int, reason: str = "stop", n_cached: int = 0) -> Finished:
    usage = Usage(len(tokens), n_cached, n_generated)
    return Finished(reason, usage, Timings(0.5, 0.25, len(tokens) - n_cached))  # type: ignore[arg-type]


def say(*pieces: str, pause_s: float = 0.0, reason: str = "stop") -> Script:
    """A script that says the pieces."""

    def script(request: GenerationRequest, tokens: tuple[int, ...], choice: int) -> Iterator[Event | float]:
        for piece in pieces:
            if pause_s:
                yield pause_s
            yield TextDelta(piece)
        yield finished(tokens, len(pieces), reason)

    return script


def parrot(request: GenerationRequest, tokens: tuple[int, ...], choice: int) -> Iterator[Event | float]:
    """Says what it was told, a word at a time."""
    words = last_text(request).split(" ")
    for index, word in enumerate(words):
        yield TextDelta(word if index == 0 else " " + word)
    yield finished(tokens, len(words))


def endless(pause_s: float = 0.005) -> Script:
    """Says `tick ` until it is cancelled."""

    def script(request: GenerationRequest, tokens: tuple[int, ...], choice: int) -> Iterator[Event | float]:
        while True:
            yield TextDelta("tick ")
            yield pause_s

    return script


def chance(prefix: tuple[int, ...], token: int) -> float:
    """A log-probability that depends on what stands before and on the token."""
    return -((sum((place + 1) * t for place, t in enumerate(prefix[-40:])) * 31 + token * 17) % 97) / 10


def embed_bytes(tokens: tuple[int, ...]) -> tuple[float, ...]:
    """Four numbers of any length: how many tokens, and sums of them."""
    return (float(len(tokens)), float(sum(tokens)), -float(tokens[-1]), 0.5)


def tell_chances(request: ScoreRequest | EmbedRequest, tokens: tuple[int, ...], choice: int) -> Iterator[Event | float]:
    """A script for scorings and embeddings."""
    if isinstance(request, EmbedRequest):
        yield Embedded(embed_bytes(tokens))
        yield finished(tokens, 0)
        return
    yield Scores(tuple(tuple(chance(tokens[: row + 1], t) for t in wanted) for row, wanted in request.targets))
    yield finished(tokens, 0)


class ScriptedTicket:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class _Sequence:
    request: Any
    tokens: tuple[int, ...]
    sink: Callable[[Event], None]
    choice: int
    wait_s: float
    ticket: ScriptedTicket
    items: Iterator[Event | float] | None = None
    slot: int = -1
    wake_s: float = 0.0


class ScriptedActions:
    """Slots of seven tokens; remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, str]] = []

    def save(self, slot: int, filename: str) -> SlotReport:
        self.asked.append(("save", slot, filename))
        if "/" in filename:
            raise RequestError("filename must be a plain file name", param="filename")
        return SlotReport(7, 1234, 0.5)

    def restore(self, slot: int, filename: str) -> SlotReport:
        self.asked.append(("restore", slot, filename))
        return SlotReport(7, 1234, 0.25)

    def erase(self, slot: int) -> SlotReport:
        self.asked.append(("erase", slot, ""))
        return SlotReport(7, 0, 0.0)


class ScriptedEngine:
    """See the module's text. `running` and `peak` tell what it did."""

    def __init__(self, model: ScriptedModel | None = None, script: Script = parrot) -> None:
        self.model = model or ScriptedModel()
        self.script = script
        self.slot_actions = ScriptedActions()
        self.score_script: Any = tell_chances
        self.alive = True
        self.failure: PhobosError | None = None
        self.submitted: list[GenerationRequest] = []
        self.cancelled = 0
        self.finished = 0
        self.running: list[_Sequence] = []
        self._inbox: list[_Sequence] = []
        self._waiting: list[_Sequence] = []
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._turns, daemon=True)
        self._thread.start()

    def submit(self, prepared: Prepared, sink: Any, *, choice: int = 0, queue_wait_s: float = 0) -> ScriptedTicket:
        return self._enqueue(prepared.request, prepared.tokens, sink, choice, queue_wait_s)

    def read(self, request: ScoreRequest | EmbedRequest, sink: Any, *, queue_wait_s: float = 0) -> ScriptedTicket:
        return self._enqueue(request, request.tokens, sink, 0, queue_wait_s)

    def _enqueue(
        self, request: Any, tokens: tuple[int, ...], sink: Any, choice: int, queue_wait_s: float
    ) -> ScriptedTicket:
        ticket = ScriptedTicket()
        with self._wake:
            self.submitted.append(request)
            self._inbox.append(_Sequence(request, tokens, sink, choice, queue_wait_s, ticket))
            self._wake.notify()
        return ticket

    def close(self) -> None:
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(5)

    def die(self, error: PhobosError) -> None:
        """The thread ends without a word to anybody."""
        self.failure = error
        self.alive = False
        self.close()

    def _turns(self) -> None:
        while not self._closing:
            with self._wake:
                if not self._inbox and not self.running and not self._waiting:
                    self._wake.wait(0.5)
                self._waiting += self._inbox
                self._inbox = []
            self._admit()
            busy = False
            for sequence in list(self.running):
                busy = self._step(sequence) or busy
            if not busy:
                time.sleep(0.0005)

    def _admit(self) -> None:
        free = [s for s in range(self.model.n_slots) if s not in {q.slot for q in self.running}]
        for sequence in list(self._waiting):
            if sequence.ticket.cancelled:
                self._waiting.remove(sequence)
                self.cancelled += 1
            elif free:
                wanted = sequence.request.cache_slot
                slot = wanted if wanted in free else free[0]
                free.remove(slot)
                sequence.slot = slot
                self._waiting.remove(sequence)
                self.running.append(sequence)
                scores = isinstance(sequence.request, ScoreRequest | EmbedRequest)
                seed = 0 if scores else sequence.request.sampling.seed
                seed = 1234 if seed in (None, -1) else seed
                sequence.sink(Started(slot, len(sequence.tokens), 0, seed, sequence.wait_s))
                script = self.score_script if scores else self.script
                sequence.items = iter(script(sequence.request, sequence.tokens, sequence.choice))

    def _step(self, sequence: _Sequence) -> bool:
        if sequence.ticket.cancelled:
            self.running.remove(sequence)
            self.cancelled += 1
            return True
        if time.monotonic() < sequence.wake_s:
            return False
        assert sequence.items is not None
        item = next(sequence.items, None)
        if isinstance(item, float | int):
            sequence.wake_s = time.monotonic() + item
            return False
        if item is None:
            self.running.remove(sequence)
            return True
        if isinstance(item, Finished):
            self.running.remove(sequence)
            self.finished += 1
        sequence.sink(item)
        return True


# --- a raw client ---------------------------------------------------------------------------------------------------


@dataclass
class Reply:
    """One parsed response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]

    @property
    def events(self) -> list[Any]:
        """The data of each server-sent event; "[DONE]" stays text."""
        found = []
        for block in self.body.decode().split("\n\n"):
            for line in block.split("\n"):
                if line.startswith("data: "):
                    found.append(line[6:] if line == "data: [DONE]" else json.loads(line[6:]))
        return found


class RawClient:
    """A socket and a buffer; reads replies one by one."""

    def __init__(self, address: tuple[str, int] | str, timeout_s: float = 10.0) -> None:
        family = (
            socket.AF_UNIX if isinstance(address, str) else (socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
        )
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.settimeout(timeout_s)
        try:
            self.socket.connect(address)
        except OSError:
            self.socket.close()
            raise
        self.buffer = b""

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
        self.send(encode(method, path, body, headers))
        return self.read(head_only=method == "HEAD")

    def _fill(self) -> bool:
        data = self.socket.recv(65536)
        self.buffer += data
        return bool(data)

    def read_until(self, mark: bytes) -> bytes:
        """Everything up to and with `mark`."""
        while mark not in self.buffer:
            if not self._fill():
                raise EOFError(self.buffer)
        end = self.buffer.index(mark) + len(mark)
        data, self.buffer = self.buffer[:end], self.buffer[end:]
        return data

    def _take(self, n_bytes: int) -> bytes:
        while len(self.buffer) < n_bytes:
            if not self._fill():
                raise EOFError(self.buffer)
        data, self.buffer = self.buffer[:n_bytes], self.buffer[n_bytes:]
        return data

    def read_head(self) -> tuple[int, dict[str, str]]:
        head = self.read_until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        headers = {}
        for line in head[1:]:
            if line:
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
        return int(head[0].split(" ")[1]), headers

    def read(self, *, head_only: bool = False) -> Reply:
        """The next final response."""
        status, headers = self.read_head()
        while status < 200:
            status, headers = self.read_head()
        if head_only or status in (204, 304):
            return Reply(status, headers, b"")
        if "content-length" in headers:
            return Reply(status, headers, self._take(int(headers["content-length"])))
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(self.read_until(b"\r\n"), 16):
                body += self._take(size)
                self._take(2)
            self._take(2)
            return Reply(status, headers, body)
        while self._fill():
            pass
        body, self.buffer = self.buffer, b""
        return Reply(status, headers, body)

    def at_end(self) -> bool:
        """Whether the server has closed its side."""
        if self.buffer:
            return False
        try:
            return not self._fill()
        except ConnectionError:
            return True


def encode(method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> bytes:
    """The bytes of a request."""
    lines = {"host": "localhost"}
    data = b""
    if body is not None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines["content-type"] = "application/json"
        lines["content-length"] = str(len(data))
    lines.update(headers or {})
    head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items()) + "\r\n"
    return head.encode("latin-1") + data


def chat(text: str = "hello", **fields: Any) -> dict[str, Any]:
    """A chat request's body."""
    return {"messages": [{"role": "user", "content": text}], **fields}


def with_slots(n_slots: int, **changes: Any) -> ScriptedModel:
    return replace(ScriptedModel(), n_slots=n_slots, **changes)


def eventually(check: Callable[[], Any], timeout_s: float = 5.0) -> Any:
    """Wait until `check()` is true; its value."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"it did not come true within {timeout_s} s: {check}")
        time.sleep(0.002)
