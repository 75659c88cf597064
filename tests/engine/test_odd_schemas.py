"""Odd schemas bind answers as far as was said, from a model without sense."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema
import pytest

from odd_schemas import ODD
from phobos.chat.dialects import DIALECTS
from phobos.chat.messages import GenerationRequest, OutputFormat, ToolChoice, ToolSpec
from phobos.chat.schemas import normalise, to_json_schema
from phobos.chat.tool_schemas import normalise_parameters
from phobos.engine.constrained.grammar import Grammars
from phobos.errors import RequestError
from walking import MarkerVocabulary, walk

LEFT_OPEN = {
    "overlapping": "oneOf",
    "not_that": "not",
    "looks_around": "pattern",
    "unknown_format": "format",
    "distinct": "uniqueItems",
    "dependent": "dependentRequired",
    "conditional": "if",
    "no_such_type": "type",
    "gone": "$ref",
    "elsewhere": "$ref",
}


@cache
def grammars_of(name: str) -> Grammars:
    dialect = next(dialect for dialect in DIALECTS if dialect.name == name)
    return Grammars(MarkerVocabulary(dialect), dialect)


def without(schema: dict[str, Any], places: list[str]) -> dict[str, Any]:
    """A normal form as JSON schema, less what stands at these places."""
    found = json.loads(json.dumps(schema))
    for place in places:
        parts, holder = place.split("."), found
        for part in parts[:-1]:
            holder = holder[int(part)] if isinstance(holder, list) else holder[part]
        if parts[-2:-1] == ["properties"]:
            holder[parts[-1]] = {}
        else:
            holder.pop(parts[-1], None)
    return to_json_schema(found)


def places_under(prefix: str, left_open: tuple[str, ...]) -> list[str]:
    return [place.removeprefix(prefix).lstrip(".") for place in left_open if place.startswith(prefix)]


def check_call(dialect: str, name: str, seed: int) -> None:
    parameters = normalise_parameters("f", ODD[name])
    tool = ToolSpec("f", "", parameters)
    request = GenerationRequest("r", tools=(tool,), tool_choice=ToolChoice("function", "f"))
    plan = grammars_of(dialect).plan(request)
    assert plan is not None
    found = walk(grammars_of(dialect), request, seed, limit=600)
    assert found.is_whole and len(found.answer.calls) == 1, found.text[-200:]
    places = places_under("tools.f.parameters", plan.left_open)
    assert dialect != "hermes" or [place.rpartition(".")[2] for place in places] == list(
        filter(None, [LEFT_OPEN.get(name)])
    )
    jsonschema.validate(json.loads(found.answer.calls[0][1]), without(dict(parameters), places))


@pytest.mark.parametrize("name", ODD)
def test_a_call_fits_what_is_said_to_be_enforced(name: str) -> None:
    for seed in range(2):
        check_call("hermes", name, seed)


@pytest.mark.parametrize("name", ODD)
def test_an_answer_fits_what_is_said_to_be_enforced(name: str) -> None:
    request = GenerationRequest("r", output=OutputFormat("json_schema", ODD[name]))
    plan = grammars_of("hermes").plan(request)
    assert plan is not None
    places = places_under("response_format", plan.left_open)
    assert [place.rpartition(".")[2] for place in places] == list(filter(None, [LEFT_OPEN.get(name)]))
    for seed in range(2):
        found = walk(grammars_of("hermes"), request, seed, limit=600)
        assert found.is_whole, found.text[-200:]
        jsonschema.validate(json.loads(found.answer.content), without(normalise(ODD[name]), places))


# A value of any kind may hold, spelt out, the tags that end it.
FREE = {"described", "titled", "record", "anything_listed", "always", "bare_bound", "no_such_type", "gone", "elsewhere"}
FREE |= {"record_of_keys", "some_member", "by_pattern", "pair", "old_pair"}


@pytest.mark.parametrize("dialect", ["qwen-xml", "gemma", "lfm", "minimax-m3", "kimi-k3"])
def test_dialects_without_json_take_them_too(dialect: str) -> None:
    for seed, name in enumerate(name for name in ODD if name not in FREE):
        check_call(dialect, name, seed)


@pytest.mark.parametrize("name", LEFT_OPEN)
def test_what_is_strict_is_refused_by_tool_and_place(name: str) -> None:
    tool = ToolSpec("f", "", normalise_parameters("f", ODD[name]), strict=True)
    with pytest.raises(RequestError) as caught:
        grammars_of("hermes").plan(GenerationRequest("r", tools=(tool,)))
    assert caught.value.code == "invalid_tool_schema" and "'f'" in str(caught.value)
    assert (caught.value.param or "").endswith(LEFT_OPEN[name]) and LEFT_OPEN[name] in str(caught.value)
