"""Requests as coding agents and libraries send them: accepted, and what is left out is told."""

from __future__ import annotations

import json

import pytest

from doubles.scripted_engine import ScriptedModel, finished
from phobos.chat.events import TextDelta, TokenLogprob, ToolCallDelta, ToolCallStart
from phobos.errors import RequestError
from phobos.http.protocols.history import mend_arguments
from phobos.http.protocols.responses_reply import FreeText
from phobos.http.protocols.tools import CHAT, MESSAGES, RESPONSES, read_choice, read_tools

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
F = {"type": "function", "function": {"name": "f", "parameters": {}}}
FLAT = {"type": "function", "name": "f", "parameters": {}}
HELLO = [{"role": "user", "content": "hi"}]
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


def listed(reply):
    return [name for name in reply.headers.get("x-phobos-ignored-fields", "").split(", ") if name]


def called(text="{}", call_id="c"):
    made = {**CALL, "id": call_id, "function": {"name": "f", "arguments": text}}
    return {"role": "assistant", "content": None, "tool_calls": [made]}


def result(content="done", call_id="c"):
    return {"role": "tool", "tool_call_id": call_id, "content": content}


CHOOSE_F = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}
CHOOSE_NONE = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}
PATCHED = [
    {"type": "custom_tool_call", "call_id": "a", "name": "patch", "input": "x"},
    {"type": "custom_tool_call_output", "call_id": "a", "output": "ok"},
]
VIEWED = [
    {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_image", "image_url": "data:"}]},
]
WORKFLOW = {"name": "w", "input_schema": {"type": "object", "properties": {"args": {"description": "any"}}}}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
READ = [
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "Read", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}]},
]
SEARCHED = {"role": "assistant", "content": [{"type": "server_tool_use", "id": "s"}, {"type": "text", "text": "so"}]}
SHOWN = {"role": "user", "content": [PICTURE]}
ANSWERED = {"role": "assistant", "content": "a cat"}
EBNF = {"type": "custom", "name": "p", "format": {"type": "grammar", "syntax": "ebnf", "definition": "x"}}
LOOK = {"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}

ACCEPTED = [
    ("responses", {"tools": [{"type": "namespace", "name": "n", "description": "d", "tools": [FLAT]}]}, []),
    ("responses", {"tools": [{"type": "web_search", "external_web_access": True}, FLAT]}, ["tools[0].web_search"]),
    ("responses", {"tools": [{"type": "custom", "name": "patch", "format": {"type": "text"}}]}, []),
    ("responses", {"truncation": "auto"}, ["truncation"]),
    ("responses", {"include": ["file_search_call.results"]}, ["include.file_search_call.results"]),
    ("responses", {"input": [*HELLO, {"type": "item_reference", "id": "x"}]}, ["input[1].item_reference"]),
    ("responses", {"input": [*HELLO, {"type": "web_search_call", "id": "w"}]}, ["input[1].web_search_call"]),
    ("responses", {"reasoning": {"effort": "medium", "summary": "auto"}}, ["reasoning.effort"]),
    ("responses", {"reasoning": {"effort": "max"}}, ["reasoning.effort"]),
    ("responses", {"tools": [FLAT], "tool_choice": CHOOSE_F}, []),
    ("responses", {"tools": [{"type": "web"}], "tool_choice": {"type": "web"}}, ["tools[0].web", "tool_choice"]),
    ("responses", {"input": [*HELLO, *PATCHED]}, []),
    ("responses", {"input": [*HELLO, PATCHED[0]]}, []),
    ("responses", {"input": [*HELLO, *VIEWED]}, ["input[2].output[0]"]),
    ("messages", {"tools": [WORKFLOW]}, []),
    ("messages", {"tools": [SEARCH, {"name": "f", "input_schema": {}}]}, ["tools[0].web_search_20250305"]),
    ("messages", {"thinking": {"type": "enabled", "budget_tokens": 1024}}, ["thinking"]),
    ("messages", {"tool_choice": {"type": "any"}}, ["tool_choice"]),
    ("messages", {"messages": [*HELLO, *READ]}, ["messages[2].content[0].content[0]"]),
    ("messages", {"messages": [*HELLO, SEARCHED, *HELLO]}, ["messages[1].content[0].server_tool_use"]),
    ("chat", {"tools": [{"type": "web_search"}, F]}, ["tools[0].web_search"]),
    ("chat", {"tool_choice": "required"}, ["tool_choice"]),
    ("chat", {"tool_choice": CHOOSE_NONE}, []),
    ("chat", {"reasoning_effort": "medium"}, ["reasoning_effort"]),
    ("chat", {"reasoning_effort": "max"}, ["reasoning_effort"]),
    ("chat", {"max_tokens": -1}, []),
    ("chat", {"messages": [*HELLO, called('{"a": '), result("bad JSON")]}, []),
    ("chat", {"messages": [*HELLO, {"role": "assistant", "content": None}, *HELLO]}, []),
    ("chat", {"messages": [*HELLO, called(), result(), called(), result()]}, []),
    ("chat", {"messages": [SHOWN, ANSWERED, *HELLO]}, ["messages[0].content[0]"]),
    ("chat", {"messages": [*HELLO, called(), result([PICTURE])]}, ["messages[2].content[0]"]),
]


@pytest.mark.parametrize(("protocol", "fields", "left_out"), ACCEPTED, ids=lambda value: json.dumps(value)[:60])
def test_what_agents_send_is_answered_and_what_is_left_out_is_listed(serve, protocol, fields, left_out):
    hello = {"input": "hi", "max_output_tokens": 4} if protocol == "responses" else {"messages": HELLO, "max_tokens": 4}
    server = serve(model=ScriptedModel(supports_thinking=False))
    for stream in (False, True):
        reply = server.post(PATHS[protocol], {**hello, **fields, "stream": stream})
        assert reply.status == 200, reply.body
        assert listed(reply) == left_out


REFUSED = [
    ("chat", {"messages": [SHOWN]}, "messages[0].content[0].type"),
    ("chat", {"messages": [*HELLO, SHOWN, called(), result()]}, "messages[1].content[0].type"),
    ("chat", {"messages": [*HELLO, called(), called(), result()]}, "messages[2].tool_calls"),
    ("chat", {"messages": [*HELLO, result(call_id="z")]}, "messages[1].tool_call_id"),
    ("chat", {"messages": HELLO, "temperature": 2.5}, "temperature"),
    ("chat", {"messages": HELLO, "max_tokens": 0}, "max_tokens"),
    ("chat", {"messages": HELLO, "enable_thinking": True}, "enable_thinking"),
    ("responses", {"input": "hi", "tools": [EBNF]}, "tools[0].format"),
    ("responses", {"input": [LOOK]}, "input[0].content[0].type"),
]


@pytest.mark.parametrize(("protocol", "body", "param"), REFUSED, ids=lambda value: json.dumps(value)[:60])
def test_what_stays_refused_is_named(serve, protocol, body, param):
    reply = serve(model=ScriptedModel(supports_thinking=False)).post(PATHS[protocol], body)
    assert reply.status == 400 and reply.error["param"] == param


def test_strict_fields_leave_nothing_out(serve):
    server = serve(model=ScriptedModel(supports_thinking=False), strict_fields=True)
    cases = [({"tools": [{"type": "web_search"}]}, "tools[0].type"), ({"reasoning_effort": "low"}, "reasoning_effort")]
    for fields, param in cases:
        assert server.post(PATHS["chat"], {"messages": HELLO, **fields}).error["param"] == param


def test_a_server_may_let_every_chat_reason(serve):
    server = serve(think=True)
    server.post(PATHS["chat"], {"messages": HELLO})
    server.post(PATHS["chat"], {"messages": HELLO, "enable_thinking": False})
    server.post(PATHS["chat"], {"messages": HELLO, "reasoning_effort": "none"})
    server.post(PATHS["messages"], {"messages": HELLO, "max_tokens": 4})
    server.post(PATHS["responses"], {"input": "hi"})
    assert [request.thinking for request in server.engine.submitted] == [True, False, False, True, True]
    plain = serve(model=ScriptedModel(supports_thinking=False), think=True)
    assert plain.post(PATHS["chat"], {"messages": HELLO}).status == 200


def test_each_call_of_a_conversation_has_its_own_id(serve):
    server = serve()
    turns = [*HELLO, called(), result("one"), called(), result("two")]
    server.post(PATHS["chat"], {"messages": turns})
    messages = server.engine.submitted[0].messages
    assert messages[1].tool_calls[0].id == messages[2].tool_call_id != messages[3].tool_calls[0].id
    assert messages[3].tool_calls[0].id == messages[4].tool_call_id


def test_a_placeholder_stands_for_a_picture(serve):
    server = serve()
    server.post(PATHS["chat"], {"messages": [*HELLO, called(), result([PICTURE])]})
    assert server.engine.submitted[0].messages[2].content == "[image left out: this model reads text only]"


@pytest.mark.parametrize(
    ("text", "mended"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        ('{"a": ', {"a": None}),
        ('{"a": [1, {"b": "c', {"a": [1, {"b": "c"}]}),
        ('{"a": "x\\', {"a": "x"}),
        ('{"a": 1,', {"a": 1}),
        ("run it", {"arguments": "run it"}),
        ("[1]", {"arguments": "[1]"}),
    ],
)
def test_arguments_that_were_cut_off_are_mended(text, mended):
    assert json.loads(mend_arguments(text)) == mended


def patching(request, tokens, choice):
    yield ToolCallStart(0, "call_1", request.tools[0].name)
    for piece in ('{"inp', 'ut": "a\\', "n\\u00e", "9\\ud83d", '\\ude00"', "}"):
        yield ToolCallDelta(0, piece)
    yield finished(tokens, 6, "tool_calls")


def test_a_free_form_tool_is_called_with_its_text(serve):
    server = serve(patching)
    tools = [{"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "regex", "definition": "a.*"}}]
    body = {"input": "go", "tools": tools, "tool_choice": {"type": "custom", "name": "patch"}}
    (item,) = server.post(PATHS["responses"], body).json["output"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "patch", "a\né😀")
    assert server.engine.submitted[0].tools[0].parameters["properties"]["input"]["pattern"] == "^(?:a.*)$"
    lines = server.post(PATHS["responses"], {**body, "stream": True}).body.decode().splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    deltas = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == "a\né😀"
    done = next(event for event in events if event["type"] == "response.custom_tool_call_input.done")
    assert done["input"] == "a\né😀"


def test_a_namespaced_call_goes_back_by_its_own_name(serve):
    def script(request, tokens, choice):
        yield ToolCallStart(0, "call_1", request.tools[0].name)
        yield finished(tokens, 1, "tool_calls")

    server = serve(script)
    tools = [{"type": "namespace", "name": "crm", "description": "d", "tools": [FLAT]}]
    (item,) = server.post(PATHS["responses"], {"input": "go", "tools": tools}).json["output"]
    assert (item["name"], item["namespace"], item["arguments"]) == ("f", "crm", "{}")
    assert server.engine.submitted[0].tools[0].name == "crm.f"
    call = {"type": "function_call", "call_id": "a", "name": "f", "namespace": "crm", "arguments": "{}"}
    past = [*HELLO, call, {"type": "function_call_output", "call_id": "a", "output": "x"}]
    server.post(PATHS["responses"], {"input": past, "tools": tools})
    assert server.engine.submitted[1].messages[1].tool_calls[0].name == "crm.f"


def test_free_text_does_not_depend_on_how_it_was_cut():
    text = 'a "b"\n\\é😀'
    whole = json.dumps({"input": text})
    for n in (1, 2, 3, 7):
        reader = FreeText()
        assert "".join(reader.push(whole[i : i + n]) for i in range(0, len(whole), n)) == text


def test_allowed_tools_are_fewer_than_those_shown():
    offer = read_tools([{**FLAT, "name": "f"}, {**FLAT, "name": "g"}], RESPONSES)
    chosen = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}
    choice, _ = read_choice(chosen, offer)
    assert (choice.kind, choice.allowed) == ("required", frozenset({"g"}))
    with pytest.raises(RequestError):
        read_choice({**chosen, "tools": [{"type": "function", "name": "h"}]}, offer)


def test_the_tools_of_each_protocol():
    function = {"name": "a", "description": "does a", "strict": True}
    (tool,) = read_tools([{"type": "function", "function": function}], CHAT).tools
    assert (tool.name, tool.description, tool.strict) == ("a", "does a", True)
    assert read_tools(None, CHAT).tools == read_tools([], MESSAGES).tools == ()
    assert read_tools([{"type": "custom", "name": "a"}], MESSAGES).tools[0].name == "a"


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ("x", "tools"),
        ([5], "tools[0]"),
        ([{"type": 5}], "tools[0].type"),
        ([{"type": "function"}], "tools[0].function"),
        ([{"type": "function", "function": {}}], "tools[0].function.name"),
        ([{"type": "function", "function": {"name": "a", "description": 5}}], "tools[0].function.description"),
        ([F, F], "tools[1].function.name"),
        ([{"function": {"name": f"f{i}"}} for i in range(129)], "tools"),
    ],
)
def test_wrong_tools(tools, param):
    with pytest.raises(RequestError) as caught:
        read_tools(tools, CHAT)
    assert caught.value.param == param


# The small ones


def test_evaluators_ask_for_the_tokenizer_and_the_version(serve):
    server = serve()
    assert set(server.get("/version").json) == {"version"}
    info = server.get("/tokenizer_info").json
    assert info["model_max_length"] == 4096 and "chat_template" in info
    counted = server.post("/tokenize", {"prompt": "ab"}).json
    assert counted == {"tokens": [256, 97, 98], "count": 3, "max_model_len": 4096}


def test_a_prompt_may_be_scored_without_an_answer(serve):
    server = serve()
    body = {"prompt": "Hello", "max_tokens": 0, "echo": True, "logprobs": 1}
    assert server.post("/v1/completions", body).status == 200
    assert server.engine.submitted[0].max_tokens == 0 and server.engine.submitted[0].top_logprobs == 1
    assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 0}).error["param"] == "max_tokens"
    assert server.post("/v1/completions", {"prompt": "x", "max_tokens": -1}).status == 200
    assert server.engine.submitted[1].max_tokens is None


def test_candidates_that_are_spelt_alike_keep_the_best_and_the_chosen_one(serve):
    def script(request, tokens, choice):
        known = (("a", -0.1), ("a", -3.0), ("b", -4.0))
        top = tuple(TokenLogprob(i, text, text.encode(), value) for i, (text, value) in enumerate(known))
        yield TextDelta("c", (TokenLogprob(9, "c", b"c", -7.0, top),))
        yield finished(tokens, 1)

    reply = serve(script).post("/v1/completions", {"prompt": "x", "logprobs": 3, "max_tokens": 1})
    assert reply.json["choices"][0]["logprobs"]["top_logprobs"] == [{"a": -0.1, "b": -4.0, "c": -7.0}]


def test_asking_for_candidates_asks_for_log_probabilities(serve):
    server = serve()
    server.post(PATHS["chat"], {"messages": HELLO, "top_logprobs": 2})
    server.post(PATHS["chat"], {"messages": HELLO, "logprobs": True})
    server.post(PATHS["chat"], {"messages": HELLO, "logprobs": False})
    assert [request.top_logprobs for request in server.engine.submitted] == [2, 0, None]
