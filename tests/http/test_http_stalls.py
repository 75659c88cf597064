"""The loop never waits: its longest stall while every route of the description gets its worst legal request, and what
memory that leaves taken.

Requests are made from the bounds of `docs/openapi.yaml`: each list and text as long as it may be, unbounded ones as
long as the largest body. The engine is real, its model tiny. What is bounded is the loop's own work at a time; how
long it waits for a processor, or for a thread that is inside a library, is printed.
"""

from __future__ import annotations

import gc
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from doubles.scripted_engine import RawClient
from models.tiny_models import RECIPES, write_tiny_model
from phobos.counters import Counters
from phobos.engine.engine import Engine
from phobos.engine.model import load_model
from phobos.http.listener import Listener
from phobos.settings import EngineSettings, ServeSettings

yaml = pytest.importorskip("yaml", reason="schemathesis brings PyYAML")

DESCRIPTION = yaml.safe_load((Path(__file__).parents[2] / "docs" / "openapi.yaml").read_text())
MAX_BODY = 4 << 20
LONGEST_STALL_S = 0.05
KEPT_MB = 50
POSTS = [path for path, item in DESCRIPTION["paths"].items() if "post" in item]
TEXTS = {"words": "hello world ", "digits": "1", "letters": "a", "lines": "\n", "quotes": '"\\'}


def resolve(schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        found: Any = DESCRIPTION
        for step in schema["$ref"].lstrip("#/").split("/"):
            found = found[step]
        schema = found
    return schema


def worst(schema: dict[str, Any], room: int, text: str) -> Any:
    """The largest value a schema allows within about `room` bytes of JSON."""
    schema = resolve(schema)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for word in ("anyOf", "oneOf"):
        if word in schema:
            values = [worst({**schema, word: None, **resolve(part)}, room, text) for part in schema[word] or ()]
            if values:
                return max(values, key=lambda value: len(json.dumps(value)))
    if "allOf" in schema:
        merged: dict[str, Any] = {"type": "object", "properties": {}, "required": []}
        for part in map(resolve, schema["allOf"]):
            merged["properties"] |= part.get("properties", {})
            merged["required"] = [*merged["required"], *part.get("required", [])]
        return worst(merged, room, text)
    kinds = schema.get("type", "object" if "properties" in schema else "string")
    kind = next((k for k in ("array", "object", "string") if k in kinds), None) if isinstance(kinds, list) else kinds
    match kind:
        case "array":
            item = worst(schema.get("items", {"type": "string"}), min(room, 64), text)
            n = min(schema.get("maxItems", 1 << 30), max(1, room // (len(json.dumps(item)) + 1)))
            return [item] * n
        case "object":
            names = schema.get("properties", {})
            kept = [name for name in names if name in schema.get("required", ()) or room > 4096]
            return {name: worst(names[name], room // max(1, len(kept)), text) for name in kept}
        case "string" | None:
            return (text * (room // len(text) + 1))[: min(schema.get("maxLength", room), room)]
        case "boolean":
            return False
        case _:
            return schema.get("maximum", schema.get("minimum", 1))


def bodies(path: str, text: str) -> Iterator[dict[str, Any]]:
    """The body whose every field is large, and for each large field one that is nearly that field alone."""
    content = DESCRIPTION["paths"][path]["post"].get("requestBody", {}).get("content", {}).get("application/json")
    if content is None:
        return
    whole = worst(content["schema"], 1000, text)
    yield worst(content["schema"], MAX_BODY - 4096, text)
    for name, value in whole.items():
        if isinstance(value, str | list | dict):
            schema = {"type": "object", "allOf": [content["schema"]]}
            found = resolve(content["schema"])
            parts = [found, *map(resolve, found.get("allOf", ()))]
            field_schema = next((p["properties"][name] for p in parts if name in p.get("properties", {})), schema)
            yield {**_least(whole, found), name: worst(field_schema, MAX_BODY - 8192, text)}


def _least(whole: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    required = {name for part in (schema, *map(resolve, schema.get("allOf", ()))) for name in part.get("required", ())}
    least = {name: value for name, value in whole.items() if name in required}
    if "messages" in whole:
        least |= {"messages": [{"role": "user", "content": "hi"}]}
    if "prompt" in whole:
        least["prompt"] = "hi"
    if "max_tokens" in whole:
        least["max_tokens"] = 2
    return least


@dataclass
class Pulse:
    """Beats on the loop as often as it can; remembers the longest rests by the clock and of the loop's own work."""

    listener: Listener
    longest_s: float = 0.0
    longest_work_s: float = 0.0
    _last: tuple[float, float] = (math.inf, math.inf)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        assert self.listener._loop is not None
        self.listener._loop.call_soon_threadsafe(self._beat)

    def reset(self) -> None:
        self.longest_s = self.longest_work_s = 0.0

    def _beat(self) -> None:
        now, work = time.perf_counter(), time.thread_time()
        self.longest_s = max(self.longest_s, now - self._last[0])
        self.longest_work_s = max(self.longest_work_s, work - self._last[1])
        self._last = now, work
        if not self._stopped.is_set() and self.listener._loop is not None:
            self.listener._loop.call_later(0.001, self._beat)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Listener, Pulse]]:
    path = write_tiny_model(RECIPES["llama"], tmp_path_factory.mktemp("m") / "m.gguf")
    counters = Counters()
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    settings = EngineSettings(path, device="cpu", n_ctx=512, n_slots=2, chat_template=template)
    engine = Engine(load_model(settings, lambda progress: None), counters)
    engine.start()
    listener = Listener(ServeSettings(listen="127.0.0.1:0", queue_timeout_s=20), counters)
    listener.bind()
    listener.start()
    listener.attach(engine)
    pulse = Pulse(listener)
    pulse.start()
    yield listener, pulse
    pulse._stopped.set()
    listener.close(0)
    engine.close(0)


def held_mb() -> float:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def send_all(address: str, path: str, texts: Iterable[str]) -> None:
    """Ask one route all its worst requests, whose answers are refusals or replies."""
    port = int(address.rsplit(":", 1)[1])
    for text in texts:
        for body in bodies(path, text):
            data = json.dumps(body).encode()
            with RawClient(("127.0.0.1", port), timeout_s=60) as client:
                reply = client.ask("POST", path.replace("{id}", "0") + "?action=erase" * ("{id}" in path), data)
            if reply.status >= 500:
                raise SystemExit(f"{path}: {reply.status} {reply.body[:300]!r}")


def ask_from_outside(address: str, path: str, *texts: str) -> None:
    """From a process of its own, whose work is none of the server's."""
    command = [sys.executable, __file__, address, path, *texts]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=[] if path == "/v1/messages" else [pytest.mark.slow]) for path in POSTS]
)
def test_the_worst_legal_request_of_a_route_stalls_nobody(served: tuple[Listener, Pulse], path: str) -> None:
    listener, pulse = served
    ask_from_outside(listener.address, path, "a ")
    before = held_mb()
    pulse.reset()
    ask_from_outside(listener.address, path, *TEXTS.values())
    worked_s, waited_s = pulse.longest_work_s, pulse.longest_s
    kept = held_mb() - before
    print(f"{path}: worked {1000 * worked_s:.0f} ms, waited {1000 * waited_s:.0f} ms at a time, keeps {kept:.0f} MB")
    assert worked_s < LONGEST_STALL_S
    assert kept < KEPT_MB


if __name__ == "__main__":
    send_all(sys.argv[1], sys.argv[2], sys.argv[3:])
