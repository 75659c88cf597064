"""Free-form tools: a text that follows a Lark grammar, inside the JSON of a call."""

from __future__ import annotations

import json
import re
from functools import cache

import pytest

from phobos.chat.dialects import DIALECTS
from phobos.chat.dialects.lark_quoting import Unquotable, quote_grammar
from phobos.chat.messages import GenerationRequest, ToolChoice, ToolSpec
from phobos.engine.constrained.grammar import Grammars
from phobos.errors import RequestError
from walking import MarkerVocabulary, walk

TEXT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
NOTES = """
// lines of notes between two marks
start: head note+ "END"
head: "BEGIN " NAME LF
note: (KEEP | drop) LF -> line
KEEP: "+" /[^\\n"]{0,3}/
drop: "-" /("|\\\\|[a-c])?/ [" \\"end\\""]
NAME: /[A-Z]{1,3}(-[0-9])?/
%import common.LF
"""
NOTES_TEXT = r'BEGIN [A-Z]{1,3}(-[0-9])?\n((\+[^\n"]{0,3}|-("|\\|[a-c])?( "end")?)\n)+END'


@cache
def grammars_of(name: str) -> Grammars:
    dialect = next(dialect for dialect in DIALECTS if dialect.name == name)
    return Grammars(MarkerVocabulary(dialect), dialect)


def calling(grammar: str, **fields: bool) -> GenerationRequest:
    tool = ToolSpec("note", "", TEXT, grammar=grammar, **fields)
    return GenerationRequest("r", tools=(tool,), tool_choice=ToolChoice("function", "note"))


@pytest.mark.parametrize("name", ["hermes", "mistral-args", "harmony", "functionary-3.2", "llama3", "deepseek-r1"])
def test_the_text_follows_its_grammar(name: str) -> None:
    request = calling(NOTES)
    plan = grammars_of(name).plan(request)
    assert plan is not None and not plan.left_open
    for seed in range(6):
        found = walk(grammars_of(name), request, seed)
        assert found.is_whole, found.text[-200:]
        (call,) = found.answer.calls
        assert re.fullmatch(NOTES_TEXT, json.loads(call[1])["input"]), call


def test_quotes_backslashes_and_line_breaks_may_stand_in_it() -> None:
    grammars = grammars_of("hermes")
    text = 'BEGIN AB-1\n+a\\\n-" "end"\n-\\\nEND'
    call = '<tool_call>\n{"name": "note", "arguments": ' + json.dumps({"input": text}) + "}\n</tool_call>"
    found = walk(grammars, calling(NOTES), 1, script=grammars.vocabulary.encode(call))
    assert found.is_whole and json.loads(found.answer.calls[0][1]) == {"input": text}


@pytest.mark.parametrize(
    "grammar",
    [
        "start: /a(?=b)/",
        'start: "a"i',
        'start: "a".."z"',
        'start: "a"\n%ignore " "',
        "start: ESCAPED\n%import common.ESCAPED_STRING -> ESCAPED",
        r"start: /(a)\1/",
        r"start: /\bword/",
        'begin: "a"',
        "start: <",
        'start: "' + "a" * 70_000 + '"',
    ],
)
def test_a_grammar_without_such_a_form_is_left_to_the_client(grammar: str) -> None:
    with pytest.raises(Unquotable):
        quote_grammar(grammar, "text")
    plan = grammars_of("hermes").plan(calling(grammar))
    assert plan is not None and plan.left_open == ("tools.note.format",)
    assert walk(grammars_of("hermes"), calling(grammar), 1, limit=300).answer.calls
    with pytest.raises(RequestError, match="'note' is strict"):
        grammars_of("hermes").plan(calling(grammar, strict=True))


def test_a_grammar_that_means_nothing_is_left_open_with_its_tool() -> None:
    plan = grammars_of("hermes").plan(calling("start: nowhere"))
    assert plan is not None and plan.left_open == ("tools.note.parameters",)


def test_dialects_without_json_leave_it_open() -> None:
    plan = grammars_of("qwen-xml").plan(calling(NOTES))
    assert plan is not None and plan.left_open == ("tools.note.format",)
