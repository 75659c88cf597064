"""What grammars of single dialects let a model write: derived ones, and text of any kind in Python's quotes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from derived_templates import SOURCES, derived
from phobos.chat.dialects import DIALECTS
from phobos.chat.dialects.dialect import Dialect
from phobos.chat.dialects.families.lfm import CALLS, LFM
from phobos.chat.messages import GenerationRequest, ToolCall, ToolChoice, ToolSpec
from phobos.engine.constrained.grammar import Grammars
from reading import read
from walking import MarkerVocabulary, check_calls, walk

ALPHA = ToolSpec(
    "alpha",
    "",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "n": {"type": "integer", "minimum": 2, "maximum": 40},
            "kind": {"type": "string", "enum": ["plain", "two\nlines"]},
            "ok": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "minItems": 1, "maxItems": 2},
            "short": {"type": "string", "minLength": 1, "maxLength": 5},
        },
        "required": ["city", "ok"],
    },
)
BETA = ToolSpec("beta.x", "", {"type": "object", "properties": {}})
GAMMA = ToolSpec("gamma", "", {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]})
TOOLS = (ALPHA, BETA, GAMMA)
BY_NAME = {dialect.name: dialect for dialect in DIALECTS}


def grammars_of(dialect: Dialect) -> Grammars:
    return Grammars(MarkerVocabulary(dialect), dialect)


def ask(**fields: Any) -> GenerationRequest:
    return GenerationRequest("r", **{"tools": TOOLS, "tool_choice": ToolChoice("required"), **fields})


@pytest.mark.parametrize("name", SOURCES)
def test_a_derived_grammar_writes_what_the_known_reader_reads(name: str) -> None:
    grammars = grammars_of(derived(name))
    for seed in range(2):
        found = walk(grammars, ask(parallel_tool_calls=seed == 0), seed)
        assert found.is_whole and found.answer.calls and not found.answer.content.strip(), found.text[-300:]
        assert seed == 0 or len(found.answer.calls) == 1
        check_calls(found.answer, TOOLS)
        assert read(BY_NAME[name], TOOLS, [found.text]).calls == found.answer.calls, found.text


@pytest.mark.parametrize("text", ["a\nb", "C:\\dir", 'it\'s "so", yes', "print('a', \"b\")\n\\n", "x', q='y"])
def test_a_python_call_can_hold_any_text(text: str) -> None:
    written = CALLS.write([ToolCall("c", "gamma", json.dumps({"q": text}))])
    grammars = grammars_of(LFM)
    request = ask(tools=(GAMMA,), parallel_tool_calls=False)
    found = walk(grammars, request, 1, script=grammars.vocabulary.encode(written))
    assert found.is_whole and json.loads(found.answer.calls[0][1]) == {"q": text}
