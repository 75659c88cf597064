"""What binds, for dialects whose arguments are not JSON: their grammars are written from types, constants and members.

References are followed as deep as values may nest, unions become one schema with the types of all their branches where
that says the same, and what is left out is listed. A text that could be of several types is read as the first it looks
like, so where text is one of them nothing else is bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phobos.chat.schemas import UNIONS, Schema, kinds_of, merge, resolve
from phobos.engine.constrained.schemas import Enforced

MAX_TURNS = 3  # times that a schema is followed into itself
_LOOSE = {"type", "properties", "additionalProperties"}


def flatten(enforced: Enforced, path: str = "") -> Enforced:
    """The same, flat; see the module."""
    flattener = _Flattener(enforced.schema)
    top = flattener.place({key: value for key, value in enforced.schema.items() if key != "$defs"}, path, ())
    if top is None:
        flattener.open[path] = None
    return Enforced(top or {"type": "object"}, (*enforced.left_open, *flattener.open))


class _Flattener:
    def __init__(self, root: Schema) -> None:
        self._root = root
        self.open: dict[str, None] = {}

    def place(self, schema: Any, path: str, inside: tuple[str, ...]) -> Any:
        """One place, flat; None where the references end."""
        if not isinstance(schema, Mapping):
            return schema
        reference = schema.get("$ref")
        if isinstance(reference, str):
            if inside.count(reference) >= MAX_TURNS:
                return None
            return self.place(resolve(reference, self._root), path, (*inside, reference))
        flat = self._members(dict(schema), path, inside)
        if flat is None:
            return None
        if "allOf" in flat:
            self._leave(path, "allOf")
            del flat["allOf"]
        key = next((key for key in UNIONS if key in flat), None)
        return flat if key is None else self._union(flat, key, path, inside)

    def _leave(self, path: str, keyword: str) -> None:
        self.open[f"{path}.{keyword}".lstrip(".")] = None

    def _members(self, flat: Schema, path: str, inside: tuple[str, ...]) -> Schema | None:
        """The children, flat; optional ones without an end are left out."""
        required = flat.get("required", ())
        if isinstance(flat.get("properties"), Mapping):
            children = {
                name: self.place(child, f"{path}.properties.{name}".lstrip("."), inside)
                for name, child in flat["properties"].items()
            }
            if any(children[name] is None for name in required if name in children):
                return None
            flat["properties"] = {name: child for name, child in children.items() if child is not None}
        if "prefixItems" in flat:
            self._leave(path, "prefixItems")
            first = flat.pop("prefixItems")
            if "items" in flat:
                self._leave(path, "items")
            if flat.pop("items", None) is False:
                flat["maxItems"] = min(len(first), flat.get("maxItems", len(first)))
        if isinstance(flat.get("items"), Mapping):
            flat["items"] = self.place(flat["items"], f"{path}.items".lstrip("."), inside)
            if flat["items"] is None:
                if flat.get("minItems"):
                    return None
                flat |= {"items": {}, "maxItems": 0}
        if flat.pop("patternProperties", None) is not None:
            self._leave(path, "patternProperties")
            if flat.pop("additionalProperties", None) is not None:
                self._leave(path, "additionalProperties")
        if isinstance(flat.get("additionalProperties"), Mapping):
            others = self.place(flat["additionalProperties"], f"{path}.additionalProperties".lstrip("."), inside)
            flat["additionalProperties"] = False if others is None else others
        return flat

    def _union(self, flat: Schema, key: str, path: str, inside: tuple[str, ...]) -> Schema | None:
        """The one schema that takes what any branch does."""
        branches = [self.place(branch, path, inside) for branch in flat.pop(key)]
        branches = [branch for branch in branches if isinstance(branch, dict)]
        if not branches:
            return None
        kinds = [kinds_of(branch) for branch in branches]
        names = [name for found in kinds for name in found]
        is_apart = all(kinds) and len(set(names)) == len(names) and not {"integer", "number"} <= set(names)
        has_constants = any("enum" in branch or "const" in branch for branch in branches)
        if all("enum" in branch or "const" in branch for branch in branches):
            values = [value for branch in branches for value in branch.get("enum", [branch.get("const")])]
            return {**flat, "enum": values}
        if not all(kinds):
            self._leave(path, key)
            return flat
        united: Schema = {"type": list(dict.fromkeys(names)) if len(set(names)) > 1 else names[0]}
        if is_apart and not has_constants:
            for branch in branches:
                united |= {name: value for name, value in branch.items() if name != "type"}
        else:
            self._leave(path, key)
            united |= _unite_objects([branch for branch in branches if "object" in kinds_of(branch)])
        return merge(flat, united) or united


def _unite_objects(branches: list[Schema]) -> Schema:
    """An object that has any member of several."""
    if not branches:
        return {}
    properties: Schema = {}
    for branch in branches:
        for name, child in branch.get("properties", {}).items():
            known = properties.get(name, child)
            properties[name] = child if known == child else _unite(known, child)
    required = set.intersection(*(set(branch.get("required", ())) for branch in branches))
    return {"properties": properties, "required": [name for name in properties if name in required]}


def _unite(one: Any, other: Any) -> Schema:
    """What takes the values of two members of one name, loosely."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return {}
    if all("enum" in child or "const" in child for child in (one, other)):
        return {"enum": [value for child in (one, other) for value in child.get("enum", [child.get("const")])]}
    kinds = tuple(dict.fromkeys((*kinds_of(one), *kinds_of(other))))
    return {"type": kinds[0] if len(kinds) == 1 else list(kinds)} if kinds_of(one) and kinds_of(other) else {}


def loosen_texts(enforced: Enforced) -> Enforced:
    """The arguments of a tool with nothing bound but the types, where text is one of several."""
    left_open = list(enforced.left_open)
    properties = {}
    for name, child in enforced.schema.get("properties", {}).items():
        kinds = kinds_of(child) if isinstance(child, dict) else ()
        is_mixed = not kinds or ("string" in kinds and bool({*kinds} - {"string", "null"}) and "enum" not in child)
        binds = isinstance(child, dict) and any(key not in _LOOSE or child[key] for key in child if key != "type")
        properties[name] = ({"type": list(kinds)} if kinds else {}) if is_mixed else child
        if is_mixed and binds:
            left_open.append(f"properties.{name}")
    return Enforced({**enforced.schema, "properties": properties}, tuple(dict.fromkeys(left_open)))
