"""What every protocol's tools share: bounds, names, and parameters in the normal form (`chat/schemas.py`), which are
never refused for what they say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from phobos.chat.schemas import normalise
from phobos.errors import RequestError

MAX_TOOLS = 128
NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")


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
