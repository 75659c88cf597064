"""Whether a JSON schema can be met at all by a value that comes to an end.

Required parts that need themselves never do; a model held to such a schema would write on for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phobos.chat.schemas import resolve

MAX_PATH = 100  # required parts inside one another that are followed


def may_end(schema: Mapping[str, Any]) -> bool:
    """Whether some finite value may fit; a schema made to take long has the benefit of the doubt."""
    return _Ends(schema).may_end(schema)


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
