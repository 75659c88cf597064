"""Tool schemas: what is normalised, what is kept, what is refused and where."""

from __future__ import annotations

import pytest

from phobos.chat.tool_schemas import normalise_parameters, parse_tools, to_json_schema
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


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        ({"type": ["string", "object"]}, "parameters.properties.x"),
        ({"anyOf": [{"type": "string"}, {"type": "object"}]}, "parameters.properties.x.anyOf"),
        ({"oneOf": [{"type": "string"}, {"type": "string"}]}, "parameters.properties.x.oneOf"),
        ({"oneOf": [{"type": ["string", "null"]}, {"type": "null"}]}, "parameters.properties.x.oneOf"),
        ({"oneOf": [{"const": "a"}, {"const": "a"}]}, "parameters.properties.x.oneOf"),
        ({"oneOf": [{"type": "null"}, {"type": "null"}, {"type": "string"}]}, "parameters.properties.x.oneOf"),
        ({"anyOf": [{"type": "string"}], "oneOf": [{"type": "string"}]}, "parameters.properties.x"),
        ({"anyOf": []}, "parameters.properties.x.anyOf"),
        ({"anyOf": [{"type": "string", "minLength": 1}], "minLength": 2}, "parameters.properties.x.anyOf"),
        ({"allOf": [{"type": "string"}]}, "parameters.properties.x"),
        ({"$ref": "#/x"}, "parameters.properties.x"),
        ({"type": "text"}, "parameters.properties.x"),
        ({"description": "typeless"}, "parameters.properties.x"),
        ({"enum": ["a", 1]}, "parameters.properties.x"),
        ("string", "parameters.properties.x"),
        ({"type": "object", "properties": []}, "parameters.properties.x.properties"),
        ({"type": "object", "required": "x"}, "parameters.properties.x.required"),
        ({"type": "array", "items": {"type": "what"}}, "parameters.properties.x.items"),
    ],
)
def test_what_would_need_a_guess_is_refused_with_tool_and_path(schema, where):
    with pytest.raises(RequestError) as caught:
        normal(schema)
    error = caught.value
    assert error.code == "invalid_tool_schema" and error.param == f"tools.f.{where}"
    assert "'f'" in str(error) and where in str(error)


def test_odd_property_names_are_kept():
    inner = of(**{"$id": {"type": "string"}, "file-path": {"type": "integer"}, "a.b": {"type": "boolean"}})
    schema = {"type": "object", "properties": {"$id": inner}, "required": ["$id"], "additionalProperties": False}
    result = normalise_parameters("f", schema)
    assert list(result["properties"]["$id"]["properties"]) == ["$id", "file-path", "a.b"]
    assert result["required"] == ["$id"] and result["additionalProperties"] is False


def test_large_integers_survive():
    assert normal({"enum": [9007199254740993]})["enum"] == [9007199254740993]


def test_the_top_must_be_a_plain_object():
    for schema in ({"type": "string"}, {"type": ["object", "null"]}, 5, []):
        with pytest.raises(RequestError) as caught:
            normalise_parameters("f", schema)
        assert caught.value.code == "invalid_tool_schema"
    assert normalise_parameters("f", None) == {"type": "object", "properties": {}}
    assert normalise_parameters("f", {}) == {"type": "object", "properties": {}}


def test_depth_is_bounded():
    schema = {"type": "string"}
    for _ in range(40):
        schema = {"type": "array", "items": schema}
    with pytest.raises(RequestError, match="nested deeper"):
        normal(schema)


def test_tools():
    tools = parse_tools([{"type": "function", "function": {"name": "a", "description": "does a", "strict": True}}])
    assert (tools[0].name, tools[0].description, tools[0].strict) == ("a", "does a", True)
    assert parse_tools(None) == parse_tools([]) == ()


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ("x", "tools"),
        ([5], "tools[0].type"),
        ([{"type": "retrieval"}], "tools[0].type"),
        ([{"type": "function"}], "tools[0].function"),
        ([{"type": "function", "function": {}}], "tools[0].function.name"),
        ([{"type": "function", "function": {"name": "a", "description": 5}}], "tools[0].function.description"),
        ([{"type": "function", "function": {"name": "a"}}] * 2, "tools[1].function.name"),
        ([{"type": "function", "function": {"name": "a"}}] * 129, "tools"),
    ],
)
def test_wrong_tools(tools, param):
    with pytest.raises(RequestError) as caught:
        parse_tools(tools)
    assert caught.value.param == param


def test_a_normal_form_as_plain_json_schema():
    schema = normalise_parameters("f", of(a={"enum": ["x", None]}, b={"type": ["integer", "null"], "minimum": 1}))
    plain = to_json_schema(schema)["properties"]
    assert plain["a"] == {"type": ["string", "null"], "enum": ["x", None]}
    assert plain["b"] == {"type": ["integer", "null"], "minimum": 1}
