"""Answers that are nothing but JSON calls of offered tools, which no dialect's markers stand round."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phobos.chat.dialects import DIALECTS
from phobos.chat.dialects.dialect import Dialect
from phobos.chat.dialects.families.hermes import HERMES
from phobos.chat.dialects.families.llama3 import LLAMA3
from phobos.chat.dialects.families.mistral import MISTRAL
from phobos.chat.dialects.families.plain import PLAIN
from phobos.chat.dialects.scanner import Scanner
from phobos.chat.messages import ToolSpec
from reading import Answer, cut_every, fold, read

TOOLS = (
    ToolSpec("get_weather", "", {"type": "object", "properties": {"city": {"type": "string"}}}),
    ToolSpec("get_time", "", {"type": "object", "properties": {}}),
)
WEATHER = '{"name": "get_weather", "arguments": {"city": "Köln"}}'
TIME = '{"name": "get_time", "arguments": {}}'
ONE = (("get_weather", '{"city": "Köln"}'),)
TWO = (*ONE, ("get_time", "{}"))
PRETTY = '{\n  "name": "get_weather",\n  "arguments": {\n    "city": "Köln"\n  }\n}'


def check(
    text: str, wanted: Answer, dialect: Dialect = HERMES, *, at_most: int = 9, in_reasoning: bool = False
) -> None:
    """Whole and in cuts of every size, always the same."""
    for n_chars in (*range(1, 9), len(text) or 1):
        found = read(dialect, TOOLS, cut_every(text, n_chars), max_bare_calls=at_most, in_reasoning=in_reasoning)
        assert found == wanted, n_chars


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (WEATHER, ONE),
        (f"\n{WEATHER}\n", ONE),
        (f"```json\n{WEATHER}\n```", ONE),
        (f"```\n{WEATHER}\n```\n", ONE),
        (f"```json\n{WEATHER}", ONE),
        (WEATHER.replace("{", "{{", 1) + "}", ONE),
        ("{" + WEATHER + "}}", ONE),
        ('{"arguments": {"city": "Köln"}, "name": "get_weather"}', ONE),
        ('{"type": "function", "id": "c1", "name": "get_weather", "arguments": {"city": "Köln"}}', ONE),
        ('{"name": "get_weather", "arguments": "{\\"city\\": \\"Köln\\"}"}', ONE),
        ('{"name": "get_time", "arguments": null}', TWO[1:]),
        (f"{WEATHER}\n{TIME}", TWO),
        (f"{WEATHER}, {TIME}", TWO),
        (f"[{WEATHER}, {TIME}]", TWO),
        (f"```json\n[\n{WEATHER},\n{TIME}\n]\n```", TWO),
        (f"```json\n{WEATHER}\n{TIME}\n```", TWO),
        (f"```json\n{WEATHER}\n```\n\n```json\n{TIME}\n```", TWO),
    ],
)
@pytest.mark.parametrize("dialect", [HERMES, PLAIN, MISTRAL], ids=lambda dialect: dialect.name)
def test_an_answer_of_nothing_but_calls_is_these_calls(
    dialect: Dialect, text: str, calls: tuple[tuple[str, str], ...]
) -> None:
    check(text, Answer(calls=calls, order=tuple(f"call {i}" for i in range(len(calls)))), dialect)


def test_pretty_arguments_are_passed_on_as_they_were_written() -> None:
    (call,) = read(HERMES, TOOLS, [f"```json\n{PRETTY}\n```"], max_bare_calls=1).calls
    assert call == ("get_weather", '{\n    "city": "Köln"\n  }')


@pytest.mark.parametrize(
    "text",
    [
        f"Let me look.\n{WEATHER}",
        f"{WEATHER}\nThat is how.",
        f"```json\n{WEATHER}\n```\nThat is how.",
        f"```python\n{WEATHER}\n```",
        f"`{WEATHER}`",
        f"[{WEATHER}",
        f"[{WEATHER}, ]",
        "[]",
        "```json\n```",
        WEATHER[:-1],
        WEATHER + "}",
        "{" + WEATHER,
        WEATHER.replace("get_weather", "get_news"),
        WEATHER.replace("get_weather", "get"),
        WEATHER.replace('{"city": "Köln"}', "[1]"),
        WEATHER.replace('{"city": "Köln"}', '"Köln"'),
        WEATHER.replace('"Köln"', "'Köln'"),
        '{"name": "get_weather"}',
        '{"name": "get_weather", "description": "It tells", "parameters": {"type": "object"}}',
        '{"name": "get_weather", "parameters": {}}',
        '{"name": "get_weather", "name": "get_time", "arguments": {}}',
        '{"name": "get_weather", "arguments": {}, "note": 1}',
        '{"arguments": {}}',
        '{"city": "Köln"}',
        f"{WEATHER}\n{TIME.replace('get_time', 'get_news')}",
        "[1, 2]",
        "",
        "{",
        "``",
        "```js",
    ],
)
def test_anything_else_is_text_and_all_of_it(text: str) -> None:
    check(text, Answer(text, order=("content",) if text.strip() else ()))


def test_without_the_flag_or_tools_they_are_text() -> None:
    check(WEATHER, Answer(WEATHER, order=("content",)), at_most=0)
    assert read(HERMES, (), [WEATHER], max_bare_calls=9).content == WEATHER


def test_a_strict_tool_is_called_in_the_dialects_own_syntax_only() -> None:
    strict = tuple(replace(tool, strict=True) for tool in TOOLS)
    assert read(HERMES, strict, [WEATHER], max_bare_calls=9).content == WEATHER


def test_no_more_calls_than_may_be() -> None:
    check(WEATHER, Answer(calls=ONE, order=("call 0",)), at_most=1)
    both = f"{WEATHER}\n{TIME}"
    check(both, Answer(both, order=("content",)), at_most=1)


def test_behind_thoughts() -> None:
    wanted = Answer(reasoning="hm", calls=ONE, order=("reasoning", "call 0"))
    check(f"hm\n</think>\n\n{WEATHER}", wanted, in_reasoning=True)


def test_the_dialects_own_calls_come_first() -> None:
    own = f"<tool_call>\n{TIME}\n</tool_call>"
    check(own, Answer(calls=TWO[1:], order=("call 0",)))
    check(f"{own}\n{WEATHER}", Answer(f"\n{WEATHER}", calls=TWO[1:], order=("call 0", "content")))
    check(f"{WEATHER}\n{own}", Answer(WEATHER, calls=TWO[1:], order=("content", "call 0")))
    check(f"[TOOL_CALLS][{TIME}]", Answer(calls=TWO[1:], order=("call 0",)), MISTRAL)
    check('{"name": "get_time", "parameters": {}}', Answer(calls=TWO[1:], order=("call 0",)), LLAMA3)


@pytest.mark.parametrize(
    ("text", "n_held"),
    [
        ("Hi", 0),
        ("[TO", 0),
        ('{"ci', 0),
        ('{"name": "get_n', 0),
        ('{"name": "get_t', 15),
        ('{"name": "get_time", "arguments": [', 0),
        ("``", 2),
        ("```p", 0),
        ("```js", 5),
        ("```json\n{", 9),
        (f"{TIME}\n", len(TIME) + 1),
        (f"{TIME} T", 0),
        ("{x", 0),
    ],
)
def test_text_is_held_back_no_longer_than_it_may_be_a_call(text: str, n_held: int) -> None:
    scanner = Scanner(HERMES, TOOLS, max_bare_calls=9)
    pieces = [piece for char in text for piece in scanner.push(char)]
    assert len(fold(pieces).content) == len(text) - n_held


def test_long_arguments_are_held_whole() -> None:
    arguments = json.dumps({"city": "x" * 20_000})
    text = f'{{"name": "get_weather", "arguments": {arguments}}}'
    assert read(HERMES, TOOLS, cut_every(text, 50), max_bare_calls=1).calls == (("get_weather", arguments),)


PARTS = st.sampled_from(
    [
        WEATHER,
        TIME,
        PRETTY,
        "```json",
        "```",
        "\n",
        " ",
        ", ",
        "[",
        "]",
        "{",
        "}",
        '"name": ',
        '"get_time"',
        "Hi",
        "<tool_call>",
    ]
)


@settings(max_examples=150, deadline=None)
@given(parts=st.lists(PARTS, max_size=7), dialect=st.sampled_from(DIALECTS), n_chars=st.integers(1, 9))
def test_any_text_cut_anywhere_gives_the_same(parts: list[str], dialect: Dialect, n_chars: int) -> None:
    text = "".join(parts)
    whole = read(dialect, TOOLS, [text], max_bare_calls=3)
    assert read(dialect, TOOLS, cut_every(text, n_chars), max_bare_calls=3) == whole
    if not whole.calls and dialect is HERMES:
        assert whole.content == text
