"""Calls written as Python's, with text in quotes that may be raw or escaped."""

from __future__ import annotations

import json

import pytest

from phobos.chat.dialects.families.lfm import LFM
from phobos.chat.messages import ToolSpec
from reading import Answer, cut_every, read

CITY, NOTE = {"type": "string"}, {"type": "string", "nullable": True}
PROPERTIES = {"city": CITY, "count": {"type": "integer"}, "flag": {"type": "boolean"}, "note": NOTE}
PROPERTIES |= {"list": {"type": "array"}, "rate": {"type": "number"}, "more": {"type": "object", "properties": {}}}
TOOLS = (
    ToolSpec("get_weather", "The weather", {"type": "object", "properties": PROPERTIES}),
    ToolSpec("ping", "Nothing", {"type": "object", "properties": {}}),
)


def check(text: str, wanted: Answer) -> None:
    """Whole and in cuts of every size, always the same."""
    for n_chars in (*range(1, 10), len(text)):
        assert read(LFM, TOOLS, cut_every(text, n_chars)) == wanted, n_chars


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("city='it's here, or not', count=3", '{"city": "it\'s here, or not", "count": 3}'),
        ('city="it\'s", flag=True', '{"city": "it\'s", "flag": true}'),
        ("city='it\\'s \\d', note=None", '{"city": "it\'s \\\\d", "note": null}'),
        ("list=[1, 2], more={'a': [1, 'b)']}", '{"list": [1, 2], "more": {"a": [1, "b)"]}}'),
        ('more={"a": "x, y"}, rate=-1.5e3', '{"more": {"a": "x, y"}, "rate": -1.5e3}'),
        ("city='x' , count=4 '", '{"city": "x\' , count=4 "}'),  # a quote closes next to a comma or bracket only
        ("city=bare", '{"city": "bare"}'),
        ("city='\\'", '{"city": "\\\\"}'),
    ],
)
def test_arguments_of_a_python_call(written: str, arguments: str) -> None:
    check(
        f"<|tool_call_start|>[get_weather({written})]<|tool_call_end|>",
        Answer(calls=(("get_weather", arguments),), order=("call 0",)),
    )


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("'one\ntwo'", "one\ntwo"),
        ("'one\\ntwo\\\\n'", "one\ntwo\\n"),
        ("'C:\\dir\\\\x'", "C:\\dir\\x"),
        ("'it\\'s \"so\"'", 'it\'s "so"'),
        ("'it's \"so\", he said'", 'it\'s "so", he said'),
        ("'print('a', 'b')'", "print('a', 'b')"),
        ("'f(x)', 'y'", "f(x)', 'y"),
        ('"say \'yes\', \\"no\\""', "say 'yes', \"no\""),
        ("'a\\', count=3'", "a', count=3"),
        ("'grep -F \"]\" log.txt'", 'grep -F "]" log.txt'),
        ("'line \\\nbreak'", "line break"),
        ("'\\'", "\\"),
    ],
)
def test_text_of_a_python_call_is_read_whole(written: str, text: str) -> None:
    ends = ((")]", ""), (", count=3)]", ', "count": 3'), ("), ping()]", ""))
    for behind, more in ends[:1] if written.endswith("\\'") else ends:  # behind others it is an escaped quote
        calls = (("get_weather", f'{{"city": {json.dumps(text, ensure_ascii=False)}{more}}}'),)
        n_pings = behind.count("ping")
        check(
            f"<|tool_call_start|>[get_weather(city={written}{behind}<|tool_call_end|>",
            Answer(calls=calls + (("ping", "{}"),) * n_pings, order=("call 0", "call 1")[: 1 + n_pings]),
        )
