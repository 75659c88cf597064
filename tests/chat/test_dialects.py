"""Every dialect's calls, thoughts and text: whole, in cuts of every size, and with text behind them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from derived_templates import SOURCES, derived
from phobos.chat.dialects import DIALECTS, choose_dialect, knows_reasoning
from phobos.chat.dialects.families.plain import PLAIN
from phobos.chat.dialects.scanner import Scanner
from phobos.chat.messages import ToolSpec
from reading import Answer, cut_every, fold, read

WEATHER = ToolSpec(
    "get_weather",
    "The weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "count": {"type": "integer"},
            "flag": {"type": "boolean"},
            "list": {"type": "array", "items": {"type": "integer"}},
            "rate": {"type": "number"},
            "note": {"type": "string", "nullable": True},
            "more": {"type": "object", "properties": {}},
        },
    },
)
PING = ToolSpec("ping", "Nothing", {"type": "object", "properties": {}})
TOOLS = (WEATHER, PING)
# Learnt from templates in the manner of known dialects, and held to the same texts.
DERIVED = {f"derived {name}": derived(name) for name in SOURCES}
BY_NAME = {dialect.name: dialect for dialect in (*DIALECTS, PLAIN)} | DERIVED

# Two calls as each dialect writes them, the second without arguments. VALUES and TEXT stand for those of the first.
TWO_CALLS = {
    "hermes": '<tool_call>\n{"name": "get_weather", "arguments": VALUES}\n</tool_call>\n'
    '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>',
    "plain": '<tool_call>\n{"name": "get_weather", "arguments": VALUES}\n</tool_call>\n'
    '<tool_call>{"name": "ping"}</tool_call>',
    "qwen-xml": "<tool_call>\n<function=get_weather>\n<parameter=city>\nTEXT\n</parameter>\n<parameter=count>\n3\n"
    "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=ping>\n</function>\n</tool_call>",
    "seed-oss": "<seed:tool_call>\n<function=get_weather>\n<parameter=city>TEXT</parameter>\n<parameter=count>3"
    "</parameter>\n</function>\n</seed:tool_call>\n<seed:tool_call>\n<function=ping>\n</function>\n</seed:tool_call>",
    "minicpm": '<function name="get_weather"><param name="city">Münster &quot;A"</param><param name="count">3</param>'
    '</function>\n<function name="ping"></function>',
    "glm": "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>TEXT</arg_value>\n<arg_key>count</arg_key>\n"
    "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>ping\n</tool_call>",
    "glm-run": "<tool_call>get_weather<arg_key>city</arg_key><arg_value>TEXT</arg_value><arg_key>count</arg_key>"
    "<arg_value>3</arg_value></tool_call><tool_call>ping</tool_call>",
    "mistral": '[TOOL_CALLS][{"name": "get_weather", "arguments": VALUES, '
    '"id": "abcdefghi"}, {"name": "ping", "arguments": {}, "id": "123456789"}]',
    "mistral-args": "[TOOL_CALLS]get_weather[ARGS]VALUES[TOOL_CALLS]ping[ARGS]{}",
    "mistral-ids": "[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]VALUES[TOOL_CALLS]ping[CALL_ID]123456789[ARGS]{}",
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>VALUES"
    "<｜tool▁call▁end｜><｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek-r1": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
    "VALUES\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n"
    "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek-tags": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" '
    'string="true">TEXT</｜DSML｜parameter>\n<｜DSML｜parameter name="count" string="false">3</｜DSML｜parameter>\n'
    '</｜DSML｜invoke>\n<｜DSML｜invoke name="ping">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
    "deepseek-v4": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" '
    'string="true">TEXT</｜DSML｜parameter>\n<｜DSML｜parameter name="count" string="false">3</｜DSML｜parameter>\n'
    '</｜DSML｜invoke>\n<｜DSML｜invoke name="ping">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
    "kimi-k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
    "VALUES<|tool_call_end|><|tool_call_begin|>functions.ping:1"
    "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    "gemma": '<|tool_call>call:get_weather{city:<|"|>TEXT<|"|>,count:3}<tool_call|><|tool_call>call:ping{}<tool_call|>',
    "cohere": '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": '
    'VALUES},\n    {"tool_call_id": "1", "tool_name": "ping", "parameters": {}}\n]'
    "<|END_ACTION|>",
    "apriel": '<tool_calls>[{"name": "get_weather", "arguments": VALUES, "id": "1"}, '
    '{"name": "ping", "arguments": {}, "id": "2"}]</tool_calls>',
    "nemotron": '<TOOLCALL>[{"name": "get_weather", "arguments": VALUES}, {"name": "ping", "arguments": {}}]'
    "</TOOLCALL>",
    "minimax-m1": '<tool_calls>\n{"name": "get_weather", "arguments": VALUES}\n'
    '{"name": "ping", "arguments": {}}\n</tool_calls>',
    "firefunction": 'functools[{"name": "get_weather", "arguments": VALUES}, {"name": "ping", "arguments": {}}]',
    "functionary-3.1": "<function=get_weather>VALUES</function><function=ping>{}</function>",
    "gigachat": '<|function_call|>{"name": "get_weather", "arguments": VALUES}'
    '<|function_call|>{"name": "ping", "arguments": {}}',
    "minimax-m3": 'N<tool_call>\nN<invoke name="get_weather">N<city>TEXTN</city>N<count>3N</count>N</invoke>\n'
    'N<invoke name="ping">N</invoke>\nN</tool_call>'.replace("N<", "]<]minimax[>[<"),
    "functionary-3.2": ">>>get_weather\nVALUES>>>ping\n{}",
    "kimi-k3": '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" '
    'type="string"<|sep|>TEXT<|close|>argument<|sep|><|open|>argument key="count" type="number"<|sep|>3<|close|>'
    'argument<|sep|><|close|>call<|sep|><|open|>call tool="ping" index="2"<|sep|><|close|>call<|sep|><|close|>tools'
    "<|sep|>",
    "granite": '<|tool_call|>[{"name": "get_weather", "arguments": VALUES}, {"name": "ping", "arguments": {}}]',
    "command-r": 'Action:\n```json\n[\n    {\n        "tool_name": "get_weather",\n        "parameters": VALUES\n    },'
    '\n    {\n        "tool_name": "ping",\n        "parameters": {}\n    }\n]```',
    "lfm": "<|tool_call_start|>[get_weather(city='TEXT', count=3), ping()]<|tool_call_end|>",
}
TWO_CALLS["cohere-text"] = TWO_CALLS["cohere"]
ARGS = '{"city": "Münster \\"A\\"", "count": 3}'
TWO_CALLS = {name: text.replace("VALUES", ARGS).replace("TEXT", 'Münster "A"') for name, text in TWO_CALLS.items()}
TWO_CALLS |= {name: TWO_CALLS[name.removeprefix("derived ")] for name in DERIVED}
CALLS = (("get_weather", ARGS), ("ping", "{}"))
# These write one call only.
ONE_CALL = {
    "muse-glimmer": " to=self<|message|>hm<|eom|><|start|>assistant to=get_weather<|message|><atem:function_calls>\n"
    '<atem:invoke name="get_weather">\n<atem:parameter name="city">Münster "A"</atem:parameter>\n'
    '<atem:parameter name="count">3</atem:parameter>\n</atem:invoke>\n</atem:function_calls>',
    "llama3": '{"name": "get_weather", "parameters": VALUES}',
    "harmony": "<|channel|>analysis<|message|>hm<|end|><|start|>assistant to=functions.get_weather<|channel|>"
    "commentary json<|message|>VALUES",
}
ONE_CALL = {name: text.replace("VALUES", ARGS) for name, text in ONE_CALL.items()}


def check(dialect: str, text: str, wanted: Answer, *, in_reasoning: bool = False, tools: Any = TOOLS) -> None:
    """Whole, in cuts of every size up to 9 and in words, always the same."""
    form = BY_NAME[dialect]
    assert read(form, tools, [text], in_reasoning=in_reasoning) == wanted
    for n_chars in range(1, 10):
        assert read(form, tools, cut_every(text, n_chars), in_reasoning=in_reasoning) == wanted, n_chars
    assert read(form, tools, re.findall(r"\s*\w+|\s+|\W", text), in_reasoning=in_reasoning) == wanted


def test_every_dialect_has_a_case() -> None:
    assert set(TWO_CALLS) | set(ONE_CALL) == set(BY_NAME)


@pytest.mark.parametrize("dialect", TWO_CALLS)
def test_two_calls(dialect: str) -> None:
    check(dialect, TWO_CALLS[dialect], Answer(calls=CALLS, order=("call 0", "call 1")))


@pytest.mark.parametrize("dialect", list(TWO_CALLS))
def test_calls_behind_text(dialect: str) -> None:
    wanted = Answer("Let me look.", calls=CALLS, order=("content", "call 0", "call 1"))
    check(dialect, "Let me look.\n\n" + TWO_CALLS[dialect] + "\n", wanted)


@pytest.mark.parametrize("dialect", ONE_CALL)
def test_one_call(dialect: str) -> None:
    answer = read(BY_NAME[dialect], TOOLS, [ONE_CALL[dialect]])
    assert answer.calls == CALLS[:1] and answer.content == ""
    check(dialect, ONE_CALL[dialect], answer)


@pytest.mark.parametrize("dialect", TWO_CALLS)
def test_a_call_of_a_tool_that_was_not_offered_stays_text(dialect: str) -> None:
    text = TWO_CALLS[dialect].replace("get_weather", "get_time").replace("ping", "pong")
    answer = read(BY_NAME[dialect], TOOLS, cut_every(text, 3))
    assert not answer.calls
    dropped = "".join(BY_NAME[dialect].dropped)
    assert answer.content == text or dropped


@pytest.mark.parametrize("dialect", TWO_CALLS)
def test_without_tools_all_is_text(dialect: str) -> None:
    answer = read(BY_NAME[dialect], (), cut_every(TWO_CALLS[dialect], 2))
    assert answer == Answer(TWO_CALLS[dialect], order=("content",))


@pytest.mark.parametrize("dialect", sorted({*TWO_CALLS, *ONE_CALL}))
def test_cut_off_anywhere(dialect: str) -> None:
    """A cut never invents or loses a character, and never makes a second call of the first."""
    text = (TWO_CALLS | ONE_CALL)[dialect]
    for n_chars in range(len(text)):
        answer = read(BY_NAME[dialect], TOOLS, [text[:n_chars]])
        assert len(answer.calls) <= 2
        for (name, arguments), (wanted_name, wanted) in zip(answer.calls, CALLS, strict=False):
            assert name == wanted_name
            assert wanted.startswith(arguments) or arguments.startswith("{")


XML = {
    "seed-oss": (
        "<seed:tool_call>\n<function=get_weather>\n",
        "<parameter={}>{}</parameter>\n",
        "</function>\n</seed:tool_call>",
    ),
    "qwen-xml": (
        "<tool_call>\n<function=get_weather>\n",
        "<parameter={}>\n{}\n</parameter>\n",
        "</function>\n</tool_call>",
    ),
    "minicpm": ('<function name="get_weather">', '<param name="{}">{}</param>', "</function>"),
    "glm": ("<tool_call>get_weather\n", "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n", "</tool_call>"),
    "glm-run": ("<tool_call>get_weather", "<arg_key>{}</arg_key><arg_value>{}</arg_value>", "</tool_call>"),
}
XML |= {name: XML[known] for name in DERIVED if (known := name.removeprefix("derived ")) in XML}


@pytest.mark.parametrize("dialect", XML)
def test_types_come_from_the_schema(dialect: str) -> None:
    begin, argument, end = XML[dialect]
    values = {
        "count": "3",
        "flag": "true",
        "city": "007",
        "list": "[1,2]",
        "rate": "1e5",
        "note": "null",
        "more": '{"a": 12345678901234567890}',
    }
    text = begin + "".join(argument.format(*item) for item in values.items()) + end
    wanted = (
        '{"count": 3, "flag": true, "city": "007", "list": [1,2], "rate": 1e5, "note": null, '
        '"more": {"a": 12345678901234567890}}'
    )
    check(dialect, text, Answer(calls=(("get_weather", wanted),), order=("call 0",)))


@pytest.mark.parametrize("dialect", XML)
@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("count", "three", '"three"'),
        ("count", "3.5", '"3.5"'),
        ("count", "123456789012345678901234567890", "123456789012345678901234567890"),
        ("flag", "True", "true"),
        ("flag", "yes", '"yes"'),
        ("list", "[1,", '"[1,"'),
        ("list", '{"a": 1}', '"{\\"a\\": 1}"'),
        ("rate", "nan", '"nan"'),
        ("note", "None", "null"),
        ("note", "none", '"none"'),
        ("other", "7", "7"),
        ("other", "seven", '"seven"'),
        ("city", "", '""'),
    ],
)
def test_a_value_that_does_not_fit_its_type_stays_a_string(dialect: str, key: str, value: str, wanted: str) -> None:
    begin, argument, end = XML[dialect]
    text = begin + argument.format(key, value) + end
    check(dialect, text, Answer(calls=(("get_weather", f'{{"{key}": {wanted}}}'),), order=("call 0",)))


@pytest.mark.parametrize(
    ("dialect", "value", "wanted"),
    [
        ("qwen-xml", "\n two\n\nlines \n", "\\n two\\n\\nlines \\n"),
        ("qwen-xml", "a < b && </par", "a < b && </par"),
        ("glm", "\n two\n\nlines \n", "\\n two\\n\\nlines \\n"),
        ("minicpm", "<![CDATA[a < b & c\n]]]]>", "a < b & c\\n]]"),
        ("minicpm", "a &lt; b &amp;&amp; &amp;lt; &unknown; &", "a < b && &lt; &unknown; &"),
        ("minicpm", "<![CDATA[&lt;]]>", "&lt;"),
    ],
)
def test_text_of_tags_is_what_was_meant(dialect: str, value: str, wanted: str) -> None:
    begin, argument, end = XML[dialect]
    text = begin + argument.format("city", value) + end
    check(dialect, text, Answer(calls=(("get_weather", f'{{"city": "{wanted}"}}'),), order=("call 0",)))


HERMES = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize(
    "text",
    [
        "the tag <tool_call> opens a call",
        '<tool_call>{"name": "ping", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "ping", "arguments": {oops}}</tool_call>',
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        "<tool_call>\n</tool_call>",
        '{"name": "ping", "arguments": {}}',
        "<tool_cal",
        "<tool_call>" + " " * 5000 + '{"name": "ping", "arguments": {}}</tool_call>',
        "a < b and <tool or <tool_callx>",
    ],
)
def test_text_that_looks_like_a_call_stays_text(text: str) -> None:
    check("hermes", text, Answer(text, order=("content",)))


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('<tool_call>{"arguments": {"city": "Bonn"}, "name": "get_weather"}</tool_call>', '{"city": "Bonn"}'),
        ('<tool_call>{"id": [1, {"x": 2}], "name": "get_weather", "arguments": {"count":1}}', '{"count":1}'),
        ('<tool_call>{"name": "get_weather", "arguments": "{\\"count\\": 1}"}</tool_call>', '{"count": 1}'),
        ('<tool_call>{"name": "get_weather", "arguments": null}</tool_call>', "{}"),
        ('<tool_call>{"name": "get_weather"}</tool_call>', "{}"),
        ('<tool_call> \n {"name" : "get_weather" , "parameters": { } } \n </tool_call>', "{ }"),
        (
            '<tool_call>{"name": "get_weather", "arguments": {"count": 123456789012345678901234567890}}</tool_call>',
            '{"count": 123456789012345678901234567890}',
        ),
    ],
)
def test_calls_that_are_written_otherwise(text: str, arguments: str) -> None:
    check("hermes", text, Answer(calls=(("get_weather", arguments),), order=("call 0",)))


def test_text_between_and_behind_calls_is_content() -> None:
    text = f"First.\n{HERMES}\nThen.\n{HERMES} Done.\n"
    wanted = Answer("First.\nThen. Done.\n", calls=(("ping", "{}"),) * 2)
    answer = read(BY_NAME["hermes"], TOOLS, [text])
    assert (answer.content, answer.calls) == (wanted.content, wanted.calls)
    assert answer.order == ("content", "call 0", "content", "call 1", "content")
    check("hermes", text, answer)


def test_a_call_that_goes_wrong_keeps_what_was_certain() -> None:
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": "Bonn" oops}}</tool_call>'
    answer = read(BY_NAME["hermes"], TOOLS, [text])
    assert answer.calls == (("get_weather", '{"city": "Bonn" '),)
    assert answer.content == "oops}}</tool_call>"
    check("hermes", text, answer)


def test_the_choice_of_a_dialect() -> None:
    assert choose_dialect(None) is PLAIN
    assert choose_dialect("{{ messages }}") is PLAIN
    assert choose_dialect("<tool_call>").name == "hermes"
    assert choose_dialect("<tool_call>", knows_tools=False).calls is PLAIN.calls
    assert choose_dialect("<tool_call>\n<function=x>\n<parameter=y>").name == "qwen-xml"
    mistral = choose_dialect("[TOOL_CALLS] [THINK]", knows_tools=False)
    assert mistral.name == "plain" and mistral.reasoning.begin == "[THINK]"
    assert knows_reasoning(mistral, "[TOOL_CALLS] [THINK]") and not knows_reasoning(PLAIN, "{{ messages }}")


PARTS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", '{"name": "ping", "arguments": {}}', '{"name": "get_weather", "arguments": '),
        *(
            '{"city": "é\\n"}',
            "}",
            "<think>",
            "</think>",
            "`</think>`",
            "\n",
            " ",
            "a",
            "<",
            "<t",
            '"',
            "🙂",
            "&",
            "&lt;",
        ),
        *("<function=ping>", "<parameter=city>", "</parameter>", "</function>", "<arg_key>city</arg_key>", "ping"),
        *(
            "<arg_value>",
            "</arg_value>",
            '<function name="ping">',
            '<param name="city">',
            "</param>",
            "<![CDATA[",
            "]]>",
        ),
        *("[TOOL_CALLS]", "[ARGS]", "ping", "{}", "[", "]", ",", "<|channel|>", "<|message|>", "<|start|>", "<|end|>"),
        *("to=functions.ping", "analysis", "final", '<|"|>', "<|tool_call>call:ping{", "<tool_call|>", "functools["),
    ]
)


@settings(max_examples=300, deadline=None)
@given(
    parts=st.lists(PARTS | st.text(max_size=3), max_size=14),
    name=st.sampled_from(sorted(BY_NAME)),
    cuts=st.lists(st.integers(1, 7), min_size=1, max_size=8),
    in_reasoning=st.booleans(),
)
def test_any_text_cut_anywhere_gives_the_same(parts: list[str], name: str, cuts: list[int], in_reasoning: bool) -> None:
    text = "".join(parts)
    whole = read(BY_NAME[name], TOOLS, [text], in_reasoning=in_reasoning)
    pieces, at, i = [], 0, 0
    while at < len(text):
        pieces.append(text[at : at + cuts[i % len(cuts)]])
        at += cuts[i % len(cuts)]
        i += 1
    assert read(BY_NAME[name], TOOLS, pieces, in_reasoning=in_reasoning) == whole
    assert read(BY_NAME[name], TOOLS, list(text), in_reasoning=in_reasoning) == whole


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("<list>N<item>1N</item>N<item>2N</item>N</list>", '{"list": [1, 2]}'),
        ("<list>N</list>", '{"list": []}'),
        ("<more>N<a>xN</a>N<b>N<c>trueN</c>N</b>N</more>", '{"more": {"a": "x", "b": {"c": true}}}'),
        ("<more>N</more>", '{"more": {}}'),
        ("<other>N<item>7N</item>N<item>N<k>vN</k>N</item>N</other>", '{"other": [7, {"k": "v"}]}'),
        ("<other>N</other>", '{"other": ""}'),
        ("<city> a <b> & ]<]mini \nN</city>", '{"city": " a <b> & ]<]mini \\n"}'),
        ("<count>threeN</count>N<flag>trueN</flag>", '{"count": "three", "flag": true}'),
        ("<city>N<item>1N</item>N</city>", '{"city": "]<]minimax[>[<item>1]<]minimax[>[</item>"}'),
    ],
)
def test_nested_tags(written: str, arguments: str) -> None:
    call = f'N<tool_call>\nN<invoke name="get_weather">N{written}N</invoke>\nN</tool_call>'.replace(
        "N<", "]<]minimax[>[<"
    )
    check("minimax-m3", call, Answer(calls=(("get_weather", arguments),), order=("call 0",)))


MUSE_PING = 'to=ping<|message|><atem:function_calls>\n<atem:invoke name="ping">\n</atem:invoke>\n</atem:function_calls>'


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (" to=user<|message|>Hi <|eom", Answer("Hi <|eom", order=("content",))),
        ("<|message|>Hi", Answer("Hi", order=("content",))),
        (
            f" to=self<|message|> a\n<|eom|><|start|>assistant {MUSE_PING}<|eom|><|start|>assistant {MUSE_PING}",
            Answer("", "a", (("ping", "{}"),) * 2, ("reasoning", "call 0", "call 1")),
        ),
        (
            f" to=user<|message|>Wait.<|eom|><|start|>assistant {MUSE_PING}",
            Answer("Wait.", calls=(("ping", "{}"),), order=("content", "call 0")),
        ),
        (" to=self<|message|>never closed", Answer(reasoning="never closed", order=("reasoning",))),
        ("plain words", Answer("plain words", order=("content",))),
    ],
)
def test_messages_by_recipient(text: str, wanted: Answer) -> None:
    check("muse-glimmer", text, wanted)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("all\nHi >>> there", Answer("Hi >>> there", order=("content",))),
        ("all\nHi.>>>ping\n{}", Answer("Hi.", calls=(("ping", "{}"),), order=("content", "call 0"))),
        ("ping\n{}", Answer(calls=(("ping", "{}"),), order=("call 0",))),
        ("we are all\nhere", Answer("we are all\nhere", order=("content",))),
        ("pong\n{}", Answer("pong\n{}", order=("content",))),
    ],
)
def test_parts_by_recipient(text: str, wanted: Answer) -> None:
    check("functionary-3.2", text, wanted)


def test_an_answer_that_goes_on_has_no_recipient() -> None:
    scanner = Scanner(BY_NAME["functionary-3.2"], TOOLS, begun=False)
    assert fold([*scanner.push("all\nof it"), *scanner.flush()]).content == "all\nof it"


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("<|close|>response<|sep|>", ""),
        ("Hi.<|close|>response<|sep|><|close|>message<|sep|>", "Hi."),
        ("<|open|>response<|sep|>Hi.<|close|>response<|sep|>", "Hi."),
    ],
)
def test_a_response_in_tags(written: str, wanted: str) -> None:
    answer = read(BY_NAME["kimi-k3"], TOOLS, cut_every(written, 3))
    assert answer.content == wanted and not answer.calls
