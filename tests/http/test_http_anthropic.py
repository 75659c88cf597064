"""The Messages API as a client sees it: the raw protocol, and the real `anthropic` client."""

from __future__ import annotations

import json
from dataclasses import replace

import anthropic
import pytest

from doubles.scripted_engine import encode, endless, eventually, finished, parrot, say, with_slots
from phobos.chat.events import (
    Failed,
    Finished,
    ReasoningDelta,
    TextDelta,
    Timings,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from phobos.errors import PhobosError

HELLO = [{"role": "user", "content": "hello there"}]
WEATHER = {
    "name": "weather",
    "description": "The weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def body(**fields):
    return {"model": "m", "max_tokens": 50, "messages": HELLO, **fields}


def ask(server, **fields):
    return server.post("/v1/messages", body(**fields))


def named_events(reply):
    """(event name, data) of each server-sent event; the two names must agree."""
    found = []
    for block in reply.body.decode().strip().split("\n\n"):
        name, data = block.split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert name == "event: " + value["type"]
        found.append(value)
    return found


def fold(events):
    """The message a stream's events come to."""
    message = None
    for event in events:
        match event["type"]:
            case "message_start":
                assert message is None
                message = event["message"]
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append({**event["content_block"], "open": True, "json": ""})
            case "content_block_delta":
                assert event["index"] == len(message["content"]) - 1
                block, delta = message["content"][-1], event["delta"]
                assert block["open"]
                match delta["type"]:
                    case "text_delta":
                        block["text"] += delta["text"]
                    case "thinking_delta":
                        block["thinking"] += delta["thinking"]
                    case "signature_delta":
                        block["signature"] = delta["signature"]
                    case "input_json_delta":
                        block["json"] += delta["partial_json"]
            case "content_block_stop":
                block = message["content"][event["index"]]
                assert block.pop("open")
                text = block.pop("json")
                if text:
                    block["input"] = json.loads(text)
            case "message_delta":
                message |= event["delta"]
                message["usage"] |= event["usage"]
    return message


def thinks_says_calls(request, tokens, choice):
    yield ReasoningDelta("let me ")
    yield ReasoningDelta("see")
    yield TextDelta("I will ")
    yield TextDelta("ask.")
    for index, city in enumerate(("Paris", "Rome")):
        yield ToolCallStart(index, f"call_{index}", "weather")
        yield ToolCallDelta(index, '{"city": ')
        yield ToolCallDelta(index, f'"{city}"}}')
    yield Finished("tool_calls", Usage(len(tokens), 3, 12, 2), Timings(0.1, 0.1, 5))


def test_a_message(serve):
    reply = ask(serve())
    message = reply.json
    assert reply.status == 200 and "x-phobos-queue-wait-ms" in reply.headers
    assert message["content"] == [{"type": "text", "text": "hello there"}]
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", "m")
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    assert message["usage"]["output_tokens"] == 2 and message["id"].startswith("msg_")


def test_the_event_sequence(serve):
    reply = ask(serve(), stream=True)
    events = named_events(reply)
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[3:-3]) == {"content_block_delta"}
    start = events[0]["message"]
    assert start["content"] == [] and start["stop_reason"] is None
    assert start["usage"]["input_tokens"] > 0 and start["usage"]["output_tokens"] == 0
    assert start["usage"]["cache_read_input_tokens"] == 0


@pytest.mark.parametrize("script", [parrot, thinks_says_calls, say(), say("only", " this", reason="length")])
def test_the_joined_stream_is_the_whole_message(serve, script):
    server = serve(script)
    whole = ask(server, tools=[WEATHER]).json
    streamed = fold(named_events(ask(server, tools=[WEATHER], stream=True)))
    assert {**whole, "id": 0} == {**streamed, "id": 0}


def test_blocks_come_one_after_another(serve):
    message = ask(serve(thinks_says_calls), tools=[WEATHER]).json
    assert message["content"] == [
        {"type": "thinking", "thinking": "let me see", "signature": "phobos"},
        {"type": "text", "text": "I will ask."},
        {"type": "tool_use", "id": "call_0", "name": "weather", "input": {"city": "Paris"}},
        {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Rome"}},
    ]
    assert message["stop_reason"] == "tool_use"
    assert message["usage"]["cache_read_input_tokens"] == 3
    assert message["usage"]["input_tokens"] == len("<user>hello there") - 3
    assert message["usage"]["output_tokens_details"] == {"thinking_tokens": 2}


def test_thoughts_can_be_left_out(serve):
    thinking = {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}
    server = serve(thinks_says_calls)
    message = ask(server, tools=[WEATHER], thinking=thinking).json
    assert message["content"][0] == {"type": "thinking", "thinking": "", "signature": "phobos"}
    assert server.engine.submitted[0].thinking_budget == 1024


def test_a_call_that_was_cut_off_is_no_input(serve):
    def script(request, tokens, choice):
        yield ToolCallStart(0, "call_1", "weather")
        yield ToolCallDelta(0, '{"city": "Par')
        yield finished(tokens, 4, "length")

    message = ask(serve(script), tools=[WEATHER]).json
    assert message["content"][0]["input"] == {} and message["stop_reason"] == "max_tokens"


def test_a_stop_sequence_is_named(serve):
    def script(request, tokens, choice):
        yield TextDelta("one two")
        yield replace(finished(tokens, 3), stop_text=request.stop[0])

    message = ask(serve(script), stop_sequences=["three", "four"]).json
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "three")


def test_what_the_engine_is_asked(serve):
    server = serve()
    conversation = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "I ask"},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"n": 9007199254740993}},
                {"type": "tool_use", "id": "t2", "name": "weather", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t2", "content": "cold", "is_error": True},
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "warm"}]},
                {"type": "text", "text": "and now?"},
            ],
        },
    ]
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cch=1f2e;"},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
    ]
    choice = {"type": "any", "disable_parallel_tool_use": True}
    reply = ask(
        server, messages=conversation, system=system, tools=[WEATHER], tool_choice=choice, top_k=7, temperature=0.5
    )
    assert reply.status == 200
    (request,) = server.engine.submitted
    assert [(m.role, m.content, m.tool_call_id) for m in request.messages] == [
        ("system", "Be brief.", None),
        ("user", "a\nb", None),
        ("assistant", "I ask", None),
        ("tool", "Error: cold", "t2"),
        ("tool", "warm", "t1"),
        ("user", "and now?", None),
    ]
    assert request.messages[2].reasoning == "hm"
    assert request.messages[2].tool_calls[0].arguments == '{"n":9007199254740993}'
    assert request.tool_choice.kind == "required" and not request.parallel_tool_calls
    assert (request.sampling.top_k, request.sampling.temperature, request.max_tokens) == (7, 0.5, 50)


@pytest.mark.parametrize(
    ("choice", "kind", "name"),
    [
        ({"type": "auto"}, "auto", None),
        ({"type": "none"}, "none", None),
        ({"type": "any"}, "required", None),
        ({"type": "tool", "name": "weather"}, "function", "weather"),
        (None, "auto", None),
    ],
)
def test_tool_choices(serve, choice, kind, name):
    server = serve()
    assert ask(server, tools=[WEATHER], tool_choice=choice).status == 200
    assert (server.engine.submitted[0].tool_choice.kind, server.engine.submitted[0].tool_choice.name) == (kind, name)


@pytest.mark.parametrize(
    ("thinking", "on"),
    [({"type": "enabled", "budget_tokens": 2000}, True), ({"type": "disabled"}, False), ({"type": "adaptive"}, True)],
)
def test_thinking(serve, thinking, on):
    server = serve()
    assert ask(server, thinking=thinking, output_config={"effort": "max"}).status == 200
    assert (server.engine.submitted[0].thinking, server.engine.submitted[0].reasoning_effort) == (on, "xhigh")


def test_a_model_without_reasoning_answers_without_and_says_so(serve):
    plain = with_slots(1, supports_thinking=False)
    server = serve(model=plain)
    reply = ask(server, thinking={"type": "enabled", "budget_tokens": 2000})
    assert reply.status == 200 and reply.headers["x-phobos-ignored-fields"] == "thinking"
    assert "x-phobos-ignored-fields" not in ask(server, thinking={"type": "adaptive"}).headers
    strict = serve(model=plain, strict_fields=True)
    reply = ask(strict, thinking={"type": "enabled", "budget_tokens": 2000})
    assert reply.status == 400 and "no reasoning" in reply.error["message"]


def test_a_schema_binds_the_answer(serve):
    server = serve()
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert ask(server, output_config={"format": {"type": "json_schema", "schema": schema}}).status == 200
    assert server.engine.submitted[0].output.schema == schema


def test_a_trailing_assistant_message_is_continued(serve):
    server = serve()
    begun = [
        *HELLO,
        {"role": "assistant", "content": [{"type": "text", "text": "The answer"}, {"type": "text", "text": " is"}]},
    ]
    assert ask(server, messages=begun).status == 200
    assert server.engine.submitted[0].continue_assistant
    assert server.engine.submitted[0].messages[-1].content == "The answer is"
    assert ask(server, messages=begun, tools=[WEATHER]).status == 400
    assert ask(server, messages=[*HELLO, {"role": "assistant", "content": "is "}]).status == 400
    fresh = serve(continue_assistant=False)
    assert ask(fresh, messages=begun).status == 200 and not fresh.engine.submitted[0].continue_assistant


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_tokens": None}, "max_tokens is required"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": None}, "messages is required"),
        ({"messages": []}, "at least one message"),
        ({"messages": "hi"}, "must be a list"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "content[0].type 'image'"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "content[0].text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t9"}]}]},
            "'t9' answers no call",
        ),
        ({"system": 5}, "system"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"temperature": 9}, "temperature"),
        ({"top_k": -2}, "top_k"),
        ({"tool_choice": {"type": "tool", "name": "x"}}, "not among the tools"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "maybe"}}, "tool_choice.type"),
        ({"tools": [{"type": 5, "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "bad name"}]}, "tools[0].name"),
        ({"tools": [WEATHER, WEATHER]}, "taken twice"),
        ({"tools": [{"name": "t", "input_schema": "string"}]}, "parameters of tool 't'"),
        ({"thinking": {"type": "perhaps"}}, "thinking.type"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_wrong_input_is_400_in_this_protocols_envelope(serve, fields, said, stream):
    reply = ask(serve(), stream=stream, **fields)
    assert reply.status == 400, reply.body
    assert reply.json["type"] == "error" and reply.json["request_id"].startswith("req_")
    assert set(reply.error) == {"type", "message"} and reply.error["type"] == "invalid_request_error"
    assert said in reply.error["message"]


def test_refusals_before_the_body_have_the_envelope_too(serve):
    server = serve(api_keys=("right",))
    reply = server.post("/v1/messages", body(), {"x-api-key": "wrong"})
    assert reply.status == 401 and reply.error["type"] == "authentication_error"
    assert server.post("/v1/messages", body(), {"x-api-key": "right"}).status == 200
    assert server.post("/v1/messages", body(), {"authorization": "Bearer right"}).status == 200
    reply = server.get("/v1/messages", {"x-api-key": "right"})
    assert reply.status == 405 and reply.json["type"] == "error" and "POST" in reply.headers["allow"]


def test_unknown_fields(serve):
    reply = ask(serve(), colour="red", metadata={"user_id": "u"}, context_management={})
    assert reply.headers["x-phobos-ignored-fields"] == "colour"
    reply = ask(serve(strict_fields=True), colour="red")
    assert reply.status == 400 and "'colour'" in reply.error["message"]


def test_a_failure_in_a_stream_is_one_error_event(serve):
    def script(request, tokens, choice):
        yield TextDelta("begun")
        yield 0.02
        yield Failed(PhobosError("secret"))

    events = named_events(ask(serve(script), stream=True))
    assert events[-1]["type"] == "error" and events[-1]["error"]["type"] == "api_error"
    assert "secret" not in events[-1]["error"]["message"]
    assert [e["type"] for e in events].count("error") == 1 and "message_stop" not in [e["type"] for e in events]


def test_silence_is_filled_with_pings(serve):
    server = serve(say("late", pause_s=0.35), heartbeat_s=0.05)
    kinds = [e["type"] for e in named_events(ask(server, stream=True))]
    assert kinds.count("ping") >= 4 and kinds[-1] == "message_stop"
    assert kinds.index("message_start") <= 1


def test_count_tokens(serve):
    server = serve(model=with_slots(1, n_ctx=30))
    fields = {"model": "m", "messages": HELLO}
    assert server.post("/v1/messages/count_tokens", fields).json == {"input_tokens": len("<user>hello there")}
    long = {**fields, "messages": [{"role": "user", "content": "x" * 100}]}
    assert server.post("/v1/messages/count_tokens", long).json == {"input_tokens": 106}
    assert server.post("/v1/messages/count_tokens", {"model": "m"}).status == 400
    assert not server.engine.submitted


# --- the real client ------------------------------------------------------------------------------------------------


@pytest.fixture
def client_of():
    clients = []

    def make(server, **options):
        options = {"api_key": "local", "max_retries": 0, **options}
        clients.append(anthropic.Anthropic(base_url=server.url, **options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def test_client_message_and_count(serve, client_of):
    client = client_of(serve())
    message = client.messages.create(model="m", max_tokens=9, messages=HELLO, system="Be brief.")
    assert message.content[0].text == "hello there" and message.stop_reason == "end_turn"
    assert client.messages.count_tokens(model="m", messages=HELLO).input_tokens == 17


def test_client_stream(serve, client_of):
    with client_of(serve(thinks_says_calls)).messages.stream(
        model="m", max_tokens=2000, messages=HELLO, tools=[WEATHER], thinking={"type": "enabled", "budget_tokens": 1024}
    ) as stream:
        assert "".join(stream.text_stream) == "I will ask."
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert final.content[0].thinking == "let me see" and final.content[2].input == {"city": "Paris"}
    assert final.usage.cache_read_input_tokens == 3 and final.usage.output_tokens == 12


def test_client_tools_loop(serve, client_of):
    def script(request, tokens, choice):
        if request.messages[-1].role == "tool":
            yield TextDelta("It is " + request.messages[-1].content)
            yield finished(tokens, 3)
            return
        yield ToolCallStart(0, "call_7", "weather")
        yield ToolCallDelta(0, '{"city": "Rome"}')
        yield finished(tokens, 4, "tool_calls")

    client, messages = client_of(serve(script)), list(HELLO)
    while True:
        reply = client.messages.create(model="m", max_tokens=99, messages=messages, tools=[WEATHER])
        if reply.stop_reason != "tool_use":
            break
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": f"sunny in {block.input['city']}"}
            for block in reply.content
            if block.type == "tool_use"
        ]
        messages += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": results}]
    assert reply.content[0].text == "It is sunny in Rome" and len(messages) == 3


def test_client_errors_are_mapped(serve, client_of):
    server = serve(model=with_slots(1, n_ctx=100), api_keys=("right",))
    with pytest.raises(anthropic.AuthenticationError):
        client_of(server, api_key="wrong").messages.create(model="m", max_tokens=9, messages=HELLO)
    client = client_of(server, api_key="right")
    with pytest.raises(anthropic.BadRequestError, match="context holds 100"):
        long = [{"role": "user", "content": "x" * 200}]
        list(client.messages.create(model="m", max_tokens=9, messages=long, stream=True))
    with pytest.raises(anthropic.NotFoundError):
        client.get("/v1/nothing", cast_to=object)


def test_client_sees_a_failed_stream_and_a_full_queue(serve, client_of):
    def script(request, tokens, choice):
        yield TextDelta("begun")
        yield 0.02
        yield Failed(PhobosError("broken"))

    with pytest.raises(anthropic.APIError, match="engine failed"):
        list(client_of(serve(script)).messages.create(model="m", max_tokens=9, messages=HELLO, stream=True))
    server = serve(endless(), max_queue=0)
    with server.connect() as running:
        running.send(encode("POST", "/v1/messages", body(stream=True)))
        eventually(lambda: server.engine.running)
        with pytest.raises(anthropic.RateLimitError):
            client_of(server).messages.create(model="m", max_tokens=9, messages=HELLO)
