"""Every field of the chat and completion tables: what is read, what is refused and by which name."""

from __future__ import annotations

import json

import pytest

from doubles.scripted_engine import chat, with_slots
from phobos.chat.messages import OutputFormat
from phobos.errors import RequestError
from phobos.http.protocols.openai import parse_chat
from phobos.http.protocols.output_formats import parse_output
from phobos.http.reply_headers import list_names
from phobos.settings import ServeSettings

CHAT = "/v1/chat/completions"


def parse(**fields):
    return parse_chat(chat("hi", **fields), "req_1", ServeSettings()).requests[0]


def refused(parser, body, **settings):
    with pytest.raises(RequestError) as caught:
        parser(body, "req_1", ServeSettings(**settings))
    return caught.value


BODIES = [
    (b"", "invalid_json"),
    (b"{}x", "invalid_json"),
    (b"[]", "invalid_json"),
    (b"null", "invalid_json"),
    (b'"hi"', "invalid_json"),
    (b"{", "invalid_json"),
    (b'{"temperature": NaN, "messages": []}', "invalid_json"),
    (b'{"temperature": Infinity}', "invalid_json"),
    (b'{"temperature": 1e999}', "invalid_json"),
    (b'{"model": "\xff"}', "invalid_json"),
    (b'{"model": "\\ud800"}', "invalid_json"),
    (b'{"a":' * 2000 + b"1" + b"}" * 2000, "invalid_json"),
    (b'{"messages":' + b"[" * 200 + b"]" * 200 + b"}", "invalid_json"),
    (b"{}", "invalid_value"),
]


@pytest.mark.parametrize(("body", "code"), BODIES)
def test_bad_json_is_400_and_the_server_lives(serve, body, code):
    server = serve()
    reply = server.post(CHAT, body)
    assert reply.status == 400 and reply.error["code"] == code and reply.error["message"]
    assert b"Traceback" not in reply.body
    assert server.post(CHAT, chat()).status == 200


def test_a_byte_order_mark_is_accepted(serve):
    assert serve().post(CHAT, b"\xef\xbb\xbf" + json.dumps(chat()).encode()).status == 200


WRONG = [
    ("temperature", "hot"),
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("temperature", True),
    ("top_k", 1.5),
    ("top_k", -2),
    ("top_p", 1.01),
    ("min_p", -1),
    ("typical_p", 2),
    ("presence_penalty", 3),
    ("frequency_penalty", -3),
    ("repetition_penalty", 0),
    ("seed", -2),
    ("seed", "1"),
    ("max_tokens", 0),
    ("max_tokens", -2),
    ("max_tokens", -5),
    ("max_tokens", 1.5),
    ("max_tokens", "10"),
    ("max_completion_tokens", 0),
    ("n", 0),
    ("n", 1.5),
    ("stop", 5),
    ("stop", [1]),
    ("stop", ["x"] * 17),
    ("stop", [""]),
    ("stream", "false"),
    ("stream", 1),
    ("stream_options", []),
    ("stream_options", {"include_usage": "yes"}),
    ("logit_bias", "x"),
    ("logit_bias", {"x": 1}),
    ("logit_bias", {"5": 101}),
    ("logit_bias", {"5": "a"}),
    ("cache_slot", -1),
    ("cache_prompt", "no"),
    ("model", 5),
    ("logprobs", 3),
    ("top_logprobs", 33),
    ("top_logprobs", -1),
    ("top_logprobs", "2"),
    ("tools", {}),
    ("tools", [1]),
    ("response_format", "json"),
    ("reasoning_effort", "extreme"),
    ("enable_thinking", "yes"),
    ("thinking_budget", -1),
    ("chat_template_kwargs", []),
    ("modalities", "text"),
    ("modalities", ["text", "audio"]),
    ("audio", {"voice": "x"}),
    ("prediction", {"type": "content"}),
    ("functions", []),
    ("function_call", "auto"),
    ("echo", True),
    ("echo", "yes"),
    ("strict_tool_calls", 1),
    ("parallel_tool_calls", "no"),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_wrong_value_names_its_field(name, value):
    error = refused(parse_chat, chat("hi", **{name: value}))
    assert error.status == 400
    assert error.param is not None and error.param.split(".")[0].split("[")[0] == name
    assert name in str(error)
    assert error.code in ("invalid_value", "unsupported_value", "unsupported_parameter")


WRONG_MESSAGES = [
    ({}, "messages"),
    ("hi", "messages"),
    ([], "messages"),
    (["hi"], "messages[0]"),
    ([None], "messages[0]"),
    ([{"content": "x"}], "messages[0].role"),
    ([{"role": "robot", "content": "x"}], "messages[0].role"),
    ([{"role": 5, "content": "x"}], "messages[0].role"),
    ([{"role": "user"}], "messages[0].content"),
    ([{"role": "user", "content": None}], "messages[0].content"),
    ([{"role": "user", "content": 5}], "messages[0].content"),
    ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
    ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
    ([{"role": "user", "content": "x", "name": 5}], "messages[0].name"),
    (
        [{"role": "user", "content": "x", "tool_calls": [{"id": "a", "function": {"name": "f"}}]}],
        "messages[0].tool_calls",
    ),
]


@pytest.mark.parametrize(("messages", "param"), WRONG_MESSAGES)
def test_a_wrong_message_is_named_by_its_place(messages, param):
    error = refused(parse_chat, {"messages": messages})
    assert error.code == "invalid_message" and error.param == param


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "x" * 1000, None])
def test_content_that_is_no_text_is_refused(serve, kind):
    body = {"messages": [{"role": "user", "content": [{"type": kind, "image_url": {"url": "data:"}}]}]}
    reply = serve().post(CHAT, body)
    assert reply.status == 400 and reply.error["code"] == "unsupported_content"
    assert reply.error["param"] == "messages[0].content[0].type" and len(reply.error["message"]) < 700


CALL = {"id": "c1", "type": "function", "function": {"name": "get-weather", "arguments": '{"n": 9007199254740993}'}}


def conversation(*turns):
    return {"messages": [{"role": "user", "content": "go"}, *turns]}


def test_a_tool_round_trip_keeps_every_digit():
    body = conversation(
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    )
    messages = parse_chat(body, "r", ServeSettings()).requests[0].messages
    assert messages[1].content is None and messages[1].tool_calls[0].arguments == '{"n": 9007199254740993}'
    assert messages[2].tool_call_id == "c1"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [({"city": "München"}, '{"city":"München"}'), ("", "{}"), (None, "{}"), ('{"a":1}', '{"a":1}')],
)
def test_arguments_come_as_text_or_object(arguments, text):
    call = {"id": "c1", "function": {"name": "f", "arguments": arguments}}
    body = conversation({"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c1"})
    messages = parse_chat(body, "r", ServeSettings()).requests[0].messages
    assert messages[1].tool_calls[0].arguments == text and messages[2].content == ""


@pytest.mark.parametrize("arguments", [[1], 5, True])
def test_arguments_that_are_neither_text_nor_object_are_refused(arguments):
    call = {"id": "c1", "function": {"name": "f", "arguments": arguments}}
    error = refused(parse_chat, conversation({"role": "assistant", "tool_calls": [call]}))
    assert error.code == "invalid_tool_call" and error.param == "messages[1].tool_calls[0].function.arguments"


@pytest.mark.parametrize(
    "turns",
    [
        [{"role": "tool", "tool_call_id": "c1", "content": "early"}],
        [{"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "other", "content": "x"}],
        [{"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "x"}],
        [{"role": "assistant", "tool_calls": [CALL]}] + [{"role": "tool", "tool_call_id": "c1", "content": "x"}] * 2,
    ],
)
def test_a_tool_result_answers_one_open_call(turns):
    assert refused(parse_chat, conversation(*turns)).code == "invalid_tool_result"


def test_a_bad_tool_name_is_quoted_back_and_bounded():
    for name in ("no spaces", "é" * 1000, ""):
        tools = [{"type": "function", "function": {"name": name}}]
        error = refused(parse_chat, chat("x", tools=tools))
        assert error.code == "invalid_tool_name" and len(str(error)) < 300
    assert parse(tools=[{"type": "function", "function": {"name": "with-hyphen"}}]).tools[0].name == "with-hyphen"


def test_text_parts_are_joined_and_developer_reads_as_system():
    body = {
        "messages": [
            {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]},
            {"role": "system", "content": "and kind"},
            {"role": "user", "content": "hi"},
        ]
    }
    messages = parse_chat(body, "r", ServeSettings()).requests[0].messages
    assert [(m.role, m.content) for m in messages] == [("system", "be brief"), ("system", "and kind"), ("user", "hi")]


def test_nulls_are_absent():
    names = [name for name, _ in WRONG if name != "messages"]
    request = parse(**dict.fromkeys(names))
    assert request == parse()


def test_what_is_read_arrives():
    request = parse(
        temperature=0,
        top_k=-1,
        seed=7,
        max_tokens=5,
        max_completion_tokens=9,
        stop="END",
        logit_bias={"5": -100},
        cache_slot=0,
        cache_prompt=False,
        logprobs=True,
        ignore_leading_stop=True,
    )
    assert request.sampling.temperature == 0.0 and request.sampling.top_k == -1 and request.sampling.seed == 7
    assert request.sampling.logit_bias == {5: -100.0}
    assert request.max_tokens == 9 and request.stop == ("END",) and request.ignore_leading_stop
    assert request.cache_slot == 0 and not request.cache_prompt and request.top_logprobs == 0
    assert parse(max_tokens=100_000_000).max_tokens == 100_000_000
    assert parse(top_logprobs=5).top_logprobs == 5
    assert parse(logprobs=True, top_logprobs=32).top_logprobs == 32


def test_a_whole_number_may_be_written_with_a_point_or_an_exponent(serve):
    server = serve()
    for number in (b"1e8", b"100000000.0"):
        body = b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": ' + number + b"}"
        assert server.post(CHAT, body).status == 200
        assert server.engine.submitted[-1].max_tokens == 100_000_000
    assert server.post(CHAT, body.replace(number, b"1.5")).error["param"] == "max_tokens"


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, False),
        ({"reasoning_effort": "low"}, True),
        ({"reasoning_effort": "minimal"}, True),
        ({"reasoning_effort": "none"}, False),
        ({"enable_thinking": True}, True),
        ({"enable_thinking": False, "reasoning_effort": "high"}, False),
        ({"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "none"}, True),
    ],
)
def test_when_reasoning_is_on(fields, thinking):
    request = parse(**fields)
    assert request.thinking is thinking and "enable_thinking" not in request.template_kwargs


def test_the_template_s_own_names_cannot_be_set():
    error = refused(parse_chat, chat(chat_template_kwargs={"messages": []}))
    assert error.param == "chat_template_kwargs.messages"
    assert parse(chat_template_kwargs={"custom": 1}).template_kwargs == {"custom": 1}


SCHEMA = {"type": "object"}


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"type": "text"}, "text"),
        ({"type": "json_object"}, "json_object"),
        ({"type": "json_object", "schema": SCHEMA}, "json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}, "json_schema"),
        ({"type": "regex", "regex": "a+"}, "regex"),
        ({"type": "regex", "pattern": "a+"}, "regex"),
        ({"type": "grammar", "grammar": 'start: "a"'}, "grammar"),
    ],
)
def test_output_formats(value, kind):
    assert parse_output(value).kind == kind


@pytest.mark.parametrize(
    ("value", "param", "code"),
    [
        ([], "response_format", "invalid_value"),
        ("json_object", "response_format", "invalid_value"),
        ({}, "response_format.type", "invalid_value"),
        ({"type": "yaml"}, "response_format.type", "unsupported_value"),
        ({"type": 5}, "response_format.type", "invalid_value"),
        ({"type": "json_schema"}, "response_format.json_schema", "invalid_value"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, "response_format.json_schema.schema", "invalid_value"),
        ({"type": "json_object", "schema": 5}, "response_format.schema", "invalid_value"),
        ({"type": "regex"}, "response_format.regex", "invalid_value"),
        ({"type": "grammar", "grammar": 5}, "response_format.grammar", "invalid_value"),
    ],
)
def test_wrong_output_formats(value, param, code):
    with pytest.raises(RequestError) as caught:
        parse_output(value)
    assert (caught.value.param, caught.value.code) == (param, code)


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize(
    ("choice", "kind"),
    [
        (None, "auto"),
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "function": {"name": "f"}}, "function"),
    ],
)
def test_tool_choices(choice, kind):
    assert parse(tools=TOOLS, tool_choice=choice).tool_choice.kind == kind


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        (TOOLS, "maybe"),
        (TOOLS, 5),
        (TOOLS, {"type": "function"}),
        (TOOLS, {"type": "function", "function": {"name": "g"}}),
        ([], {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_wrong_tool_choices(tools, choice):
    assert refused(parse_chat, chat("x", tools=tools, tool_choice=choice)).param == "tool_choice"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": TOOLS}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"enable_thinking": True}, "enable_thinking"),
        ({"n": 2}, "n"),
        ({"logit_bias": {"100000": 1}}, "logit_bias"),
        ({"cache_slot": 1}, "cache_slot"),
    ],
)
def test_what_the_model_cannot_do_is_named(serve, fields, param):
    model = with_slots(1, supports_tools=False, supports_grammar=False, supports_thinking=False)
    server = serve(model=model)
    for stream in (False, True):
        reply = server.post(CHAT, chat("x", stream=stream, **fields))
        assert reply.status == 400 and reply.error["param"] == param
    assert not server.engine.submitted
    plain = chat("x", tools=TOOLS, tool_choice="none", reasoning_effort="none", response_format={"type": "text"})
    assert server.post(CHAT, plain).status == 200


def test_the_last_assistant_message_is_continued():
    def ends_with(text, **fields):
        turns = [{"role": "user", "content": "count"}, {"role": "assistant", "content": text}]
        return {"messages": turns, **fields}

    def continues(body, **settings):
        return parse_chat(body, "r", ServeSettings(**settings)).requests[0].continue_assistant

    assert continues(ends_with("one, two"))
    assert not continues(ends_with("one, two"), continue_assistant=False)
    assert not continues(ends_with("one, two ", tools=TOOLS), continue_assistant=False)
    assert not continues(ends_with(""))
    for fields in ({"add_generation_prompt": True}, {"continue_final_message": False}):
        assert not continues(ends_with("one", **fields))
    for fields in ({"add_generation_prompt": False}, {"continue_final_message": True}):
        assert continues(ends_with("one", **fields), continue_assistant=False)
        assert refused(parse_chat, conversation() | fields).param == next(iter(fields))
    both = ends_with("one", add_generation_prompt=True, continue_final_message=True)
    assert refused(parse_chat, both).param == "add_generation_prompt"
    for body in (ends_with("one "), ends_with("one\n"), ends_with("one", tools=TOOLS)):
        assert refused(parse_chat, body).code == "invalid_message"
    unanswered = conversation({"role": "assistant", "content": "wait", "tool_calls": [CALL]})
    assert refused(parse_chat, unanswered).code == "invalid_message"


def test_llama_servers_words_for_formats_and_slots():
    def request(**fields):
        return parse_chat(chat("x", **fields), "r", ServeSettings()).requests[0]

    assert request(grammar='root ::= "a"').output == OutputFormat("grammar", pattern='root ::= "a"')
    assert request(json_schema={"const": 1}).output == OutputFormat("json_schema", schema={"const": 1})
    assert request(id_slot=2).cache_slot == 2 and request(id_slot=-1).cache_slot is None
    twice = chat("x", grammar='root ::= "a"', response_format={"type": "json_object"})
    assert refused(parse_chat, twice).param == "grammar"
    assert refused(parse_chat, chat("x", json_schema="x")).param == "json_schema"


def test_the_tokens_of_a_chat_are_counted(serve):
    server = serve(model=with_slots(1, n_ctx=50))
    for text, count in (("hello", 11), ("x" * 100, 106)):
        reply = server.post(CHAT + "/input_tokens", chat(text))
        assert reply.json == {"object": "response.input_tokens", "input_tokens": count}
    assert server.post(CHAT + "/input_tokens", {"messages": []}).status == 400


def test_unknown_fields_are_ignored_and_listed(serve):
    server = serve()
    reply = server.post(CHAT, chat(zeta=1, alpha=2, user="me", store=True, gone=None))
    assert reply.status == 200 and reply.headers["x-phobos-ignored-fields"] == "alpha, zeta"
    assert "x-phobos-ignored-fields" not in server.post(CHAT, chat(user="me")).headers
    streamed = server.post(CHAT, chat(zeta=1, stream=True))
    assert streamed.headers["x-phobos-ignored-fields"] == "zeta"


def test_the_list_of_ignored_fields_is_bounded_and_safe():
    names = tuple(f"f{i}" for i in range(20))
    assert list_names(names).count(",") == 7
    assert list_names(("a\r\nb", "ü" * 200)) == "a??b, " + "?" * 64


def test_strict_fields_name_the_first_unknown_even_beside_a_mistyped_one():
    body = chat(zeta=1, alpha=2, temperature="hot", user="me")
    error = refused(parse_chat, body, strict_fields=True)
    assert (error.code, error.param) == ("unknown_parameter", "alpha")
    many = refused(parse_chat, chat(**{f"x{i:03}" + "y" * 500: 1 for i in range(50)}), strict_fields=True)
    assert len(str(many)) < 800 and "42 more" in str(many)
    assert parse_chat(chat(gone=None), "r", ServeSettings(strict_fields=True))


def test_error_text_is_bounded_also_with_combining_marks(serve):
    server = serve(strict_fields=True)
    reply = server.post(CHAT, chat(**{"e" + "\u0301" * 5000: 1}))
    assert reply.status == 400 and len(reply.body) < 1500
    assert reply.error["code"] == "unknown_parameter"


def test_a_prompt_that_does_not_fit_is_refused_before_any_event(serve):
    server = serve(model=with_slots(1, n_ctx=20))
    for stream in (False, True):
        reply = server.post(CHAT, chat("x" * 100, stream=stream))
        assert reply.status == 400 and reply.headers["content-type"] == "application/json"
        error = reply.error
        assert error["type"] == "exceed_context_size_error" and error["code"] == "context_length_exceeded"
        assert error["n_ctx"] == 20 and error["n_prompt_tokens"] == 106
    assert not server.engine.submitted


def test_a_template_that_refuses_is_400_in_its_own_words(serve):
    reply = serve().post(CHAT, chat("refuse this", stream=True))
    assert reply.status == 400 and "roles must alternate" in reply.error["message"]


def test_a_bad_tool_schema_on_a_stream_is_400_without_an_event(serve):
    tools = [{"type": "function", "function": {"name": "f", "parameters": 5}}]
    reply = serve().post(CHAT, chat(tools=tools, stream=True))
    assert reply.status == 400 and reply.error["code"] == "invalid_tool_schema" and b"data:" not in reply.body


def test_strict_model(serve):
    server = serve(strict_model=True, model_id="phobos-1")
    for name, status in (("other", 404), ("phobos-1", 200), (None, 200)):
        reply = server.post(CHAT, chat(model=name))
        assert reply.status == status
    assert server.post(CHAT, chat(model="other")).error["code"] == "model_not_found"
    assert server.post(CHAT, chat()).json["model"] == "phobos-1"
