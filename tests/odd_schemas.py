"""Schemas as the generators of common libraries write them, for tests of what is made of them.

Each is written after what one of them emits: pydantic, zod, schemars, protobuf, or people by hand.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def of(*required: str, **properties: Any) -> Schema:
    """An object of these properties."""
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


TEXT, COUNT = {"type": "string", "maxLength": 8}, {"type": "integer", "minimum": 0, "maximum": 99}
POINT = of("x", x=COUNT, y=COUNT)
LEAF = of("v", v=COUNT, next={"anyOf": [{"$ref": "#/$defs/Leaf"}, {"type": "null"}]})

ODD: dict[str, Schema] = {
    "described": of("any", any={"description": "whatever fits"}),
    "titled": of("any", any={"title": "Any", "default": None}),
    "record": of("m", m={"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {}}),
    "record_of_keys": of(
        "m", m={"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": COUNT}
    ),
    "reference": {"$defs": {"P": POINT}, **of("p", p={"$ref": "#/$defs/P"})},
    "described_reference": {"definitions": {"P": POINT}, **of("p", p={"$ref": "#/definitions/P", "description": "d"})},
    "list_of_references": {
        "$defs": {"P": POINT},
        **of("p", p={"type": "array", "items": {"$ref": "#/$defs/P"}, "maxItems": 2}),
    },
    "optional_reference": {"$defs": {"P": POINT}, **of("p", p={"anyOf": [{"$ref": "#/$defs/P"}, {"type": "null"}]})},
    "whole_reference": {"$defs": {"P": POINT}, "$ref": "#/$defs/P"},
    "tree": {"$defs": {"Leaf": LEAF}, **of("root", root={"$ref": "#/$defs/Leaf"})},
    "itself": of("v", v=COUNT, again={"$ref": "#"}),
    "one_of_all": of("p", p={"allOf": [POINT], "default": {"x": 1}}),
    "both": {"allOf": [of("a", a=TEXT), of("b", b=COUNT)]},
    "apart": of(
        "x", x={"allOf": [{"type": "string", "pattern": "^[ab]+$"}, {"type": "string", "pattern": "^.{2,4}$"}]}
    ),
    "text_or_number": of("x", x={"anyOf": [COUNT, TEXT]}),
    "types": of("x", x={"type": ["string", "number", "boolean", "null"]}),
    "text_or_list": of("x", x={"anyOf": [TEXT, {"type": "array", "items": TEXT, "maxItems": 2}]}),
    "told_apart": of("x", x={"oneOf": [of("k", "n", k={"const": "a"}, n=COUNT), of("k", k={"const": "b"}, t=TEXT)]}),
    "overlapping": of("x", x={"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 0}]}),
    "either_top": {"anyOf": [of("a", a=TEXT), of("b", b=COUNT)]},
    "one_needed": {**of(a=TEXT, b=COUNT), "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "mixed_values": of("x", x={"enum": ["low", 1, True, None]}),
    "nothing_or": of("x", x={"type": ["string", "null"], "enum": ["a", None]}),
    "flag_or_word": of("x", x={"anyOf": [{"type": "boolean"}, {"const": "auto"}]}),
    "pair": of("x", x={"type": "array", "prefixItems": [COUNT, TEXT], "items": False, "minItems": 2}),
    "old_pair": of("x", x={"type": "array", "items": [COUNT, TEXT], "additionalItems": False, "minItems": 2}),
    "anything_listed": of("x", x={"type": "array", "maxItems": 2}),
    "always": of("x", x=True),
    "not_that": of("x", x={"type": "string", "maxLength": 4, "not": {"const": "a"}}),
    "looks_around": of("x", x={"type": "string", "maxLength": 4, "pattern": "^(?!no).*$"}),
    "unknown_format": of("x", x={"type": "string", "maxLength": 4, "format": "password"}),
    "dated": of("x", x={"type": "string", "format": "date"}),
    "long_integer": of("x", x={"type": "integer", "minimum": -(1 << 63), "maximum": (1 << 63) - 1}),
    "unsigned": of("x", x={"type": "integer", "minimum": 0, "maximum": (1 << 64) - 1}),
    "wide_float": of("x", x={"type": "number", "minimum": -3.4028234663852886e38, "maximum": 3.4028234663852886e38}),
    "distinct": of("x", x={"type": "array", "items": COUNT, "uniqueItems": True, "maxItems": 2}),
    "some_member": of("x", x={"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": COUNT}),
    "by_pattern": of("x", x={"type": "object", "patternProperties": {"^[a-c]$": COUNT}, "additionalProperties": False}),
    "dependent": {**of("a", a=TEXT, b=TEXT), "dependentRequired": {"a": ["b"]}},
    "conditional": {**of("a", a=TEXT), "if": {"required": ["a"]}, "then": {"required": ["b"]}},
    "undeclared": of("a", "ghost", a=TEXT),
    "no_such_type": of("x", x={"type": "float"}),
    "bare_bound": of("x", x={"minimum": 0}),
    "nothing": {},
    "openapi": {"$defs": {"P": POINT}, **of("p", p={"$ref": "#/$defs/P", "nullable": True})},
    "gone": of("x", x={"$ref": "#/$defs/Gone"}),
    "elsewhere": of("x", x={"$ref": "https://example.com/schema.json"}),
}
