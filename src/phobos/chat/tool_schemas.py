"""The `tools` of a request, checked and normalised into `ToolSpec`s.

Clients write the same thing in many ways. Here a nullable form (`type: [T, "null"]`, a two-branch `anyOf`, a
disjoint `oneOf`, OpenAPI's `nullable: true`) becomes `{T's schema, "nullable": true}` with T's other keywords kept;
a union of string constants becomes one `enum`; an object without properties gets empty ones. What would need a guess
(mixed unions, overlapping `oneOf`, `allOf`) is a `RequestError` with code `invalid_tool_schema` that names the tool
and the path in its schema.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from phobos.chat.messages import ToolSpec
from phobos.errors import RequestError

MAX_TOOLS = 128
MAX_DEPTH = 32
NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_UNIONS = ("anyOf", "oneOf")


def parse_tools(value: Any) -> tuple[ToolSpec, ...]:
    """The tools of a request; none for null or an empty list. Raises `RequestError`."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise RequestError("tools must be a list", param="tools")
    if len(value) > MAX_TOOLS:
        raise RequestError(f"tools holds {len(value)} tools, and at most {MAX_TOOLS} are taken", param="tools")
    tools = tuple(_parse_tool(item, f"tools[{index}]") for index, item in enumerate(value))
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in seen:
            place = f"tools[{index}].function.name"
            raise RequestError(f"{place} '{tool.name}' is taken twice", code="invalid_tool_name", param=place)
        seen.add(tool.name)
    return tools


def _parse_tool(item: Any, place: str) -> ToolSpec:
    if not isinstance(item, dict) or item.get("type", "function") != "function":
        raise RequestError(f"{place} must have the type function", code="unsupported_value", param=f"{place}.type")
    function = item.get("function")
    if not isinstance(function, dict):
        raise RequestError(f"{place}.function must be an object", param=f"{place}.function")
    name = function.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        shown = str(name).encode("ascii", "replace").decode()[:64]
        raise RequestError(
            f"{place}.function.name '{shown}' is no tool name: use up to 128 letters, digits and _ - . : /",
            code="invalid_tool_name",
            param=f"{place}.function.name",
        )
    description = function.get("description")
    if description is not None and not isinstance(description, str):
        raise RequestError(f"{place}.function.description must be a string", param=f"{place}.function.description")
    schema = normalise_parameters(name, function.get("parameters"))
    return ToolSpec(name, description or "", schema, strict=function.get("strict") is True)


def normalise_parameters(tool: str, schema: Any) -> Mapping[str, Any]:
    """A tool's parameters as the normal form of an object schema. Raises `RequestError`."""
    if schema is None:
        return {"type": "object", "properties": {}}
    if not isinstance(schema, dict):
        raise _refused(tool, "", "must be a JSON schema object")
    if schema and "type" not in schema and not any(key in schema for key in (*_UNIONS, "allOf", "enum", "$ref")):
        schema = {"type": "object", **schema}
    normal = _normalise(tool, "", schema or {"type": "object"}, 0)
    if normal.get("type") != "object" or normal.get("nullable"):
        raise _refused(tool, "", "must be a non-null object")
    return normal


def _normalise(tool: str, path: str, schema: Any, depth: int) -> dict[str, Any]:
    if depth > MAX_DEPTH:
        raise _refused(tool, path, f"is nested deeper than {MAX_DEPTH} levels")
    if schema is True or schema == {}:
        return {}
    if not isinstance(schema, dict):
        raise _refused(tool, path, "must be a schema object")
    for keyword in ("allOf", "not", "if", "$ref", "$dynamicRef"):
        if keyword in schema:
            raise _refused(tool, path, f"uses {keyword}, which is not supported")
    normal = {key: value for key, value in schema.items() if key not in (*_UNIONS, "nullable")}
    nullable = schema.get("nullable") is True
    unions = [key for key in _UNIONS if key in schema]
    if len(unions) > 1:
        raise _refused(tool, path, "uses anyOf and oneOf together")
    if unions:
        normal, from_union = _resolve_union(tool, path, normal, schema[unions[0]], unions[0], depth)
        nullable = nullable or from_union
    normal, from_type = _resolve_type(tool, path, normal)
    nullable = nullable or from_type
    normal = _normalise_children(tool, path, normal, depth)
    if nullable and normal.get("type") != "null":
        normal["nullable"] = True
    return normal


def _resolve_type(tool: str, path: str, schema: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """One concrete type, and whether null stood beside it."""
    kind = schema.get("type")
    nullable = False
    if isinstance(kind, list):
        concrete = [name for name in kind if name != "null"]
        nullable = len(concrete) < len(kind)
        if len(concrete) > 1:
            raise _refused(tool, path, f"has the mixed types {', '.join(map(str, concrete))}")
        kind = concrete[0] if concrete else "null"
    elif kind is None:
        kind, nullable = _guess_type(tool, path, schema)
    if kind not in _TYPES:
        raise _refused(tool, path, "has no known type")
    resolved = {"type": kind, **{key: value for key, value in schema.items() if key != "type"}}
    values = resolved.get("enum")
    if isinstance(values, list) and None in values and kind != "null":
        resolved["enum"] = [value for value in values if value is not None]
        nullable = True
    return resolved, nullable


def _guess_type(tool: str, path: str, schema: dict[str, Any]) -> tuple[str, bool]:
    """The type that a schema without one can only mean: by its constants or its keywords."""
    if "const" in schema or "enum" in schema:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        if not isinstance(values, list) or not values:
            raise _refused(tool, path, "has an enum that is no list of values")
        kinds = {_type_of(value) for value in values}
        nullable = "null" in kinds and len(kinds) > 1
        kinds -= {"null"} if nullable else set()
        if len(kinds) == 1:
            return kinds.pop(), nullable
        raise _refused(tool, path, "has constants of mixed types")
    if "properties" in schema:
        return "object", False
    if "items" in schema:
        return "array", False
    raise _refused(tool, path, "has no type")


def _type_of(value: Any) -> str:
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (dict, "object")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "array"


def _resolve_union(
    tool: str, path: str, outer: dict[str, Any], branches: Any, keyword: str, depth: int
) -> tuple[dict[str, Any], bool]:
    """The one schema a union stands for, and whether null is allowed beside it."""
    place = f"{path}.{keyword}" if path else keyword
    if not isinstance(branches, list) or not branches or not all(isinstance(branch, dict) for branch in branches):
        raise _refused(tool, place, "must be a list of schemas")
    concrete = [branch for branch in branches if not _is_null(branch)]
    nullable = len(concrete) < len(branches)
    if keyword == "oneOf" and len(branches) - len(concrete) > 1:
        raise _refused(tool, place, "has overlapping branches")
    if not concrete:
        return {**outer, "type": "null"}, False
    if len(concrete) == 1:
        inner = _normalise(tool, place, concrete[0], depth + 1)
        if keyword == "oneOf" and nullable and inner.get("nullable"):
            raise _refused(tool, place, "has overlapping branches")
        nullable = bool(inner.pop("nullable", False)) or nullable
        clash = [key for key in inner if key in outer and outer[key] != inner[key] and key != "description"]
        if clash:
            raise _refused(tool, place, f"gives {clash[0]} a second meaning")
        return {**inner, **outer}, nullable
    constants: list[str] = []
    for branch in concrete:
        values = branch.get("enum", [branch["const"]] if "const" in branch else None)
        if branch.get("type", "string") != "string" or not isinstance(values, list):
            raise _refused(tool, place, "is a union of different shapes, and guessing one of them is not done")
        if not all(isinstance(value, str) for value in values):
            raise _refused(tool, place, "is a union of different shapes, and guessing one of them is not done")
        constants.extend(values)
    if keyword == "oneOf" and len(set(constants)) < len(constants):
        raise _refused(tool, place, "has overlapping branches")
    if outer.get("type", "string") != "string":
        raise _refused(tool, place, "gives type a second meaning")
    return {**outer, "type": "string", "enum": list(dict.fromkeys(constants))}, nullable


def _is_null(branch: dict[str, Any]) -> bool:
    return branch.get("type") in ("null", ["null"]) or ("const" in branch and branch["const"] is None)


def _normalise_children(tool: str, path: str, schema: dict[str, Any], depth: int) -> dict[str, Any]:
    if schema["type"] == "object":
        properties = schema.get("properties")
        if properties is None:
            properties = {}
        if not isinstance(properties, dict):
            raise _refused(tool, f"{path}.properties".lstrip("."), "must be an object")
        schema["properties"] = {
            name: _normalise(tool, _join(path, "properties", name), child, depth + 1)
            for name, child in properties.items()
        }
        required = schema.get("required")
        if required is not None and not (isinstance(required, list) and all(isinstance(n, str) for n in required)):
            raise _refused(tool, _join(path, "required"), "must be a list of names")
        if isinstance(schema.get("additionalProperties"), dict):
            place = _join(path, "additionalProperties")
            schema["additionalProperties"] = _normalise(tool, place, schema["additionalProperties"], depth + 1)
    elif schema["type"] == "array" and "items" in schema:
        schema["items"] = _normalise(tool, _join(path, "items"), schema["items"], depth + 1)
    return schema


def _join(path: str, *parts: str) -> str:
    return ".".join(part for part in (path, *parts) if part)


def _refused(tool: str, path: str, reason: str) -> RequestError:
    shown = path.encode("ascii", "replace").decode()[:160]
    place = f"parameters.{shown}" if shown else "parameters"
    return RequestError(
        f"the schema of tool '{tool}' at {place} {reason}", code="invalid_tool_schema", param=f"tools.{tool}.{place}"
    )


def to_json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A normal form as plain JSON Schema, for grammars: `nullable` becomes a second type, or a null constant."""
    plain = {key: value for key, value in schema.items() if key != "nullable"}
    if isinstance(plain.get("properties"), dict):
        plain["properties"] = {name: to_json_schema(child) for name, child in plain["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(plain.get(key), dict):
            plain[key] = to_json_schema(plain[key])
    if schema.get("nullable"):
        plain["type"] = [plain["type"], "null"]
        if isinstance(plain.get("enum"), list):
            plain["enum"] = [*plain["enum"], None]
        if "const" in plain:
            plain["enum"] = [plain.pop("const"), None]
    return plain
