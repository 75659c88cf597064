"""Tool schemas: what is normalised, what is kept, what is refused and where."""

from __future__ import annotations

import pytest

from phobos.chat.schemas import to_json_schema
from phobos.chat.tool_schemas import normalise_parameters
from phobos.errors import RequestError


def of(**properties):
    return {"type": "object", "properties": properties}


def normal(schema):
    return normalise_parameters("f", of(x=schema))["properties"]["x"]


NULLABLE_TEXT = {"type": "string", "minLength": 2, "nullable": True}
NULLABLE_COUNT = {"type": "integer", "minimum": 1, "nullable": True}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": ["string", "null"], "minLength": 2}, NULLABLE_TEXT),
        ({"anyOf": [{"type": "string", "minLength": 2}, {"type": "null"}]}, NULLABLE_TEXT),
        ({"anyOf": [{"type": "null"}, {"type": "string"}], "minLength": 2}, NULLABLE_TEXT),
        ({"oneOf": [{"type": "string", "minLength": 2}, {"type": "null"}]}, NULLABLE_TEXT),
        ({"type": "string", "nullable": True, "minLength": 2}, NULLABLE_TEXT),
        ({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}, NULLABLE_COUNT),
        ({"type": ["integer"], "minimum": 1}, {"type": "integer", "minimum": 1}),
        ({"anyOf": [{"const": "a"}, {"const": "b"}]}, {"type": "string", "enum": ["a", "b"]}),
        ({"anyOf": [{"enum": ["a"]}, {"type": "string", "const": "b"}]}, {"type": "string", "enum": ["a", "b"]}),
        (
            {"anyOf": [{"const": "a"}, {"const": "b"}, {"type": "null"}], "description": "which"},
            {"type": "string", "enum": ["a", "b"], "description": "which", "nullable": True},
        ),
        ({"enum": ["a", "b"]}, {"type": "string", "enum": ["a", "b"]}),
        ({"enum": ["a", None]}, {"type": "string", "enum": ["a"], "nullable": True}),
        ({"const": 5}, {"type": "integer", "const": 5}),
        ({"type": "object"}, {"type": "object", "properties": {}}),
        ({"properties": {}}, {"type": "object", "properties": {}}),
        ({"items": {"type": ["number", "null"]}}, {"type": "array", "items": {"type": "number", "nullable": True}}),
        ({}, {}),
        (True, {}),
    ],
)
def test_normal_forms(schema, expected):
    assert normal(schema) == expected


P = of(a={"type": "string"})


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"description": "any value"}, {"description": "any value"}),
        ({"type": ["string", "number"]}, {"type": ["string", "number"]}),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"type": ["integer", "string"]}),
        (
            {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]},
            {"type": ["integer", "string"], "nullable": True},
        ),
        ({"allOf": [P], "default": {}}, {**P, "default": {}}),
        ({"allOf": [P, of(b={"type": "integer"})]}, of(a={"type": "string"}, b={"type": "integer"})),
        (
            {"allOf": [{"type": "integer", "minimum": 2}, {"type": "number", "minimum": 5}]},
            {"type": "integer", "minimum": 5},
        ),
        ({"$ref": "#/$defs/P"}, P),
        ({"$ref": "#/$defs/P", "nullable": True, "title": "T"}, {**P, "title": "T", "nullable": True}),
        ({"anyOf": [{"$ref": "#/$defs/P"}, {"type": "null"}]}, {**P, "nullable": True}),
        ({"$ref": "#/$defs/C"}, {"type": "string", "enum": ["a", "b"]}),
        ({"type": "any"}, {"type": "any"}),
        ({"enum": ["a", 1]}, {"enum": ["a", 1]}),
        ({"type": "array", "items": True}, {"type": "array", "items": True}),
        ("string", "string"),
    ],
)
def test_everything_else_has_a_form_too(schema, expected):
    definitions = {"P": P, "C": {"type": "string", "enum": ["a", "b"]}}
    assert normalise_parameters("f", {**of(x=schema), "$defs": definitions})["properties"]["x"] == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"type": "string"}, {"type": "string"}]},
        {"oneOf": [{"type": "string", "const": "a"}, {"type": "string", "const": "a"}]},
        {"anyOf": [{"type": "string"}], "oneOf": [{"type": "string"}]},
        {"anyOf": []},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"$ref": "#/nowhere"},
        {"type": "object", "properties": []},
        {"type": "array", "items": {"type": "what"}},
    ],
)
def test_what_has_no_simpler_form_stays_as_it_is(schema):
    assert normal(schema) == schema


def test_references_into_themselves_keep_their_definitions():
    tree = {
        "$defs": {"N": of(kids={"type": "array", "items": {"$ref": "#/$defs/N"}})},
        **of(root={"$ref": "#/$defs/N"}),
    }
    found = normalise_parameters("f", tree)
    assert found["properties"]["root"]["properties"]["kids"]["items"] == {"$ref": "#/$defs/N"}
    assert found["$defs"]["N"]["properties"]["kids"]["items"] == {"$ref": "#/$defs/N"}
    itself = normalise_parameters("f", of(again={"$ref": "#"}))
    name = itself["properties"]["again"]["properties"]["again"]["$ref"].rpartition("/")[2]
    assert set(itself["$defs"][name]["properties"]) == {"again"}


def test_odd_property_names_are_kept():
    inner = of(**{"$id": {"type": "string"}, "file-path": {"type": "integer"}, "a.b": {"type": "boolean"}})
    schema = {"type": "object", "properties": {"$id": inner}, "required": ["$id"], "additionalProperties": False}
    result = normalise_parameters("f", schema)
    assert list(result["properties"]["$id"]["properties"]) == ["$id", "file-path", "a.b"]
    assert result["required"] == ["$id"] and result["additionalProperties"] is False


def test_large_integers_survive():
    assert normal({"enum": [9007199254740993]})["enum"] == [9007199254740993]


def test_parameters_are_a_schema():
    for schema in (5, []):
        with pytest.raises(RequestError) as caught:
            normalise_parameters("f", schema)
        assert caught.value.code == "invalid_tool_schema" and "'f'" in str(caught.value)
    assert normalise_parameters("f", None) == {"type": "object", "properties": {}}
    assert normalise_parameters("f", {}) == {"type": "object", "properties": {}}


def test_a_deep_schema_has_a_form():
    schema = {"type": "string"}
    for _ in range(200):
        schema = {"type": "array", "items": schema}
    assert normal(schema)["type"] == "array"


def test_a_normal_form_as_plain_json_schema():
    schema = normalise_parameters("f", of(a={"enum": ["x", None]}, b={"type": ["integer", "null"], "minimum": 1}))
    plain = to_json_schema(schema)["properties"]
    assert plain["a"] == {"type": ["string", "null"], "enum": ["x", None]}
    assert plain["b"] == {"type": ["integer", "null"], "minimum": 1}
