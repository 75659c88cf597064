"""Ask a real model, over HTTP and at temperature 1, for tool calls and for JSON that must fit; count what fits.

    python scripts/checks/constrained_check.py MODEL.gguf --requests 200

Starts a server on a port of its own, asks through the `openai` client, and prints one line a check. `--loop` plays a
tool loop of two requests and shows what of the second prompt was reused; `--speed` compares decoding with and without
a grammar. Exits with 1 where anything did not fit. A long count can be taken in pieces: `--seconds` stops after a time
and says with which `--first` to go on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import jsonschema
from constrained_schemas import SCHEMAS, TOOLS
from local_server import serve
from openai import OpenAI


def check_call(client: OpenAI, index: int, max_tokens: int) -> str:
    """One request with `tool_choice: "required"`; what came of it in a word."""
    tools = [
        {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}
        for name, about, schema, _ in TOOLS
    ]
    name, _, _, question = TOOLS[index % len(TOOLS)]
    offered = tools if index % 2 else [tool for tool in tools if tool["function"]["name"] == name]
    reply = client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": question}],
        tools=offered,
        tool_choice="required",
        temperature=1.0,
        seed=index,
        max_tokens=max_tokens,
    )
    choice = reply.choices[0]
    schemas = {name: schema for name, _, schema, _ in TOOLS}
    if choice.message.content:
        return "text beside calls"
    if not choice.message.tool_calls:
        return "no call" if choice.finish_reason != "length" else "cut off"
    for call in choice.message.tool_calls:
        try:
            jsonschema.validate(json.loads(call.function.arguments), schemas[call.function.name])
        except (ValueError, KeyError, jsonschema.ValidationError) as error:
            if choice.finish_reason == "length":
                return "cut off"
            return f"invalid: {call.function.name} {call.function.arguments} {str(error).splitlines()[0]}"
    return "valid"


def check_schema(client: OpenAI, index: int, max_tokens: int) -> str:
    """One request with a `json_schema`; what came of it in a word."""
    schema, question = SCHEMAS[index % len(SCHEMAS)]
    reply = client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": question}],
        response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
        temperature=1.0,
        seed=index,
        max_tokens=max_tokens,
    )
    choice = reply.choices[0]
    content = choice.message.content or ""
    try:
        jsonschema.validate(json.loads(content), schema)
    except (ValueError, jsonschema.ValidationError) as error:
        return (
            "cut off" if choice.finish_reason == "length" else f"invalid: {content[:200]} {str(error).splitlines()[0]}"
        )
    return "valid"


CHECKS = {"required": check_call, "json_schema": check_schema}


def count(client: OpenAI, name: str, check: Callable[[OpenAI, int, int], str], options: argparse.Namespace) -> bool:
    """Run one check many times and print what came of it."""
    began_s = time.monotonic()

    def run(index: int) -> str | None:
        late = options.seconds and time.monotonic() - began_s > options.seconds
        return None if late else check(client, index, options.max_tokens)

    last = options.first + options.requests
    with ThreadPoolExecutor(options.parallel) as pool:
        words = list(pool.map(run, range(options.first, last)))
    done = words[: words.index(None)] if None in words else words
    outcomes = Counter(done)
    shown = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.most_common(8))
    rest = f"; go on with --first {options.first + len(done)}" if len(done) < len(words) else ""
    print(f"{name}: {shown}, of {len(done)} ({time.monotonic() - began_s:.0f} s){rest}", flush=True)
    if wrong := [i for i, word in enumerate(done, options.first) if word != "valid"]:
        print(f"  not valid: {wrong[:20]}", flush=True)
    return outcomes["valid"] == len(done)


LOOP_TOOLS = [
    {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}
    for name, about, parameters in (
        (
            "get_population",
            "The number of people who live in a city",
            {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        ),
        (
            "multiply",
            "Multiply two numbers",
            {
                "type": "object",
                "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
                "required": ["a", "b"],
            },
        ),
    )
]
LOOP = [
    ("How many people live in Springfield?", '{"city": "Springfield", "population": 48213}', "48213"),
    ("What is 1234 times 5678?", "7006652", "7006652"),
]
LOOP_SYSTEM = "Call a tool when you need it; once you have its result, answer the question in one sentence."


def play_loop(client: OpenAI) -> bool:
    """Two questions, each with a call, its result and an answer; every request must reuse all that was known."""
    messages: list[Any] = [{"role": "system", "content": LOOP_SYSTEM}]
    known, right = 0, True
    for question, result, wanted in LOOP:
        messages.append({"role": "user", "content": question})
        for choice in ("required", "auto"):
            reply = client.chat.completions.create(
                model="m",
                messages=messages,
                tools=LOOP_TOOLS,
                tool_choice=choice,
                parallel_tool_calls=False,
                temperature=0,
                max_tokens=200,
            )
            message, usage = reply.choices[0].message, reply.usage
            calls = message.tool_calls or []
            messages.append(message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
            messages += [{"role": "tool", "tool_call_id": call.id, "content": result} for call in calls]
            cached = usage.prompt_tokens_details.cached_tokens
            shown = [f"{call.function.name}{call.function.arguments}" for call in calls] or message.content
            print(f"  {shown}; {cached} of {usage.prompt_tokens} prompt tokens reused, {known} known", flush=True)
            right &= cached >= known and (bool(calls) if choice == "required" else wanted in (message.content or ""))
            known = usage.total_tokens - 1  # the last token was chosen but never run
    print(f"tool loop: {'right' if right else 'NOT RIGHT'}")
    return right


def compare_speed(client: OpenAI, rounds: int) -> bool:
    """Decode speed with a grammar and without, in turns; the medians and the cost. Nothing is guessed ahead: what can
    be differs between the two texts."""
    schema = {"type": "array", "items": {"type": "string"}, "minItems": 30, "maxItems": 40}
    wanted = {"type": "json_schema", "json_schema": {"name": "words", "schema": schema}}
    speeds: dict[str, list[float]] = {"free": [], "bound": []}
    for _ in range(rounds):
        for name, extra in (("free", {}), ("bound", {"response_format": wanted})):
            reply = client.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": "Write a list of 40 animals as a JSON array of strings."}],
                temperature=0,
                max_tokens=200,
                **extra,
            )
            timings: dict[str, float] = reply.model_extra["timings"]
            speeds[name].append(timings["predicted_per_second"])
    free, bound = median(speeds["free"]), median(speeds["bound"])
    print(f"speed: {free:.2f} tokens/s free, {bound:.2f} bound, medians of {rounds}: {100 * (1 - bound / free):+.1f}%")
    return bound > 0.95 * free


def main() -> int:
    """Run the checks that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the number of the first request, which is its seed")
    parser.add_argument("--seconds", type=float, default=0, help="begin no request of a count after so many seconds")
    parser.add_argument("--only", choices=CHECKS, help="count one kind of request")
    parser.add_argument("--max-tokens", type=int, default=600)
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--loop", action="store_true", help="play the tool loop")
    parser.add_argument("--speed", type=int, default=0, metavar="ROUNDS", help="compare speeds")
    options = parser.parse_args()
    print(options.model.name, flush=True)
    flags = ["--no-lookup"] if options.speed else []
    with serve(str(options.model), "--parallel", str(options.parallel), *flags) as address:
        client = OpenAI(base_url=f"{address}/v1", api_key="none", timeout=900, max_retries=0)
        results = [True]
        if options.requests:
            results += [
                count(client, name, check, options) for name, check in CHECKS.items() if options.only in (None, name)
            ]
        if options.loop:
            results.append(play_loop(client))
        if options.speed:
            results.append(compare_speed(client, options.speed))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
