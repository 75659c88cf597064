"""What of a JSON schema binds an answer: tools' parameters and output formats alike.

`enforce` turns a schema into one that the grammar library holds, and every value it leaves may fail the schema only at
the places it lists as left open. Two things happen on the way. What the library cannot hold is left open: keywords it
does not know, patterns with look-around, formats without a rule. And some things are narrowed, so that all that is
left still fits: objects that name their properties take no others, which keeps a model from making some up; bounds
that no number has an equal of are drawn in to ones that the library can count to; names that a pattern or a list
restricts become a pattern for properties.

Whether the library holds something is not guessed: places with risky keywords are tried (`Holds`), innermost first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from phobos.chat.schemas import (
    ANNOTATIONS,
    MAX_DEPTH,
    TYPES,
    UNIONS,
    Schema,
    merge,
    normalise,
    or_null,
    resolve,
)
from phobos.engine.constrained.endings import may_end

MAX_BYTES = 256 << 10
MAX_BRANCHES = 64  # of a union that is spread over what stands beside it
Holds = Callable[[Schema], bool]

_INTEGER_BOUND, _NUMBER_BOUND = 9 * 10**18, 10**15
_BOUNDS = {"minimum": -1, "exclusiveMinimum": -1, "maximum": 1, "exclusiveMaximum": 1}
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
# Left out one after another where a place is not held, those that are most often the reason first.
_RISKY = (
    "pattern", "format", "multipleOf", "minProperties", "maxProperties", "patternProperties", "minimum", "maximum",
    "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems", "enum", "const",
    "prefixItems", "oneOf", "allOf", "anyOf", "required", "items", "properties", "additionalProperties", "type",
)  # fmt: skip
_KEPT = frozenset(_RISKY)
_SURE = frozenset(("type", "properties", "items", "additionalProperties", "required", "anyOf", "$ref"))
_NOT_HELD = frozenset(
    (
        "not",
        "if",
        "contains",
        "minContains",
        "maxContains",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "unevaluatedProperties",
        "unevaluatedItems",
        "additionalItems",
        "$dynamicRef",
        "$recursiveRef",
        "propertyNames",
        "uniqueItems",
    )
)
_SAYS_NOTHING: Mapping[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "additionalItems": (True, {}),
    "propertyNames": (True, {}, {"type": "string"}),
    "contains": (),
    "minContains": (0,),
}


@dataclass(frozen=True)
class Enforced:
    """What binds, as plain JSON schema, and the places in the schema's normal form that are left to the client."""

    schema: Schema
    left_open: tuple[str, ...] = ()


def enforce(schema: Mapping[str, Any], holds: Holds, *, is_object: bool = False, is_flat: bool = False) -> Enforced:
    """What of a schema binds. `is_object`: the value is an object whatever the schema says, as arguments are;
    `is_flat`: it is to be made flat, which has no place for patterns of names."""
    n_bytes = len(json.dumps(schema, ensure_ascii=False, default=str).encode("utf-8", "replace"))
    if n_bytes > MAX_BYTES:
        return Enforced({"type": "object"} if is_object else {}, (f"(all of its {n_bytes} bytes)",))
    normal = normalise(schema)
    return _Enforcer(normal, holds, is_flat).run(is_object)


@dataclass
class _Enforcer:
    """One schema's way from its normal form to what binds."""

    root: Schema
    holds: Holds
    is_flat: bool
    open: dict[str, None] = field(default_factory=dict)

    def run(self, is_object: bool) -> Enforced:
        top = {key: value for key, value in self.root.items() if key != "$defs"}
        if is_object and (top.get("type", "object") != "object" or top.get("nullable")):
            self.leave("", "type")
            top = {key: value for key, value in top.items() if key not in ("type", "nullable", "enum", "const")}
        if is_object:
            top = {"type": "object", **top}
        definitions = {
            name: self.place(child, f"$defs.{name}", 1) for name, child in self.root.get("$defs", {}).items()
        }
        found = self.place(top, "", 0)
        found = found if isinstance(found, dict) else {}
        if is_object and _is_bare_object(found):
            found["additionalProperties"] = False  # a tool that names no arguments takes none
        whole = {**found, **({"$defs": definitions} if definitions else {})}
        if not may_end(whole) or not self.holds(whole):
            self.leave("", "")
            whole = {"type": "object"} if is_object else {}
        return Enforced(whole, tuple(self.open))

    def leave(self, path: str, keyword: str) -> None:
        """A keyword at a place is left to the client."""
        self.open[".".join(filter(None, (path, keyword)))] = None

    def place(self, schema: Any, path: str, depth: int, *, closes: bool = True) -> Any:
        """What binds at one place, tried. `closes`: an object that names its properties takes no others."""
        if schema is True or schema is False:
            return {} if schema else False
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
            self.leave(path, "")
            return {}
        nullable = schema.get("nullable") is True
        found = self._spread(dict(schema), path, depth) or self._keywords(dict(schema), path, depth, closes)
        found = self._try(found, path)
        return or_null(found) if nullable else found

    def _try(self, schema: Schema, path: str) -> Schema:
        """The schema without what the library does not hold."""
        if schema.keys() <= _SURE:
            return schema
        for keyword in (None, *_RISKY):
            if keyword is not None and keyword not in schema:
                continue
            if keyword is not None:
                self.leave(path, keyword)
                schema = {key: value for key, value in schema.items() if key != keyword}
                if keyword == "patternProperties":
                    schema.pop("additionalProperties", None)
            if self._holds_here(schema):
                return schema
        return {}

    def _holds_here(self, schema: Schema) -> bool:
        """Whether the library holds a place; definitions are not tried along with it."""
        return self.holds(_without_references(schema))

    # Unions beside other keywords

    def _spread(self, schema: Schema, path: str, depth: int) -> Schema | None:
        """A union whose branches hold what stands beside it, so that each is an object of its own."""
        keyword = next((key for key in UNIONS if isinstance(schema.get(key), list) and schema[key]), None)
        beside = {
            key: value for key, value in schema.items() if key not in (keyword, "nullable") and key not in ANNOTATIONS
        }
        if keyword is None or not isinstance(beside.get("properties", {}), dict):
            return None
        branches = schema[keyword]
        if len(branches) > MAX_BRANCHES or (set(UNIONS) <= schema.keys()):
            return None
        spread = []
        for branch in branches:
            joined = merge(beside, branch) if isinstance(branch, dict) and beside else branch
            if joined is None:
                return None
            spread.append(joined)
        places = [self.place(branch, f"{path}.{keyword}.{i}".lstrip("."), depth + 1) for i, branch in enumerate(spread)]
        places = [place for place in places if place is not False]
        if not places:
            return None
        if keyword == "oneOf" and len(places) > 1 and not self._holds_here({"oneOf": places}):
            self.leave(path, "oneOf")
            keyword = "anyOf"
        return {keyword: places}

    # One place without

    def _keywords(self, schema: Schema, path: str, depth: int, closes: bool) -> Schema:
        reference = schema.get("$ref")
        if isinstance(reference, str):
            if resolve(reference, self.root) is not None:
                return {"$ref": reference}
            self.leave(path, "$ref")
        found: Schema = {key: value for key, value in schema.items() if key in _KEPT}
        for keyword in sorted(_NOT_HELD & schema.keys()):
            says_nothing = schema[keyword] in _SAYS_NOTHING.get(keyword, ())
            if not says_nothing and (self.is_flat or not _name_patterns(schema, keyword, found)):
                self.leave(path, keyword)
        self._settle_type(found, path)
        self._settle_numbers(found, path)
        self._settle_lists(found, path, depth)
        self._settle_object(found, path, depth, closes)
        for keyword in ("pattern", "format"):
            if keyword in found and not isinstance(found[keyword], str):
                self.leave(path, keyword)
                del found[keyword]
        return found

    def _settle_type(self, found: Schema, path: str) -> None:
        kinds = found.get("type")
        if kinds is None:
            return
        known = [kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind in TYPES]
        if not known or (isinstance(kinds, list) and len(known) < len(kinds)):
            self.leave(path, "type")
            del found["type"]

    def _settle_numbers(self, found: Schema, path: str) -> None:
        limit = _INTEGER_BOUND if found.get("type") == "integer" else _NUMBER_BOUND
        for keyword, sign in _BOUNDS.items():
            value = found.get(keyword)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                self.leave(path, keyword)
                del found[keyword]
            elif value * sign > limit:
                found[keyword] = limit * sign
        for keyword in _COUNTS:
            value = found.get(keyword)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                self.leave(path, keyword)
                del found[keyword]

    def _settle_lists(self, found: Schema, path: str, depth: int) -> None:
        for keyword in ("allOf", *UNIONS, "prefixItems"):
            values = found.get(keyword)
            if values is None:
                continue
            if not isinstance(values, list) or not values:
                self.leave(path, keyword)
                del found[keyword]
                continue
            closes = keyword != "allOf"
            found[keyword] = [
                self.place(value, _join(path, keyword, str(i)), depth + 1, closes=closes)
                for i, value in enumerate(values)
            ]
        if isinstance(found.get("items"), bool | Mapping):
            found["items"] = self.place(found["items"], _join(path, "items"), depth + 1)
        elif "items" in found:
            self.leave(path, "items")
            del found["items"]

    def _settle_object(self, found: Schema, path: str, depth: int, closes: bool) -> None:
        for keyword in ("properties", "patternProperties"):
            children = found.get(keyword)
            if children is None:
                continue
            if not isinstance(children, Mapping):
                self.leave(path, keyword)
                del found[keyword]
                continue
            found[keyword] = {
                name: self.place(child, _join(path, keyword, name), depth + 1) for name, child in children.items()
            }
        if isinstance(found.get("additionalProperties"), Mapping):
            place = _join(path, "additionalProperties")
            found["additionalProperties"] = self.place(found["additionalProperties"], place, depth + 1)
        elif not isinstance(found.get("additionalProperties", True), bool):
            self.leave(path, "additionalProperties")
            del found["additionalProperties"]
        self._settle_required(found, path)
        spreads = any(key in found for key in ("allOf", "$ref", *UNIONS))
        if closes and found.get("properties") and not found.get("patternProperties") and not spreads:
            found.setdefault("additionalProperties", False)

    def _settle_required(self, found: Schema, path: str) -> None:
        """Required names that are not declared are, as the schema would have their values."""
        required = found.get("required")
        if required is None:
            return
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            self.leave(path, "required")
            del found["required"]
            return
        others = found.get("additionalProperties", True)
        properties = dict(found.get("properties", {}))
        for name in required:
            if name in properties or found.get("patternProperties"):
                continue
            if others is False:
                self.leave(path, "required")
                found["required"] = [name for name in required if name in properties]
                return
            properties[name] = {} if others is True else others
        if properties:
            found["properties"] = properties


def _name_patterns(schema: Schema, keyword: str, found: Schema) -> bool:
    """Put a rule for properties' names as a pattern for properties; whether that was possible."""
    names = schema[keyword]
    if keyword != "propertyNames" or not isinstance(names, dict) or schema.get("properties"):
        return False
    if "patternProperties" in schema or not names.keys() <= {"type", "pattern", "enum", *ANNOTATIONS}:
        return False
    pattern = names.get("pattern")
    values = names.get("enum")
    if values is not None and pattern is None and isinstance(values, list) and values:
        if not all(isinstance(value, str) for value in values):
            return False
        pattern = f"^({'|'.join(map(_escape, values))})$"
    if not isinstance(pattern, str):
        return False
    value = found.get("additionalProperties", {})
    found["patternProperties"] = {pattern: {} if value is True else value}
    found["additionalProperties"] = False
    return True


def _escape(text: str) -> str:
    return "".join(char if char.isalnum() or char in "_- " else f"\\{char}" for char in text)


def _is_bare_object(schema: Schema) -> bool:
    return not schema.get("properties") and schema.keys() <= {"type", "properties", "required"}


def _without_references(value: Any) -> Any:
    """A schema with anything where it names something."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            return {}
        return {key: _without_references(child) for key, child in value.items()}
    return [_without_references(child) for child in value] if isinstance(value, list) else value


def _join(*parts: str) -> str:
    return ".".join(filter(None, parts))


def list_places(prefix: str, left_open: Iterable[str]) -> tuple[str, ...]:
    """Places as a client reads them."""
    return tuple(_join(prefix, place) for place in left_open)
