"""What of a JSON schema binds, what is narrowed, and what is left open and said to be."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from phobos.chat.dialects import lark
from phobos.chat.schemas import resolve
from phobos.engine.constrained.endings import may_end
from phobos.engine.constrained.flat_schemas import flatten, loosen_texts
from phobos.engine.constrained.grammar import is_held
from phobos.engine.constrained.schemas import MAX_BYTES, MAX_DEPTH, Enforced, enforce

NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}


@pytest.mark.parametrize(
    ("schema", "ends"),
    [
        ({}, True),
        ({"type": "integer"}, True),
        ({"$defs": {"node": {**NODE, "required": ["next"]}}, "$ref": "#/$defs/node"}, False),
        ({"$defs": {"node": NODE}, "$ref": "#/$defs/node"}, True),
        ({"$ref": "#"}, False),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, False),
        ({"type": "array", "items": {"$ref": "#"}}, True),
        ({"type": ["array", "null"], "items": {"$ref": "#"}, "minItems": 1}, True),
        ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, True),
        ({"anyOf": [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}]}, False),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, False),
        ({"type": "array", "prefixItems": [{}, {}], "items": False, "minItems": 2}, True),
        ({"type": "array", "prefixItems": [{}], "items": False, "minItems": 2}, False),
        ({"required": "a", "anyOf": {}, "properties": 3, "type": 4, "$ref": 5}, True),
    ],
)
def test_schemas_that_no_finite_value_fits(schema: dict[str, Any], ends: bool) -> None:
    assert may_end(schema) is ends


def levels() -> dict[str, Any]:
    """A schema that grows to 2^200 places when references are followed."""
    found = {
        f"n{i}": {
            "type": "object",
            "properties": {"a": {"$ref": f"#/$defs/n{i + 1}"}, "b": {"$ref": f"#/$defs/n{i + 1}"}},
            "required": ["a", "b"],
        }
        for i in range(200)
    }
    found["n200"] = {"type": "null"}
    return {"$defs": found, "$ref": "#/$defs/n0"}


def test_a_schema_made_to_take_long_is_answered() -> None:
    assert may_end(levels())
    assert len(json.dumps(enforce(levels(), is_held).schema)) < 2_000_000


def test_resolve() -> None:
    root = {"a/b": [{"c~": 1}]}
    assert resolve("#/a~1b/0/c~0", root) == 1
    assert resolve("#", root) is root
    assert resolve("#/no", root) is None and resolve("http://x#/a", root) is None and resolve("#/a~1b/7", root) is None


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def open_of(schema: dict[str, Any]) -> tuple[str, ...]:
    enforced = enforce(of(x=schema), is_held)
    assert is_held(enforced.schema)
    return tuple(place.removeprefix("properties.x").lstrip(".") for place in enforced.left_open)


WHOLE = [
    {"description": "anything"},
    {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {}},
    {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 3}]},
    {"oneOf": [{"type": "integer"}, {"type": "string"}]},
    {"oneOf": [of(k={"const": "a"}) | {"required": ["k"]}, of(k={"const": "b"}) | {"required": ["k"]}]},
    {"enum": ["a", 1, None]},
    {"type": "integer", "minimum": -(1 << 63), "maximum": (1 << 63) - 1},
    {"type": "integer", "minimum": 0, "maximum": (1 << 64) - 1},
    {"type": "number", "minimum": -1.7976931348623157e308, "maximum": 3.4028234663852886e38},
    {"type": "string", "pattern": "^2", "minLength": 2, "format": "date"},
    {"allOf": [of(a={"type": "string"}), of(b={"type": "string"})]},
    {"allOf": [{"type": "string", "pattern": "^[a-z]+$"}, {"type": "string", "pattern": "b"}]},
    of(a={}) | {"required": ["b"]},
    of(a={}, b={}) | {"minProperties": 1},
    {"uniqueItems": False, "unevaluatedProperties": True},
    {"type": "array", "items": [{"type": "string"}], "additionalItems": False},
]


@pytest.mark.parametrize("schema", WHOLE, ids=lambda schema: json.dumps(schema)[:40])
def test_what_a_grammar_holds_leaves_nothing_open(schema: dict[str, Any]) -> None:
    assert open_of(schema) == ()


@pytest.mark.parametrize(
    ("schema", "left_open"),
    [
        ({"type": "string", "pattern": "^(?!.*bad).*$"}, ["pattern"]),
        ({"type": "string", "pattern": "(", "minLength": 2}, ["pattern"]),
        ({"type": "string", "pattern": 5, "format": 6}, ["pattern", "format"]),
        ({"type": "string", "format": "byte"}, ["format"]),
        ({"type": "string", "not": {"const": "a"}}, ["not"]),
        ({"type": "array", "uniqueItems": True}, ["uniqueItems"]),
        ({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 2}]}, ["oneOf"]),
        ({"type": "dict"}, ["type"]),
        ({"type": ["string", "dict"]}, ["type"]),
        ({"$ref": "http://elsewhere/x"}, ["$ref"]),
        ({"$ref": "#/$defs/gone"}, ["$ref"]),
        ({"enum": []}, ["enum"]),
        ({"type": "integer", "minimum": 5, "maximum": 3}, ["minimum"]),
        ({"type": "integer", "minimum": "five", "maxLength": -1}, ["minimum", "maxLength"]),
        ({"anyOf": []}, ["anyOf"]),
        ({"allOf": {}}, ["allOf"]),
        ("text", [""]),
        (of(a={}) | {"required": "a"}, ["required"]),
        (of(a={}) | {"required": ["b"], "additionalProperties": False}, ["required"]),
        ({"type": "object", "properties": [], "additionalProperties": 5}, ["properties", "additionalProperties"]),
        (of(a={}, b={}) | {"minProperties": 1, "additionalProperties": True}, ["minProperties"]),
        ({"type": "object", "patternProperties": {"(?=a)": {}}}, ["patternProperties"]),
        (of(a={}) | {"if": {}, "then": {}, "dependentRequired": {"a": ["b"]}}, ["dependentRequired", "if"]),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
def test_what_a_grammar_cannot_hold_is_listed(schema: Any, left_open: list[str]) -> None:
    assert list(open_of(schema)) == left_open


def test_names_that_a_rule_restricts_become_a_pattern() -> None:
    for names in ({"pattern": "^[a-z]$"}, {"enum": ["a", "b.c"]}):
        found = enforce(
            {"type": "object", "propertyNames": names, "additionalProperties": {"type": "integer"}}, is_held
        )
        assert not found.left_open and found.schema["additionalProperties"] is False
        jsonschema.validate({"a": 1}, found.schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"bxc": 1}, found.schema)


def test_objects_that_name_their_properties_take_no_others() -> None:
    inner = {"type": "object", "properties": {"x": {}}}
    schema = of(a=inner, b={"type": "array", "items": inner}, c={"anyOf": [inner, {"type": "null"}]})
    closed = enforce(schema, is_held).schema
    assert closed["additionalProperties"] is False
    a, b, c = closed["properties"].values()
    assert all(child["additionalProperties"] is False for child in (a, b["items"], c))
    assert "additionalProperties" not in inner


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        of(a={}) | {"additionalProperties": True},
        of(a={}) | {"patternProperties": {"^x": {}}},
    ],
)
def test_other_objects_stay_open(schema: dict[str, Any]) -> None:
    assert enforce(schema, is_held).schema.get("additionalProperties") is not False


def test_a_union_beside_properties_holds_them_in_each_branch() -> None:
    schema = of(a={"type": "string"}, b={"type": "string"}) | {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    found = enforce(schema, is_held)
    assert not found.left_open and [branch["required"] for branch in found.schema["anyOf"]] == [["a"], ["b"]]
    assert all(set(branch["properties"]) == {"a", "b"} for branch in found.schema["anyOf"])


def test_arguments_are_objects_whatever_the_schema_says() -> None:
    assert enforce({}, is_held, is_object=True).schema["type"] == "object"
    for schema in ({"type": "string"}, {"type": ["object", "null"]}, {"enum": ["a"]}):
        found = enforce(schema, is_held, is_object=True)
        assert found.schema["type"] == "object" and found.left_open == ("type",)
    none = enforce({"type": "object"}, is_held, is_object=True)
    assert none.schema["additionalProperties"] is False and not none.left_open


def test_what_cannot_be_met_or_is_too_much_is_left_open_as_a_whole() -> None:
    endless = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    assert enforce(endless, is_held) == Enforced({}, ("",))
    large = enforce({"enum": ["x" * 40 for _ in range(MAX_BYTES // 40)]}, is_held, is_object=True)
    assert large.schema == {"type": "object"} and "bytes" in large.left_open[0]
    deep: dict[str, Any] = {"type": "string", "pattern": "(?=deep)"}
    for _ in range(MAX_DEPTH + 5):
        deep = {"type": "array", "items": deep}
    assert len(enforce(deep, is_held).left_open) == 1


TREE = {
    **of(x={"$ref": "#/$defs/N"}),
    "$defs": {"N": of(v={"type": "integer"}, kids={"type": "array", "items": {"$ref": "#/$defs/N"}})},
}


def test_schemas_are_made_flat_for_arguments_that_are_no_json() -> None:
    def flat(schema: dict[str, Any]) -> Enforced:
        return loosen_texts(flatten(enforce(of(x=schema), is_held)))

    tree = loosen_texts(flatten(enforce(TREE, is_held)))
    assert "$ref" not in json.dumps(tree.schema) and not tree.left_open
    jsonschema.validate({"x": {"v": 1, "kids": [{"v": 2, "kids": [{"v": 3, "kids": []}]}]}}, tree.schema)
    assert flat({"anyOf": [{"type": "boolean"}, {"type": "integer", "minimum": 2}]}).schema["properties"]["x"] == {
        "type": ["boolean", "integer"],
        "minimum": 2,
    }
    mixed = flat({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 2}]})
    assert mixed.schema["properties"]["x"] == {"type": ["string", "integer"]} and mixed.left_open == ("properties.x",)
    assert flat({"type": ["string", "integer"]}).left_open == ()
    k = {"required": ["k"]}
    either = flat({"oneOf": [of(a={}, k={"const": "x"}) | k, of(b={}, k={"const": "y"}) | k]})
    assert list(either.schema["properties"]["x"]["properties"]) == ["a", "k", "b"]
    assert either.left_open == ("properties.x.oneOf",)


@pytest.mark.parametrize(
    ("regex", "written"),
    [
        ("a/b", r"/a\/b/"),
        (r"a\/b", r"/a\/b/"),
        ("a\nb", r"/a\nb/"),
        (r"\d\D[\d_]\w", "/[0-9][^0-9][0-9_][0-9A-Za-z_]/"),
        (r"[^\W]\\d", r"/[^\W]\\d/"),
        ("a\\", "/a\\/"),
    ],
)
def test_patterns_are_written_for_lark(regex: str, written: str) -> None:
    assert lark.pattern(regex) == written
