"""The format an answer must have, as `response_format` says it and other protocols' fields hold it."""

from __future__ import annotations

from typing import Any

from phobos.chat.messages import OutputFormat
from phobos.errors import RequestError
from phobos.http.transport.wire import quoted


def parse_output(value: Any, *, strict: bool = False) -> OutputFormat:
    """`response_format`; `strict` whatever it says. Raises `RequestError`."""
    if value is None:
        return OutputFormat()
    if not isinstance(value, dict):
        raise RequestError("response_format must be an object with a type", param="response_format")
    kind = value.get("type")
    if kind == "text":
        return OutputFormat()
    if kind == "json_object":
        schema = value.get("schema")
        return (
            OutputFormat("json_object") if schema is None else schema_output(schema, "response_format.schema", strict)
        )
    if kind == "json_schema":
        holder = value.get("json_schema")
        if not isinstance(holder, dict):
            raise RequestError("response_format.json_schema must be an object", param="response_format.json_schema")
        strict = strict or holder.get("strict") is True
        return schema_output(holder.get("schema"), "response_format.json_schema.schema", strict)
    if kind in ("grammar", "regex"):
        pattern = value.get(kind, value.get("pattern"))
        if not isinstance(pattern, str) or not pattern:
            raise RequestError(f"response_format.{kind} must be a string", param=f"response_format.{kind}")
        return OutputFormat("regex" if kind == "regex" else "grammar", pattern=pattern)
    raise RequestError(
        f"response_format.type {quoted(kind)} is not known: use text, json_object, json_schema, regex or grammar",
        code="unsupported_value" if isinstance(kind, str) else "invalid_value",
        param="response_format.type",
    )


def schema_output(schema: Any, param: str, strict: bool) -> OutputFormat:
    """A JSON schema as the output format. Raises `RequestError`."""
    if not isinstance(schema, dict):
        raise RequestError(f"{param} must be a JSON schema object", param=param)
    return OutputFormat("json_schema", schema=schema, strict=strict)
