"""What is refused of a JSON schema before it becomes a grammar, and what is narrowed."""

from __future__ import annotations

from typing import Any

import pytest

from phobos.chat.dialects import lark
from phobos.chat.messages import ToolSpec
from phobos.engine.constrained.schemas import MAX_DEPTH, close_objects, find_fault, resolve

NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({}, None),
        ({"type": "integer"}, None),
        ({"$defs": {"node": {**NODE, "required": ["next"]}}, "$ref": "#/$defs/node"}, "without an end"),
        ({"$defs": {"node": NODE}, "$ref": "#/$defs/node"}, None),
        ({"$ref": "#"}, "without an end"),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "without an end"),
        ({"type": "array", "items": {"$ref": "#"}}, None),
        ({"type": ["array", "null"], "items": {"$ref": "#"}, "minItems": 1}, None),
        ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, None),
        ({"anyOf": [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}]}, "without an end"),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "without an end"),
        ({"type": "array", "prefixItems": [{}, {}], "items": False, "minItems": 2}, None),
        ({"type": "array", "prefixItems": [{}], "items": False, "minItems": 2}, "without an end"),
        ({"enum": list(range(100_000))}, "bytes, and at most"),
        ({"required": "a", "anyOf": {}, "properties": 3, "type": 4, "$ref": 5}, None),
    ],
)
def test_find_fault(schema: dict[str, Any], words: str | None) -> None:
    fault = find_fault(schema)
    assert fault is None if words is None else words in (fault or "")


def test_depth() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(MAX_DEPTH - 2):
        schema = {"type": "object", "properties": {"a": schema}}
    assert find_fault(schema) is None
    for _ in range(200):
        schema = {"type": "object", "properties": {"a": schema}}
    assert "deeper than" in (find_fault(schema) or "")


def test_a_schema_made_to_take_long_is_answered() -> None:
    levels = {
        f"n{i}": {
            "type": "object",
            "properties": {"a": {"$ref": f"#/$defs/n{i + 1}"}, "b": {"$ref": f"#/$defs/n{i + 1}"}},
            "required": ["a", "b"],
        }
        for i in range(200)
    }
    levels["n200"] = {"type": "null"}
    assert find_fault({"$defs": levels, "$ref": "#/$defs/n0"}) is None


def test_resolve() -> None:
    root = {"a/b": [{"c~": 1}]}
    assert resolve("#/a~1b/0/c~0", root) == 1
    assert resolve("#", root) is root
    assert resolve("#/no", root) is None and resolve("http://x#/a", root) is None and resolve("#/a~1b/7", root) is None


def test_objects_that_name_their_properties_take_no_others() -> None:
    inner = {"type": "object", "properties": {"x": {}}}
    closed = close_objects({"properties": {"a": inner, "b": {"type": "array", "items": inner}}, "$defs": {"d": inner}})
    assert closed["additionalProperties"] is False
    for child in (closed["properties"]["a"], closed["properties"]["b"]["items"], closed["$defs"]["d"]):
        assert child["additionalProperties"] is False
    assert "additionalProperties" not in inner


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {"a": {}}, "additionalProperties": True},
        {"type": "object", "properties": {"a": {}}, "patternProperties": {"^x": {}}},
        {"type": "object", "properties": {"a": {}}, "required": ["b"]},
        {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
        {"properties": {"a": {}}, "anyOf": [{"required": ["a"]}, {"properties": {"b": {}}}]},
        {"const": {"properties": {"a": {}}}},
    ],
)
def test_other_objects_are_left_alone(schema: dict[str, Any]) -> None:
    assert close_objects(schema) == schema


def test_arguments_of_a_tool_without_any_are_empty() -> None:
    tool = ToolSpec("f", "", {"type": "object", "properties": {}})
    assert lark.arguments_schema(tool) == {"type": "object", "properties": {}, "additionalProperties": False}


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
