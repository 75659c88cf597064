"""JSON schemas before they become grammars: what is refused at once, and what is narrowed.

Refused is a schema that is too large or too deep, or that no finite value fits because its required parts need
themselves. Narrowed are objects that name their properties and say nothing of others: they take no others, so that a
model does not make some up; every value that is left still fits the schema as it was sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MAX_BYTES = 256 << 10
MAX_DEPTH = 64
MAX_PATH = 100  # required parts inside one another that are followed
_CHILDREN = ("properties", "$defs", "definitions", "patternProperties")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")


def find_fault(schema: Mapping[str, Any]) -> str | None:
    """Why this schema cannot be met, as the end of a sentence; None where nothing is known against it."""
    if _depth(schema) > MAX_DEPTH:
        return f"is nested deeper than {MAX_DEPTH} levels"
    n_bytes = len(json.dumps(schema, ensure_ascii=False).encode("utf-8", "replace"))
    if n_bytes > MAX_BYTES:
        return f"takes {n_bytes} bytes, and at most {MAX_BYTES} can be enforced"
    if not _Ends(schema).may_end(schema):
        return "cannot be met: its required parts need themselves without an end"
    return None


def _depth(value: Any) -> int:
    """Levels of nesting, counted without recursion."""
    deepest, level = 0, [value]
    while level:
        deepest += 1
        inner: list[Any] = []
        for item in level:
            if isinstance(item, Mapping):
                inner += [child for child in item.values() if isinstance(child, Mapping | list)]
            elif isinstance(item, list):
                inner += [child for child in item if isinstance(child, Mapping | list)]
        # A list of schemas is no level of its own.
        level = inner
        if deepest > 4 * MAX_DEPTH:
            break
    return deepest // 2


class _Ends:
    """Finds whether some finite value may fit a schema. What was found to end is remembered; after very many steps, or
    very far inside, a schema has the benefit of the doubt."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._known: set[int] = set()
        self._n_left = 20_000

    def may_end(self, schema: Any, path: tuple[int, ...] = ()) -> bool:
        """`path` holds the schemas that this one is a required part of."""
        if not isinstance(schema, Mapping) or "enum" in schema or "const" in schema:
            return schema is not False
        self._n_left -= 1
        if id(schema) in self._known or self._n_left < 0 or len(path) > MAX_PATH:
            return True
        if id(schema) in path or not self._parts_end(schema, (*path, id(schema))):
            return False
        self._known.add(id(schema))
        return True

    def _parts_end(self, schema: Mapping[str, Any], path: tuple[int, ...]) -> bool:
        reference = schema.get("$ref")
        if isinstance(reference, str):
            target = resolve(reference, self._root)
            if target is not None and not self.may_end(target, path):
                return False
        if not all(self.may_end(part, path) for part in _listed(schema, "allOf")):
            return False
        for key in ("anyOf", "oneOf"):
            branches = _listed(schema, key)
            if branches and not any(self.may_end(part, path) for part in branches):
                return False
        kinds = schema.get("type", ())
        kinds = {kinds} if isinstance(kinds, str) else set(map(str, kinds if isinstance(kinds, list) else ()))
        if kinds - {"object", "array"} or not (kinds or "properties" in schema):
            return True
        if "array" in kinds and self._array_ends(schema, path):
            return True
        return (not kinds or "object" in kinds) and self._object_ends(schema, path)

    def _array_ends(self, schema: Mapping[str, Any], path: tuple[int, ...]) -> bool:
        least = schema.get("minItems", 0)
        first = _listed(schema, "prefixItems")
        if not isinstance(least, int) or not all(self.may_end(item, path) for item in first[:least]):
            return not isinstance(least, int)
        return least <= len(first) or self.may_end(schema.get("items", True), path)

    def _object_ends(self, schema: Mapping[str, Any], path: tuple[int, ...]) -> bool:
        properties = schema.get("properties", {})
        if not isinstance(properties, Mapping):
            return True
        return all(self.may_end(properties[name], path) for name in _listed(schema, "required") if name in properties)


def _listed(schema: Mapping[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def resolve(reference: str, root: Any) -> Any:
    """What a reference inside the schema names; None where it names nothing in it."""
    if not reference.startswith("#"):
        return None
    found = root
    for part in filter(None, reference[1:].split("/")):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found


def close_objects(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with objects narrowed; as it is where parts of it are combined, because then one part does not know
    the properties of the other."""
    if _combines(schema):
        return dict(schema)
    closed: dict[str, Any] = _close(schema)
    return closed


def _combines(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(map(_combines, schema))
    if not isinstance(schema, Mapping):
        return False
    if "allOf" in schema or ("properties" in schema and any(key in schema for key in ("anyOf", "oneOf", "$ref", "if"))):
        return True
    return any(_combines(value) for key, value in schema.items() if key not in ("enum", "const", "default", "examples"))


def _close(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    closed = dict(schema)
    for key in _CHILDREN:
        if isinstance(closed.get(key), Mapping):
            closed[key] = {name: _close(child) for name, child in closed[key].items()}
    for key in _LISTS:
        if isinstance(closed.get(key), list):
            closed[key] = [_close(child) for child in closed[key]]
    for key in _SINGLE:
        if isinstance(closed.get(key), Mapping):
            closed[key] = _close(closed[key])
    properties = closed.get("properties")
    if properties and isinstance(properties, Mapping) and "patternProperties" not in closed:
        required = closed.get("required", ())
        if all(name in properties for name in required):
            closed.setdefault("additionalProperties", False)
    return closed
