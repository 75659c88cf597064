"""The Responses API as a client sees it: the raw protocol, and the real `openai` client."""

from __future__ import annotations

import json

import openai
import pytest

from doubles.scripted_engine import finished, parrot, say, with_slots
from phobos.chat.events import (
    Failed,
    Finished,
    ReasoningDelta,
    TextDelta,
    Timings,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from phobos.errors import PhobosError

WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def ask(server, given="hello there", **fields):
    return server.post("/v1/responses", {"model": "m", "input": given, **fields})


def named_events(reply):
    found = []
    for index, block in enumerate(reply.body.decode().strip().split("\n\n")):
        name, data = block.split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert name == "event: " + value["type"] and value["sequence_number"] == index
        found.append(value)
    return found


def thinks_says_calls(request, tokens, choice):
    yield ReasoningDelta("let me ")
    yield ReasoningDelta("see")
    yield TextDelta("I will ")
    yield TextDelta("ask.")
    for index, city in enumerate(("Paris", "Rome")):
        yield ToolCallStart(index, f"call_{index}", "weather")
        yield ToolCallDelta(index, '{"city": ')
        yield ToolCallDelta(index, f'"{city}"}}')
    yield ToolCallStart(2, "call_2", "weather")
    yield Finished("tool_calls", Usage(len(tokens), 3, 12, 2), Timings(0.1, 0.1, 5))


def without_ids(value):
    if isinstance(value, dict):
        return {k: without_ids(v) for k, v in value.items() if k not in ("id", "item_id", "created_at")}
    return [without_ids(v) for v in value] if isinstance(value, list) else value


def test_a_response(serve):
    body = ask(serve(), metadata={"a": "b"}, store=True, instructions="Be brief.").json
    assert (body["object"], body["status"], body["model"]) == ("response", "completed", "m")
    (item,) = body["output"]
    assert item["type"] == "message" and item["status"] == "completed"
    assert item["content"] == [{"type": "output_text", "text": "hello there", "annotations": [], "logprobs": []}]
    assert body["usage"]["output_tokens"] == 2 and body["usage"]["input_tokens_details"]["cached_tokens"] == 0
    assert body["metadata"] == {"a": "b"} and body["instructions"] == "Be brief." and body["store"] is False


def test_the_event_sequence(serve):
    events = named_events(ask(serve(), stream=True))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *["output_text.delta"] * kinds.count("output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    assert events[0]["response"]["status"] == "in_progress" and events[0]["response"]["output"] == []
    assert "".join(e["delta"] for e in events if e["type"].endswith("text.delta")) == "hello there"


@pytest.mark.parametrize("script", [parrot, thinks_says_calls, say(), say("only", " this", reason="length")])
def test_the_stream_ends_with_the_whole_response(serve, script):
    server = serve(script)
    whole = ask(server, tools=[WEATHER]).json
    events = named_events(ask(server, tools=[WEATHER], stream=True))
    assert without_ids(events[-1]["response"]) == without_ids(whole)
    built, texts = [], {}
    for event in events:
        if event["type"] == "response.output_item.done":
            assert event["output_index"] == len(built)
            built.append(event["item"])
        elif event["type"].endswith(".delta"):
            texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
    assert built == events[-1]["response"]["output"]
    for item in built:
        said = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert texts.get(item["id"], "{}") == said


def test_items_come_one_after_another(serve):
    body = ask(serve(thinks_says_calls), tools=[WEATHER]).json
    reasoning, message, *calls = body["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "let me see"}] and reasoning["summary"] == []
    assert message["content"][0]["text"] == "I will ask."
    assert [(c["call_id"], c["arguments"]) for c in calls] == [
        ("call_0", '{"city": "Paris"}'),
        ("call_1", '{"city": "Rome"}'),
        ("call_2", "{}"),
    ]
    assert body["usage"]["output_tokens_details"] == {"reasoning_tokens": 2}
    assert body["usage"]["input_tokens_details"]["cached_tokens"] == 3


def test_an_answer_that_was_cut_off(serve):
    body = ask(serve(say("half", reason="length"))).json
    assert body["status"] == "incomplete" and body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert body["output"][0]["status"] == "incomplete"


def test_what_the_engine_is_asked(serve):
    server = serve()
    items = [
        {"role": "developer", "content": "Be kind."},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
        },
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I ask", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"n": 9007199254740993}'},
        {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": ""},
        {"type": "function_call_output", "call_id": "c2", "output": "cold"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "warm"}]},
        {"role": "user", "content": "and now?"},
    ]
    reply = ask(
        server,
        items,
        instructions="Be brief.",
        tools=[WEATHER],
        tool_choice="required",
        parallel_tool_calls=False,
        max_output_tokens=7,
        top_p=0.5,
        reasoning={"effort": "high", "summary": "auto"},
        text={"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}, "verbosity": "low"},
        include=["reasoning.encrypted_content"],
        stream_options={"include_obfuscation": False},
    )
    assert reply.status == 200, reply.body
    (request,) = server.engine.submitted
    assert [(m.role, m.content, m.tool_call_id) for m in request.messages] == [
        ("system", "Be brief.", None),
        ("system", "Be kind.", None),
        ("user", "ab", None),
        ("assistant", "I ask", None),
        ("tool", "cold", "c2"),
        ("tool", "warm", "c1"),
        ("user", "and now?", None),
    ]
    assert request.messages[3].reasoning == "hm"
    assert [c.arguments for c in request.messages[3].tool_calls] == ['{"n": 9007199254740993}', "{}"]
    assert (request.tool_choice.kind, request.parallel_tool_calls, request.max_tokens) == ("required", False, 7)
    assert request.thinking and request.reasoning_effort == "high" and request.output.schema == {"type": "object"}


def test_logprobs(serve):
    def script(request, tokens, choice):
        entry = TokenLogprob(104, "h", b"h", -0.5, (TokenLogprob(104, "h", b"h", -0.5),))
        assert request.top_logprobs == 1
        yield TextDelta("h", (entry,))
        yield finished(tokens, 1)

    server = serve(script)
    fields = {"top_logprobs": 1, "include": ["message.output_text.logprobs"]}
    part = ask(server, **fields).json["output"][0]["content"][0]
    assert part["logprobs"][0]["logprob"] == -0.5 and part["logprobs"][0]["top_logprobs"][0]["token"] == "h"
    events = named_events(ask(server, stream=True, **fields))
    assert [e["logprobs"] for e in events if e["type"] == "response.output_text.delta"] == [part["logprobs"]]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input"),
        ({"input": [{"type": 5}]}, "input[0].type"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": ""}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "w", "arguments": 5}]}, "input[0].arguments"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"max_tool_calls": 1}, "max_tool_calls"),
        ({"reasoning": {"generate_summary": "auto"}}, "reasoning.generate_summary"),
        ({"background": True}, "background"),
        ({"tools": [{"type": None}]}, "tools[0].type"),
        ({"tools": [{**WEATHER, "name": "a b"}]}, "tools[0].name"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"tool_choice": ["auto"]}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"temperature": 9}, "temperature"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_wrong_input_is_400_with_the_fields_name(serve, fields, param, stream):
    reply = serve().post("/v1/responses", {"input": "x", "stream": stream, **fields})
    assert reply.status == 400, reply.body
    assert reply.error["param"] == param


def test_a_failure_after_the_start_is_one_event(serve):
    def script(request, tokens, choice):
        yield TextDelta("begun")
        yield 0.02
        yield Failed(PhobosError("secret"))

    events = named_events(ask(serve(script), stream=True))
    assert events[-1]["type"] == "response.failed" and events[-1]["response"]["status"] == "failed"
    assert events[-1]["response"]["error"]["code"] == "server_error"
    assert "secret" not in json.dumps(events)


# --- the real client ------------------------------------------------------------------------------------------------


@pytest.fixture
def client_of():
    clients = []

    def make(server):
        clients.append(openai.OpenAI(base_url=server.url + "/v1", api_key="local", max_retries=0))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def test_client_response_and_stream(serve, client_of):
    client = client_of(serve())
    assert client.responses.create(model="m", input="hello there").output_text == "hello there"
    with client.responses.stream(model="m", input="hello there") as stream:
        texts = [e.delta for e in stream if e.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(texts) == final.output_text == "hello there"
    raw = list(client.responses.create(model="m", input="a b c", stream=True))
    assert raw[-1].type == "response.completed" and raw[-1].response.usage.output_tokens == 3


def test_client_tools_loop(serve, client_of):
    def script(request, tokens, choice):
        if request.messages[-1].role == "tool":
            yield TextDelta("It is " + request.messages[-1].content)
            yield finished(tokens, 3)
            return
        yield ReasoningDelta("hm")
        yield ToolCallStart(0, "call_7", "weather")
        yield ToolCallDelta(0, '{"city": "Rome"}')
        yield finished(tokens, 4, "tool_calls")

    server = serve(script)
    client, items = client_of(server), [{"role": "user", "content": "weather in Rome?"}]
    for _ in range(2):
        reply = client.responses.create(model="m", input=items, tools=[WEATHER])
        calls = [item for item in reply.output if item.type == "function_call"]
        items += [item.to_dict() for item in reply.output]
        items += [
            {"type": "function_call_output", "call_id": c.call_id, "output": json.loads(c.arguments)["city"]}
            for c in calls
        ]
    assert reply.output_text == "It is Rome"
    assert server.engine.submitted[1].messages[1].reasoning == "hm"


def test_client_errors_are_mapped(serve, client_of):
    client = client_of(serve(model=with_slots(1, n_ctx=50)))
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="m", input="x" * 200, stream=True)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="m", input="x", previous_response_id="resp_1")
    assert caught.value.param == "previous_response_id"
