"""One question, one answer: the answer streams to standard output and nothing else does.

Reasoning, candidates and figures go to standard error. `--json` prints the whole reply once it is complete, in the
shape of an OpenAI chat completion, with `timings` and `candidates` beside it.
"""

from __future__ import annotations

import json
import queue
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from phobos.chat.events import (
    Event,
    Failed,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStart,
)
from phobos.chat.messages import GenerationRequest, Message, OutputFormat
from phobos.counters import Counters
from phobos.engine.engine import Engine
from phobos.errors import UnavailableError, UsageError
from phobos.printable import clean
from phobos.runtime import LoadLine, start_engine
from phobos.settings import EngineSettings

DIM, PLAIN = "\x1b[2m", "\x1b[0m"


@dataclass(frozen=True)
class Question:
    """What is asked and how the answer is shown; `schema` is a JSON schema the answer must fit."""

    prompt: str
    system: str | None = None
    raw: bool = False
    think: bool = False
    n_candidates: int | None = None
    schema: Mapping[str, Any] | None = None
    stop: tuple[str, ...] = ()
    as_json: bool = False


@dataclass
class Reply:
    """What has come back so far; `first` is the first token with its candidates where they were asked for."""

    text: str = ""
    reasoning: str = ""
    first: TokenLogprob | None = None
    started: Started | None = None
    finished: Finished | None = None
    calls: list[dict[str, str]] = field(default_factory=list)
    first_s: float | None = None


def read_schema(path: Path) -> Mapping[str, Any]:
    """The JSON schema in a file; `UsageError` says what is wrong with it."""
    try:
        schema = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"cannot read the schema {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(schema, dict):
        raise UsageError(f"{path} is not a JSON schema: it must be an object")
    return schema


def build_request(question: Question, settings: EngineSettings) -> GenerationRequest:
    """The request a question makes. `--raw` continues the text as it is; else it is a chat of one turn."""
    system = (Message("system", question.system),) if question.system is not None else ()
    output = OutputFormat() if question.schema is None else OutputFormat("json_schema", schema=question.schema)
    return GenerationRequest(
        request_id=f"chatcmpl-{uuid.uuid4().hex}",
        messages=() if question.raw else (*system, Message("user", question.prompt)),
        prompt=question.prompt if question.raw else None,
        output=output,
        max_tokens=settings.sampling.max_tokens,
        stop=question.stop,
        top_logprobs=question.n_candidates,
        thinking=question.think,
    )


def answer(settings: EngineSettings, question: Question) -> int:
    """Load the model, answer, and say how it went by the exit code."""
    if question.raw and question.system is not None:
        raise UsageError("--raw continues the text as typed and has no place for --system: leave one out")
    counters, line = Counters(), LoadLine()
    try:
        engine = start_engine(settings, counters, line)
    finally:
        line.clear()
    try:
        if engine.model.template is None and not question.raw and question.system is None:
            print("this model has no chat format: continuing the text, as with --raw", file=sys.stderr)
            question = replace(question, raw=True)
        if question.think and not engine.model.supports_thinking:
            print("this model has no reasoning: answering without it", file=sys.stderr)
            question = replace(question, think=False)
        request = build_request(question, settings)
        reply = ask(engine, request, question)
    finally:
        engine.close(0.0)
    if question.as_json:
        print(json.dumps(describe_reply(engine, request, reply), ensure_ascii=False, indent=2))
    else:
        _end_text(question, reply)
    return 0


def ask(engine: Engine, request: GenerationRequest, question: Question) -> Reply:
    """Submit the request and show its events as they come; `KeyboardInterrupt` cancels it."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    ticket = engine.submit(engine.model.prepare(request), events.put)
    reply, began_s = Reply(), time.monotonic()
    try:
        while reply.finished is None:
            event = _next_event(engine, events)
            if isinstance(event, TextDelta | ReasoningDelta) and reply.first_s is None:
                reply.first_s = time.monotonic() - began_s
            take_event(event, reply)
            if not question.as_json:
                _show_event(event, question, reply)
    except BaseException:
        ticket.cancel()
        raise
    return reply


def _next_event(engine: Engine, events: queue.SimpleQueue[Event]) -> Event:
    while True:
        try:
            return events.get(timeout=1.0)
        except queue.Empty:
            if not engine.alive and events.empty():
                raise engine.failure or UnavailableError("the engine stopped without an answer: try again") from None


def take_event(event: Event, reply: Reply) -> None:
    """Fold one event into the reply; `Failed` is raised."""
    match event:
        case Started():
            reply.started = event
        case TextDelta(text=text, logprobs=logprobs):
            reply.text += text
            if logprobs and reply.first is None:
                reply.first = logprobs[0]
        case ReasoningDelta(text=text):
            reply.reasoning += text
        case ToolCallStart(id=call_id, name=name):
            reply.calls.append({"id": call_id, "name": name, "arguments": ""})
        case ToolCallDelta(index=index, arguments=arguments):
            reply.calls[index]["arguments"] += arguments
        case Finished():
            reply.finished = event
        case Failed(error=error):
            raise error


def _show_event(event: Event, question: Question, reply: Reply) -> None:
    dim = sys.stderr.isatty()
    if isinstance(event, ReasoningDelta):
        sys.stderr.write(f"{DIM}{clean(event.text)}{PLAIN}" if dim else event.text)
        sys.stderr.flush()
    elif isinstance(event, TextDelta):
        if question.n_candidates and reply.first is not None and event.logprobs and reply.first is event.logprobs[0]:
            sys.stderr.write(format_candidates(reply.first))
            sys.stderr.flush()
        if reply.reasoning and reply.text == event.text:
            sys.stderr.write("\n\n")
            sys.stderr.flush()
        sys.stdout.write(clean(event.text) if sys.stdout.isatty() else event.text)
        sys.stdout.flush()


def format_candidates(first: TokenLogprob) -> str:
    """The first token's candidates, the likeliest first: rank, probability, token; `>` marks the one drawn."""
    from math import exp

    lines = []
    for rank, token in enumerate(first.top or (first,), start=1):
        mark = ">" if token.token_id == first.token_id else " "
        lines.append(f"{mark}{rank:3d} {exp(token.logprob):8.3%} {token.token_id:7d} {token.text!r}\n")
    return "".join(lines)


def _end_text(question: Question, reply: Reply) -> None:
    """Close the last line; with `--raw` in a pipe the text stays exactly as it came."""
    if not reply.text.endswith("\n") and (sys.stdout.isatty() or not question.raw):
        sys.stdout.write("\n")
        sys.stdout.flush()
    finished = reply.finished
    if finished is None or not sys.stderr.isatty():
        return
    usage, timings = finished.usage, finished.timings
    rate = usage.n_generated / timings.decode_s if timings.decode_s > 0 else 0.0
    first = f", first after {reply.first_s:.2f} s" if reply.first_s is not None else ""
    cut = ", cut off by the limit" if finished.reason == "length" else ""
    print(f"{DIM}{usage.n_generated} tokens, {rate:.1f} a second{first}{cut}{PLAIN}", file=sys.stderr)


def describe_reply(engine: Engine, request: GenerationRequest, reply: Reply) -> dict[str, Any]:
    """The whole reply as one JSON object."""
    finished = reply.finished
    assert finished is not None
    usage, timings = finished.usage, finished.timings
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [
            {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
            for c in reply.calls
        ]
    whole: dict[str, Any] = {
        "id": request.request_id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": engine.model.label,
        "choices": [{"index": 0, "message": message, "finish_reason": finished.reason}],
        "usage": {
            "prompt_tokens": usage.n_prompt,
            "completion_tokens": usage.n_generated,
            "total_tokens": usage.n_prompt + usage.n_generated,
            "prompt_tokens_details": {"cached_tokens": usage.n_cached},
            "completion_tokens_details": {"reasoning_tokens": usage.n_reasoning},
        },
        "timings": {
            "prompt_n": timings.n_prompt_computed,
            "prompt_ms": round(timings.prompt_s * 1000, 3),
            "predicted_n": usage.n_generated,
            "predicted_ms": round(timings.decode_s * 1000, 3),
        },
        "x_phobos": {"seed": reply.started.seed if reply.started is not None else None},
    }
    if timings.n_draft:
        whole["timings"] |= {"draft_n": timings.n_draft, "draft_n_accepted": timings.n_draft_accepted}
    if reply.first is not None:
        whole["candidates"] = [
            {"id": t.token_id, "token": t.text, "logprob": t.logprob} for t in reply.first.top or (reply.first,)
        ]
    return whole
