"""JSON that is brought to its end before its tokens run out."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from phobos.chat.dialects.hermes import HERMES
from phobos.chat.dialects.mistral import MISTRAL
from phobos.chat.messages import GenerationRequest, OutputFormat, ToolChoice, ToolSpec
from phobos.engine.closing import JsonState, classify, count_names
from phobos.engine.grammar import Grammars
from walking import MarkerVocabulary, check_calls, walk

CHAIN = {
    "$defs": {
        "link": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "rate": {"type": "number"},
                "next": {"anyOf": [{"$ref": "#/$defs/link"}, {"type": "null"}]},
                "more": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["name", "rate", "next"],
        }
    },
    "$ref": "#/$defs/link",
}
NOTE = ToolSpec(
    "take_note",
    "",
    {
        "type": "object",
        "properties": {"text": {"type": "string"}, "lines": {"type": "array", "items": {"type": "string"}}},
        "required": ["text", "lines"],
    },
)


def test_json_state() -> None:
    state = JsonState()
    for data, depth, in_string in [
        (b'{"a": [', 2, False),
        (b'"}]', 2, True),
        (b"\\", 2, True),
        (b'"', 2, True),
        (b'\\\\"', 2, False),
        (b"]}", 0, False),
    ]:
        state.push(data)
        assert (state.depth, state.in_string) == (depth, in_string)


def test_near_grows_with_what_is_open() -> None:
    state = JsonState()
    assert not state.is_near(60, 1000, 0)
    state.push(b"[" * 30)
    assert state.is_near(60, 1000, 0) and not state.is_near(60, 80, 0)


def test_tokens_by_what_they_do() -> None:
    masks = classify([b"}", b'"}', b"]}]", b"a}", b'{"', b", [", b'"', b"", b'"a'], tuple)  # type: ignore[arg-type]
    assert (masks.brackets, masks.quotes, masks.opening) == ((0, 2), (1, 6), (4, 5))


def test_names_that_are_required_are_counted() -> None:
    assert count_names({}) == count_names(None) == 0
    assert 5 < count_names(CHAIN) < 40
    assert count_names({"a": [{"required": ["x" * 10_000]}]}) == 200


@pytest.mark.parametrize("limit", [90, 150, 300])
def test_an_answer_is_whole_at_any_limit_that_holds_one(limit: int) -> None:
    grammars = Grammars(MarkerVocabulary(HERMES), HERMES)
    request = GenerationRequest("r", output=OutputFormat("json_schema", CHAIN))
    for seed in range(6):
        found = walk(grammars, request, seed, limit=limit)
        assert found.is_whole, found.text[-200:]
        value: Any = json.loads(found.answer.content)
        jsonschema.validate(value, CHAIN)


@pytest.mark.parametrize("dialect", [HERMES, MISTRAL], ids=lambda dialect: dialect.name)
def test_calls_are_whole_too(dialect: Any) -> None:
    grammars = Grammars(MarkerVocabulary(dialect), dialect)
    request = GenerationRequest("r", tools=(NOTE,), tool_choice=ToolChoice("required"))
    for seed in range(6):
        found = walk(grammars, request, seed, limit=200)
        assert found.is_whole and found.answer.calls, found.text[-200:]
        check_calls(found.answer, (NOTE,))


def test_an_answer_that_ends_in_time_is_left_alone() -> None:
    grammars = Grammars(MarkerVocabulary(HERMES), HERMES)
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 3}
    request = GenerationRequest("r", output=OutputFormat("json_schema", schema))
    script = [*grammars.vocabulary.encode("[1, 2, 3]"), min(grammars.vocabulary.end_ids)]
    assert walk(grammars, request, 1, script=script, limit=200).text == "[1, 2, 3]"
