"""The `tools` of a request, checked and turned into `ToolSpec`s. Their schemas are put into the normal form
(`chat/schemas.py`) and never refused for what they say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from phobos.chat.messages import ToolSpec
from phobos.chat.schemas import normalise
from phobos.errors import RequestError

MAX_TOOLS = 128
NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")


def parse_tools(value: Any, *, strict: bool = False) -> tuple[ToolSpec, ...]:
    """The tools of a request; none for null or an empty list. `strict`: all are. Raises `RequestError`."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise RequestError("tools must be a list", param="tools")
    if len(value) > MAX_TOOLS:
        raise RequestError(f"tools holds {len(value)} tools, and at most {MAX_TOOLS} are taken", param="tools")
    tools = tuple(_parse_tool(item, f"tools[{index}]", strict) for index, item in enumerate(value))
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in seen:
            place = f"tools[{index}].function.name"
            raise RequestError(f"{place} '{tool.name}' is taken twice", code="invalid_tool_name", param=place)
        seen.add(tool.name)
    return tools


def _parse_tool(item: Any, place: str, strict: bool) -> ToolSpec:
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
    return ToolSpec(name, description or "", schema, strict=strict or function.get("strict") is True)


def normalise_parameters(tool: str, schema: Any) -> Mapping[str, Any]:
    """A tool's parameters in the normal form. Raises `RequestError` where they are no schema."""
    if schema is None:
        return {"type": "object", "properties": {}}
    if not isinstance(schema, dict):
        raise RequestError(
            f"the parameters of tool '{tool}' must be a JSON schema object",
            code="invalid_tool_schema",
            param=f"tools.{tool}.parameters",
        )
    normal = normalise(schema)
    return normal if "type" in normal or "$ref" in normal else {"type": "object", "properties": {}, **normal}
