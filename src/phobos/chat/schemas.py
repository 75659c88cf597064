"""JSON schemas in the one form that templates, readers and grammars share.

Clients write the same thing in many ways. Here a nullable form (`type: [T, "null"]`, a two-branch `anyOf`, OpenAPI's
`nullable: true`) becomes `{T's schema, "nullable": true}`; a union of string constants one `enum`, a union of plain
types one list of them; a reference becomes what it names, and `allOf` one schema. An object without properties gets
empty ones. Nothing is refused and nothing is lost: what has no simpler form, or makes no sense, stays as it is, and
what of it binds an answer is decided in `engine/constrained/schemas.py`.

References inside themselves end in `$defs`, as do all where a schema would grow too large without them. Paths in a
normal form name its own places, not those of the schema as it was sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Schema = dict[str, Any]

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
UNIONS = ("anyOf", "oneOf")
MAX_DEPTH = 64  # levels of nesting that are looked into
MAX_NODES = 4000  # schemas in one schema, references followed
ANNOTATIONS = frozenset(
    (
        "title",
        "description",
        "default",
        "examples",
        "example",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$comment",
        "$schema",
        "$id",
        "id",
        "$anchor",
        "nullable",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "discriminator",
        "externalDocs",
        "xml",
    )
)
_DEFINITIONS = ("$defs", "definitions")
_MAPS = ("properties", "patternProperties")
_SINGLE = ("items", "additionalProperties")


def normalise(schema: Mapping[str, Any]) -> Schema:
    """The normal form of a schema. Pure; never fails."""
    return _Normaliser(schema).run()


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


def kinds_of(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """The types that a value of this normal form may have; none where it may have any."""
    kinds: list[str] = []
    kind = schema.get("type")
    branches = next((schema[key] for key in UNIONS if isinstance(schema.get(key), list)), None)
    if kind is not None:
        kinds = [kind] if isinstance(kind, str) else [str(name) for name in kind] if isinstance(kind, list) else []
    elif "const" in schema or isinstance(schema.get("enum"), list):
        kinds = list(map(type_of, schema["enum"] if "enum" in schema else [schema["const"]]))
    elif branches:
        each = [kinds_of(branch) if isinstance(branch, Mapping) else () for branch in branches]
        kinds = [kind for found in each for kind in found] if all(each) else []
    if kinds and schema.get("nullable"):
        kinds.append("null")
    return tuple(dict.fromkeys(kinds))


def type_of(value: Any) -> str:
    """The JSON type of a value."""
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (dict, "object")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "array"


def to_json_schema(schema: Mapping[str, Any]) -> Schema:
    """A normal form as plain JSON schema: `nullable` becomes a second type, or a null among the constants."""
    plain = {key: value for key, value in schema.items() if key != "nullable"}
    for key in (*_MAPS, *_DEFINITIONS):
        if isinstance(plain.get(key), dict):
            plain[key] = {name: _plain_child(child) for name, child in plain[key].items()}
    for key in (*UNIONS, "allOf", "prefixItems"):
        if isinstance(plain.get(key), list):
            plain[key] = [_plain_child(child) for child in plain[key]]
    for key in _SINGLE:
        if key in plain:
            plain[key] = _plain_child(plain[key])
    return or_null(plain) if schema.get("nullable") else plain


def _plain_child(child: Any) -> Any:
    return to_json_schema(child) if isinstance(child, dict) else child


def or_null(schema: Schema) -> Schema:
    """A plain schema that takes null as well."""
    schema = dict(schema)
    if "const" in schema:
        schema["enum"] = [schema.pop("const")]
    if isinstance(schema.get("enum"), list):
        schema["enum"] = [*schema["enum"], *([] if None in schema["enum"] else [None])]
    kinds = schema.get("type")
    if kinds is not None:
        kinds = kinds if isinstance(kinds, list) else [kinds]
        return {**schema, "type": kinds if "null" in kinds else [*kinds, "null"]}
    if "enum" in schema or not schema:
        return schema
    return {"anyOf": [schema, {"type": "null"}]}


class _Normaliser:
    """One schema's way to its normal form."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._n_nodes = 0
        self._names: dict[str, str] = {}  # references that stay, and their definitions' names
        self._waiting: list[str] = []

    def run(self) -> Schema:
        """The normal form."""
        top = self._node(self._root, (), 0)
        found = top if isinstance(top, dict) else {}
        definitions: Schema = {}
        while self._waiting:
            reference = self._waiting.pop()
            definitions[self._names[reference]] = self._node(resolve(reference, self._root), (reference,), 0)
        return {**found, "$defs": definitions} if definitions else found

    def _node(self, schema: Any, inside: tuple[str, ...], depth: int) -> Any:
        """The normal form of one place; `inside` are the references that led to it."""
        self._n_nodes += 1
        if not isinstance(schema, Mapping):
            return {} if schema is True else schema
        if depth > 2 * MAX_DEPTH:
            return dict(schema)
        normal = {key: value for key, value in schema.items() if key not in _DEFINITIONS}
        nullable = normal.pop("nullable", False) is True
        reference = normal.get("$ref")
        if isinstance(reference, str) and resolve(reference, self._root) is not None:
            del normal["$ref"]
            normal = self._join([self._target(reference, inside, depth)], normal, inside, depth)
        elif isinstance(normal.get("allOf"), list) and normal["allOf"]:
            branches = [self._node(branch, inside, depth + 1) for branch in normal.pop("allOf")]
            normal = self._join(branches, normal, inside, depth)
        else:
            normal = self._settle(normal, inside, depth)
        if nullable and normal.get("type") != "null":
            normal["nullable"] = True
        return normal

    def _target(self, reference: str, inside: tuple[str, ...], depth: int) -> Any:
        """What a reference names: in full, or by a name where it leads back or there is too much of it."""
        if reference not in inside and self._n_nodes < MAX_NODES:
            return self._node(resolve(reference, self._root), (*inside, reference), depth + 1)
        if reference not in self._names:
            name = re.sub(r"[^A-Za-z0-9_.-]", "_", reference.rpartition("/")[2].lstrip("#")) or "root"
            while name in self._names.values():
                name += "_"
            self._names[reference] = name
            self._waiting.append(reference)
        return {"$ref": f"#/$defs/{self._names[reference]}"}

    def _join(self, branches: Sequence[Any], beside: Schema, inside: tuple[str, ...], depth: int) -> Schema:
        """All of the branches, and what stands beside them, as one schema if it can be."""
        notes = {key: value for key, value in beside.items() if key in ANNOTATIONS}
        binding = {key: value for key, value in beside.items() if key not in ANNOTATIONS}
        parts = list(branches)
        if binding:
            parts.append(self._settle(binding, inside, depth))
        merged: Schema | None = {}
        for part in parts:
            merged = merge(merged, part) if merged is not None and isinstance(part, dict) else None
        if merged is None:
            return {"allOf": parts, **notes}
        return {**merged, **notes}

    # One schema without references

    def _settle(self, schema: Schema, inside: tuple[str, ...], depth: int) -> Schema:
        normal = self._children(dict(schema), inside, depth)
        unions = [key for key in UNIONS if isinstance(normal.get(key), list) and normal[key]]
        nullable = False
        if len(unions) == 1:
            normal, nullable = _settle_union(normal, unions[0])
        normal, from_type = _settle_type(normal)
        if (nullable or from_type) and normal.get("type") != "null":
            normal["nullable"] = True
        if normal.get("type") == "object" and "properties" not in normal:
            normal["properties"] = {}
        return normal

    def _children(self, normal: Schema, inside: tuple[str, ...], depth: int) -> Schema:
        def read(child: Any) -> Any:
            return self._node(child, inside, depth + 1)

        for key in _MAPS:
            if isinstance(normal.get(key), Mapping):
                normal[key] = {name: read(child) for name, child in normal[key].items()}
        if isinstance(normal.get("items"), list) and "prefixItems" not in normal:  # as older drafts have it
            normal["prefixItems"] = normal.pop("items")
            if "additionalItems" in normal:
                normal["items"] = normal.pop("additionalItems")
        for key in (*UNIONS, "prefixItems"):
            if isinstance(normal.get(key), list):
                normal[key] = [read(child) for child in normal[key]]
        for key in _SINGLE:
            if isinstance(normal.get(key), Mapping):
                normal[key] = read(normal[key])
        return normal


def _settle_union(schema: Schema, keyword: str) -> tuple[Schema, bool]:
    """The one schema a union stands for, if it stands for one, and whether null is allowed beside it."""
    branches = schema[keyword]
    outer = {key: value for key, value in schema.items() if key != keyword}
    concrete = [branch for branch in branches if not _is_null(branch)]
    n_null = len(branches) - len(concrete)
    if not all(isinstance(branch, dict) for branch in concrete) or (keyword == "oneOf" and n_null > 1):
        return schema, False
    if not concrete:
        return {**outer, "type": "null"}, False
    if len(concrete) == 1:
        inner = dict(concrete[0])
        if keyword == "oneOf" and n_null and inner.get("nullable"):
            return schema, False
        nullable = bool(inner.pop("nullable", False)) or bool(n_null)
        merged = merge(inner, {key: value for key, value in outer.items() if key not in ANNOTATIONS})
        if merged is None:
            return schema, False
        return {**merged, **{key: value for key, value in outer.items() if key in ANNOTATIONS}}, nullable
    constants = [_string_constants(branch) for branch in concrete]
    if all(constants) and outer.get("type", "string") == "string":
        values = [value for found in constants for value in found or ()]
        if keyword == "anyOf" or len(set(values)) == len(values):
            return {**outer, "type": "string", "enum": list(dict.fromkeys(values))}, bool(n_null)
    kinds = [_plain_kinds(branch) for branch in branches]
    if all(kinds) and "type" not in outer:
        names = [name for found in kinds for name in found or ()]
        if keyword == "anyOf" or (len(set(names)) == len(names) and not {"number", "integer"} <= set(names)):
            return {**outer, "type": list(dict.fromkeys(names))}, False
    return schema, False


def _is_null(branch: Any) -> bool:
    if not isinstance(branch, dict):
        return False
    return branch.get("type") in ("null", ["null"]) or ("const" in branch and branch["const"] is None)


def _string_constants(branch: Schema) -> list[str] | None:
    values = branch.get("enum", [branch["const"]] if "const" in branch else None)
    if branch.get("nullable") or not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        return None
    return values


def _plain_kinds(branch: Schema) -> list[str] | None:
    """The types of a branch that says nothing else."""
    bare = {key for key in branch if key not in ANNOTATIONS and not (key == "properties" and not branch[key])}
    if bare != {"type"}:
        return None
    kinds = branch["type"] if isinstance(branch["type"], list) else [branch["type"]]
    kinds = [*kinds, *(["null"] if branch.get("nullable") else [])]
    return kinds if all(kind in TYPES for kind in kinds) else None


def _settle_type(schema: Schema) -> tuple[Schema, bool]:
    """The type a schema has or can only mean, and whether null stood beside it."""
    kind = schema.get("type")
    nullable = False
    if isinstance(kind, list):
        concrete = list(dict.fromkeys(name for name in kind if name != "null"))
        nullable = len(concrete) < len(kind) and "null" in kind
        kind = concrete[0] if len(concrete) == 1 else concrete or "null"
        schema = {**schema, "type": kind}
        nullable = nullable and kind != "null"
    elif kind is None:
        kind, nullable = _guess_type(schema)
        schema = schema if kind is None else {"type": kind, **schema}
    values = schema.get("enum")
    if isinstance(values, list) and None in values and isinstance(kind, str) and kind != "null":
        schema = {**schema, "enum": [value for value in values if value is not None]}
        nullable = True
    return schema, nullable


def _guess_type(schema: Schema) -> tuple[str | None, bool]:
    """The one type that constants or properties show, if they do."""
    values = schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else None
    if isinstance(values, list):
        kinds = {type_of(value) for value in values}
        nullable = "null" in kinds and len(kinds) > 1
        kinds -= {"null"} if nullable else set()
        return (kinds.pop(), nullable) if len(kinds) == 1 else (None, False)
    if "properties" in schema:
        return "object", False
    if "items" in schema or "prefixItems" in schema:
        return "array", False
    return None, False


# --- both of two schemas ----------------------------------------------------------------------------------------------

_HIGHEST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_LOWEST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")


class _Apart(Exception):  # noqa: N818 - it is an outcome, not an error
    """Two schemas have no single form."""


def merge(one: Schema, other: Schema) -> Schema | None:
    """One normal form for what fits both; None where there is none, or nothing fits both."""
    try:
        merged: Schema = _merge(one, other)
    except _Apart:
        return None
    return merged


def _merge(one: Any, other: Any) -> Any:
    if one is False or other is False:
        return False
    if one in (True, {}) or other in (True, {}):
        return other if one in (True, {}) else one
    if not (isinstance(one, dict) and isinstance(other, dict)):
        raise _Apart
    merged = {**one, **{key: value for key, value in other.items() if key not in one}}
    for key in (key for key in one if key in other and key not in ANNOTATIONS and one[key] != other[key]):
        merged[key] = _merge_value(key, one[key], other[key])
    if "properties" in one or "properties" in other:
        merged["properties"] = _merge_properties(one, other)
    both = [schema for schema in (one, other) if "type" in schema or schema.get("nullable")]
    if not all(schema.get("nullable") for schema in both):
        merged.pop("nullable", None)
    return merged


def _merge_value(key: str, one: Any, other: Any) -> Any:
    combine: Callable[[Any, Any], Any] | None = _COMBINE.get(key)
    try:
        if combine is not None:
            return combine(one, other)
    except TypeError:
        pass
    raise _Apart


def _merge_types(one: Any, other: Any) -> Any:
    left, right = (kind if isinstance(kind, list) else [kind] for kind in (one, other))
    kept = [kind for kind in left if kind in right or (kind == "integer" and "number" in right)]
    kept += [kind for kind in right if kind == "integer" and "number" in left and kind not in kept]
    if not kept:
        raise _Apart
    return kept[0] if len(kept) == 1 else kept


def _merge_values(one: list[Any], other: list[Any]) -> list[Any]:
    kept = [value for value in one if value in other]
    if not kept:
        raise _Apart
    return kept


def _merge_properties(one: Schema, other: Schema) -> Schema:
    mine, others = one.get("properties", {}), other.get("properties", {})
    if not (isinstance(mine, dict) and isinstance(others, dict)):
        raise _Apart
    merged: Schema = {}
    for name in dict.fromkeys((*mine, *others)):
        sides = [
            schema.get("properties", {}).get(name, schema.get("additionalProperties", {})) for schema in (one, other)
        ]
        if any("patternProperties" in schema for schema in (one, other)) and False in sides:
            raise _Apart
        child = _merge(*sides)
        if child is not False:
            merged[name] = child
        elif any(name in _listed(schema.get("required")) for schema in (one, other)):
            raise _Apart
    return merged


def _listed(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else ()


_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(_HIGHEST, max),
    **dict.fromkeys(_LOWEST, min),
    "type": _merge_types,
    "enum": _merge_values,
    "properties": lambda one, other: one,  # done apart
    "required": lambda one, other: list(dict.fromkeys((*one, *other))),
    "additionalProperties": _merge,
    "items": _merge,
}
