"""JSON that is brought to its end before its tokens run out."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest

from phobos.chat.dialects import DIALECTS
from phobos.chat.dialects.families.hermes import HERMES
from phobos.chat.dialects.families.plain import PLAIN
from phobos.chat.messages import GenerationRequest, OutputFormat, ToolChoice, ToolSpec
from phobos.engine.constrained import closing
from phobos.engine.constrained.closing import JsonState, classify, count_names
from phobos.engine.constrained.grammar import Grammars
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


def test_tokens_by_what_they_do() -> None:
    pieces = [b"}", b'"}', b"]}]", b"a}", b'{"', b", [", b'"', b"", b'"a', b", ", b",,", b"7", b"77", b" ab", b"abc"]
    classes = classify(pieces, tuple)  # type: ignore[arg-type]
    assert (classes.brackets, classes.quotes, classes.opening) == ((0, 2), (1, 6), (4, 5))
    assert (classes.commas, classes.digits, classes.signs) == ((9,), (11,), (0, 6, 11))
    assert classes.word_order[[13, 14]].tolist() == [0, 1]
    assert set(classes.word_order[:13].tolist()) == {len(pieces)}


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


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


NUMBER, STRING = {"type": "number"}, {"type": "string"}
STUBBORN = {
    "a number without end": (_object(lat=NUMBER, lon=NUMBER, name=STRING), "0123456789.", 60),
    "a text without end": (_object(a=STRING, b=STRING), "abcdefghijklmnopqrstuvwxyz ", 40),
    "white space": (_object(a=STRING, b={"type": "array", "items": STRING}), " \n", 60),
    "a list without end": ({"type": "array", "items": {"type": "integer"}}, "0123456789, ", 40),
    "lists in lists": (
        {"$defs": {"l": {"type": "array", "items": {"$ref": "#/$defs/l"}}}, "$ref": "#/$defs/l"},
        "[",
        60,
    ),
    "escapes": (_object(a=STRING), "\\", 40),
    "a least length": (_object(a={"type": "string", "minLength": 30}), "x", 60),
    "a least number": ({"type": "array", "items": _object(kind=STRING, n=NUMBER), "minItems": 4}, "x1", 160),
    "a pattern": (_object(mail={"type": "string", "pattern": "^[a-z]+@[a-z]+\\.com$"}), "abcdefghijklmnop", 50),
    "a choice": ({"anyOf": [_object(long=STRING, longer=STRING), _object(n=NUMBER)]}, "abcdefgnlor1", 50),
    "names of its own": ({"type": "object", "additionalProperties": {"type": "integer"}}, 'ab":, 1', 40),
}


@pytest.mark.parametrize("case", STUBBORN)
def test_what_a_model_loves_does_not_keep_its_answer_open(case: str) -> None:
    schema, loved, limit = STUBBORN[case]
    grammars = Grammars(MarkerVocabulary(HERMES), HERMES)
    request = GenerationRequest("r", output=OutputFormat("json_schema", schema))
    for seed in range(3):
        found = walk(grammars, request, seed, limit=limit, loved=loved)
        value: Any = json.loads(found.answer.content)
        jsonschema.validate(value, schema)
        assert len(found.tokens) > limit // 4


TRIP = ToolSpec(
    "plan_trip",
    "",
    _object(
        city=STRING,
        days={"type": "integer"},
        stops={"type": "array", "items": STRING},
        mode={"enum": ["by train", "by car"]},
        note={"type": "string", "minLength": 8},
    ),
)


@pytest.mark.parametrize("dialect", [*DIALECTS, PLAIN], ids=lambda dialect: dialect.name)
def test_calls_are_whole_in_every_dialect(dialect: Any) -> None:
    grammars = Grammars(MarkerVocabulary(dialect), dialect)
    request = GenerationRequest("r", tools=(TRIP,), tool_choice=ToolChoice("required"))
    plan = grammars.plan(request)
    assert plan is not None and plan.n_least > 20
    for seed, loved in ((1, ", "), (2, "abcdefghijklmnopqrstuvwxyz0123456789")):
        found = walk(grammars, request, seed, limit=plan.n_least + 150, loved=loved)
        assert found.answer.calls, found.text[-200:]
        check_calls(found.answer, (TRIP,))


@pytest.mark.parametrize("limit", [80, 200])
def test_thoughts_leave_room_for_the_answer(limit: int) -> None:
    grammars = Grammars(MarkerVocabulary(HERMES), HERMES)
    schema = _object(a=STRING, n=NUMBER)
    request = GenerationRequest("r", output=OutputFormat("json_schema", schema), thinking=True)
    found = walk(grammars, request, 1, limit=limit, in_reasoning=True, loved="abcdefghijklmnopqrstuvwxyz ")
    jsonschema.validate(json.loads(found.answer.content), schema)
    assert len(found.answer.reasoning) > limit // 4
    free = walk(grammars, GenerationRequest("r", thinking_budget=9999), 1, limit=limit, in_reasoning=True, loved="ab ")
    assert len(free.answer.reasoning) > limit - 10 and not free.answer.content


def test_a_call_that_opened_by_itself_is_whole_too() -> None:
    grammars = Grammars(MarkerVocabulary(HERMES), HERMES)
    script = grammars.vocabulary.encode("Well. <tool_call>")
    request = GenerationRequest("r", tools=(TRIP,), parallel_tool_calls=False)
    found = walk(grammars, request, 1, script=script, limit=250, loved="abcdefghijklmnopqrstuvwxyz")
    assert len(found.answer.calls) == 1 and found.answer.content == "Well."
    check_calls(found.answer, (TRIP,))


def test_a_format_that_is_not_json_is_whole_too() -> None:
    grammars = Grammars(MarkerVocabulary(HERMES), HERMES)
    request = GenerationRequest("r", output=OutputFormat("regex", pattern="[a-z]+(-[a-z]+)*!"))
    found = walk(grammars, request, 1, limit=60, loved="abcdefghijklmnopqrstuvwxyz")
    assert re.fullmatch("[a-z]+(-[a-z]+)*!", found.answer.content) and len(found.tokens) > 20


def test_an_answer_that_ends_in_time_is_left_alone() -> None:
    grammars = Grammars(MarkerVocabulary(HERMES), HERMES)
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 3}
    request = GenerationRequest("r", output=OutputFormat("json_schema", schema))
    script = [*grammars.vocabulary.encode("[1, 2, 3]"), min(grammars.vocabulary.end_ids)]
    assert walk(grammars, request, 1, script=script, limit=200).text == "[1, 2, 3]"


def test_a_known_way_to_the_end_is_kept_where_tokens_beside_it_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk takes as long as many tokens do, and an answer with a long shortest form is near its end at once."""
    walks = []
    find_end = closing.find_end
    monkeypatch.setattr(closing, "find_end", lambda *given, **most: walks.append(1) or find_end(*given, **most))
    schema = {"type": "array", "items": STRING, "minItems": 30, "maxItems": 40}
    grammars = Grammars(MarkerVocabulary(HERMES), HERMES)
    request = GenerationRequest("r", output=OutputFormat("json_schema", schema))
    found = walk(grammars, request, 1, limit=104, loved="abcdefghijklmnopqrstuvwxyz")
    jsonschema.validate(json.loads(found.answer.content), schema)
    assert 0 < len(walks) < 5
