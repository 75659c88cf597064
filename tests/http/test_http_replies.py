"""What replies look like: chat and completions, whole and streamed, which must agree."""

from __future__ import annotations

import pytest

from doubles.scripted_engine import chat, endless, eventually, finished, say, with_slots
from phobos.chat.events import (
    Finished,
    PromptLogprobs,
    ReasoningDelta,
    TextDelta,
    Timings,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def join_chat(events):
    """Fold a chat stream into the choices of a whole reply, as a client would."""
    choices = {}
    for event in events:
        if event == "[DONE]":
            continue
        for part in event["choices"]:
            whole = choices.setdefault(part["index"], {"message": {"content": None, "tool_calls": {}}, "logprobs": []})
            delta, message = part["delta"], whole["message"]
            for key in ("content", "reasoning_content"):
                if key in delta:
                    message[key] = (message.get(key) or "") + delta[key]
            for call in delta.get("tool_calls", []):
                known = message["tool_calls"].setdefault(call["index"], {"arguments": ""})
                known.update({key: call[key] for key in ("id", "type") if key in call})
                known["arguments"] += call["function"].get("arguments", "")
                if "name" in call["function"]:
                    assert "name" not in known
                    known["name"] = call["function"]["name"]
            if part["logprobs"]:
                whole["logprobs"] += part["logprobs"]["content"]
            if part["finish_reason"]:
                whole["finish_reason"] = part["finish_reason"]
    return choices


def both(server, **fields):
    """The whole reply's choices and the joined stream's, from the same request."""
    whole = server.post(CHAT, chat("go", **fields)).json
    events = server.post(CHAT, chat("go", stream=True, **fields)).events
    return whole, join_chat(events), events


def busy_turn(request, tokens, choice):
    yield ReasoningDelta("let me ")
    yield ReasoningDelta("think")
    yield TextDelta("I will look. ")
    yield ToolCallStart(0, "call_a", "get_weather")
    yield ToolCallDelta(0, '{"city":')
    yield ToolCallDelta(0, '"München"}')
    yield TextDelta("And ")
    yield TextDelta("again.")
    yield ToolCallStart(1, "call_b", "now")
    yield Finished("tool_calls", Usage(len(tokens), 3, 20, 5), Timings(0.5, 2.0, len(tokens) - 3, 10, 7))


def test_whole_and_streamed_agree_on_everything(serve):
    whole, joined, events = both(serve(busy_turn), stream_options={"include_usage": True})
    message, streamed = whole["choices"][0]["message"], joined[0]["message"]
    assert message["content"] == streamed["content"] == "I will look. And again."
    assert message["reasoning_content"] == streamed["reasoning_content"] == "let me think"
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "get_weather", "arguments": '{"city":"München"}'},
        {"name": "now", "arguments": "{}"},
    ]
    assert [c["name"] for c in streamed["tool_calls"].values()] == ["get_weather", "now"]
    assert [c["id"] for c in streamed["tool_calls"].values()] == [c["id"] for c in message["tool_calls"]]
    assert streamed["tool_calls"][0]["arguments"] == '{"city":"München"}'
    assert whole["choices"][0]["finish_reason"] == joined[0]["finish_reason"] == "tool_calls"
    assert events[-2]["usage"] == whole["usage"]
    assert all(event["usage"] is None for event in events[:-2])
    assert events[-3]["timings"] == whole["timings"]


def test_each_chunk_has_one_kind_of_delta(serve):
    _, _, events = both(serve(busy_turn))
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    assert deltas[0] == {"role": "assistant", "content": ""} and deltas[-1] == {}
    assert all(len(delta) == 1 for delta in deltas[1:-1])
    assert len({event["id"] for event in events[:-1]}) == 1
    assert {event["object"] for event in events[:-1]} == {"chat.completion.chunk"}
    assert sum(bool(event["choices"][0]["finish_reason"]) for event in events[:-1]) == 1


def test_usage_timings_and_seed(serve):
    body = serve(busy_turn).post(CHAT, chat("go", seed=42)).json
    n_prompt = body["usage"]["prompt_tokens"]
    assert body["usage"] == {
        "prompt_tokens": n_prompt,
        "completion_tokens": 20,
        "total_tokens": n_prompt + 20,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 5},
    }
    timings = body["timings"]
    assert timings["prompt_n"] == n_prompt - 3 and timings["cache_n"] == 3 and timings["prompt_ms"] == 500
    assert timings["predicted_n"] == 20 and timings["predicted_per_second"] == 9.5
    assert (
        timings["predicted_per_token_ms"] == pytest.approx(2000 / 19)
        and timings["draft_n"] == 10
        and timings["draft_n_accepted"] == 7
    )
    assert body["x_phobos"]["seed"] == 42


def test_calls_alone_have_null_content(serve):
    def script(request, tokens, choice):
        yield ToolCallStart(0, "a", "f")
        yield finished(tokens, 3, "tool_calls")

    whole, _, _ = both(serve(script))
    assert whole["choices"][0]["message"]["content"] is None


def test_an_unclosed_thought_is_all_reasoning(serve):
    def script(request, tokens, choice):
        yield ReasoningDelta("hmm")
        yield finished(tokens, 1, "length")

    whole, joined, _ = both(serve(script), reasoning_effort="high")
    choice = whole["choices"][0]
    assert choice["message"]["content"] == "" and choice["message"]["reasoning_content"] == "hmm"
    assert choice["finish_reason"] == joined[0]["finish_reason"] == "length"
    assert joined[0]["message"]["reasoning_content"] == "hmm"


def test_an_empty_answer_is_an_empty_string(serve):
    whole, joined, events = both(serve(say()))
    assert whole["choices"][0]["message"]["content"] == "" and joined[0]["message"]["content"] == ""
    assert events[-1] == "[DONE]" and len(events) == 3


def test_ids_are_unique_and_the_model_is_named(serve):
    server = serve(model_id="mine")
    bodies = [server.post(CHAT, chat("x", model=name)).json for name in ("a", None)]
    assert bodies[0]["id"] != bodies[1]["id"] and bodies[0]["id"].startswith("chatcmpl-")
    assert [body["model"] for body in bodies] == ["a", "mine"]
    reply = server.post(CHAT, chat())
    assert reply.headers["x-request-id"].startswith("req_") and reply.headers["x-phobos-queue-wait-ms"] == "0"


def test_n_choices_share_one_prompt(serve):
    def script(request, tokens, choice):
        for word in ("a", "b", "c"):
            yield 0.002 * (3 - choice)
            yield TextDelta(f"{word}{choice} ")
        yield finished(tokens, 3)

    server = serve(script, with_slots(3))
    whole, joined, events = both(server, n=3, stream_options={"include_usage": True})
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    assert texts == ["a0 b0 c0 ", "a1 b1 c1 ", "a2 b2 c2 "] == [joined[i]["message"]["content"] for i in range(3)]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert whole["usage"]["completion_tokens"] == 9 and whole["usage"] == events[-2]["usage"]
    assert whole["usage"]["prompt_tokens"] == server.post(CHAT, chat("go")).json["usage"]["prompt_tokens"]
    assert len(whole["x_phobos"]["seeds"]) == 3
    assert len(server.engine.model.prepared) == 3
    too_many = server.post(CHAT, chat(n=4))
    assert too_many.status == 400 and too_many.error["param"] == "n"


def token(text, logprob, top=(), data=None):
    tops = tuple(TokenLogprob(9, t, t.encode(), p) for t, p in top)
    return TokenLogprob(1, text, text.encode() if data is None else data, logprob, tops)


def scored(request, tokens, choice):
    assert request.top_logprobs is not None
    yield TextDelta("Hel", (token("Hel", -0.1, [("Hel", -0.1), ("Jel", -2.0)]),))
    yield TextDelta("", (token("", -0.2, data=b"\xf0\x9f"),))
    yield TextDelta("\U0001f600!", (token("\U0001f600", -0.3, data=b"\x98\x80"), token("!", float("-inf"))))
    yield finished(tokens, 4)


def test_chat_logprobs_whole_and_streamed(serve):
    whole, joined, _ = both(serve(scored), logprobs=True, top_logprobs=2)
    entries = whole["choices"][0]["logprobs"]["content"]
    assert entries == joined[0]["logprobs"]
    assert "".join(entry["token"] for entry in entries) == whole["choices"][0]["message"]["content"] == "Hel\U0001f600!"
    assert entries[0]["bytes"] == [72, 101, 108] and entries[0]["logprob"] == -0.1
    assert entries[0]["top_logprobs"][1] == {"token": "Jel", "logprob": -2.0, "bytes": [74, 101, 108]}
    assert entries[1]["bytes"] == [0xF0, 0x9F] and entries[3]["logprob"] is None


def test_no_logprobs_unless_asked(serve):
    whole, joined, _ = both(serve(say("x")))
    assert whole["choices"][0]["logprobs"] is None and joined[0]["logprobs"] == []


def test_strict_tool_calls_are_whole_or_502(serve):
    def script(request, tokens, choice):
        yield ToolCallStart(0, "a", "f")
        yield ToolCallDelta(0, '{"x": ')
        yield finished(tokens, 3, "length")

    server = serve(script)
    reply = server.post(CHAT, chat(strict_tool_calls=True))
    assert reply.status == 502 and reply.error["code"] == "invalid_model_tool_call"
    assert server.post(CHAT, chat()).status == 200
    for other in ("stream", "logprobs"):
        refused = server.post(CHAT, chat(strict_tool_calls=True, **{other: True}))
        assert refused.status == 400 and refused.error["param"] == "strict_tool_calls"


# --- completions ----------------------------------------------------------------------------------------------------


def complete(server, **fields):
    whole = server.post(COMPLETIONS, fields).json
    events = server.post(COMPLETIONS, {**fields, "stream": True}).events
    texts, logprobs = {}, {}
    for event in events[:-1]:
        for part in event["choices"]:
            texts[part["index"]] = texts.get(part["index"], "") + part["text"]
            for key, values in (part["logprobs"] or {}).items():
                logprobs.setdefault(part["index"], {}).setdefault(key, []).extend(values)
    assert events[-1] == "[DONE]"
    return whole, texts, logprobs


def test_a_completion_whole_and_streamed(serve):
    whole, texts, _ = complete(serve(), prompt="once upon a time")
    choice = whole["choices"][0]
    assert whole["object"] == "text_completion" and whole["id"].startswith("cmpl-")
    assert choice == {"index": 0, "text": "once upon a time", "logprobs": None, "finish_reason": "stop"}
    assert texts == {0: "once upon a time"} and whole["usage"]["prompt_tokens"] == 16


def test_token_prompts_and_prompt_lists(serve):
    server = serve(model=with_slots(2))
    assert server.post(COMPLETIONS, {"prompt": list(b"by id")}).json["choices"][0]["text"] == "by id"
    whole, texts, _ = complete(server, prompt=["one", "two two", "three"], n=1)
    assert (
        [choice["text"] for choice in whole["choices"]] == ["one", "two two", "three"] == [texts[i] for i in range(3)]
    )
    assert whole["usage"]["prompt_tokens"] == len("onetwo twothree")
    pairs = server.post(COMPLETIONS, {"prompt": [list(b"x"), list(b"y")], "n": 2}).json
    assert [choice["text"] for choice in pairs["choices"]] == ["x", "x", "y", "y"]
    assert pairs["usage"]["prompt_tokens"] == 2


def test_echo_without_logprobs_repeats_the_prompt(serve):
    whole, texts, _ = complete(serve(say(" end")), prompt="begin", echo=True)
    assert whole["choices"][0]["text"] == "begin end" == texts[0]
    by_id = serve(say("!")).post(COMPLETIONS, {"prompt": list(b"ids"), "echo": True}).json
    assert by_id["choices"][0]["text"] == "ids!"


def echoed(request, tokens, choice):
    if request.echo:
        yield PromptLogprobs((token("be", 0.0), token("gin", -1.0, [("gin", -1.0)])))
    yield TextDelta(" end", (token(" en", -0.5, [(" en", -0.5)]), token("d", -0.25)))
    yield finished(tokens, 2)


def test_completion_logprobs_with_and_without_echo(serve):
    server = serve(echoed)
    whole, texts, streamed = complete(server, prompt="begin", echo=True, logprobs=1)
    logprobs = whole["choices"][0]["logprobs"]
    assert whole["choices"][0]["text"] == texts[0] == "begin end" == "".join(logprobs["tokens"])
    assert logprobs["token_logprobs"] == [None, -1.0, -0.5, -0.25]
    assert logprobs["top_logprobs"][:3] == [None, {"gin": -1.0}, {" en": -0.5}]
    assert logprobs["text_offset"] == [0, 2, 5, 8] and streamed[0] == logprobs
    plain, _, _ = complete(server, prompt="begin", logprobs=1)
    assert plain["choices"][0]["text"] == " end" and plain["choices"][0]["logprobs"]["text_offset"] == [0, 3]


@pytest.mark.parametrize("value", [0, None])
def test_zero_logprobs_are_none(serve, value):
    body = serve().post(COMPLETIONS, {"prompt": "x", "logprobs": value}).json
    assert body["choices"][0]["logprobs"] is None


def test_a_completion_stream_reports_usage(serve):
    body = {"prompt": "a b c", "stream": True, "stream_options": {"include_usage": True}}
    events = serve().post(COMPLETIONS, body).events
    assert events[-2]["choices"] == [] and events[-2]["usage"]["completion_tokens"] == 3
    assert "timings" in events[-3]


def test_a_client_that_leaves_a_pair_stops_both(serve):
    server = serve(endless(), with_slots(2))
    from doubles.scripted_engine import encode

    with server.connect() as client:
        client.send(encode("POST", CHAT, chat(n=2, stream=True)))
        client.read_until(b"tick")
    eventually(lambda: server.engine.cancelled == 2)
