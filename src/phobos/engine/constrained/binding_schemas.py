"""The schemas of one request, as they bind: its tools' parameters and its output format.

Nothing here fails for what a grammar cannot hold unless it was asked for strictly: then the tool or format and the
place are named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from phobos.chat.dialects.lark_quoting import Unquotable, quote_grammar
from phobos.chat.messages import OutputFormat, ToolSpec
from phobos.chat.schemas import Schema
from phobos.engine.constrained.flat_schemas import flatten, loosen_texts
from phobos.engine.constrained.schemas import Enforced, Holds, enforce, list_places
from phobos.errors import RequestError


@dataclass(frozen=True)
class Bound:
    """Tools whose parameters are what binds, the schema of the format likewise, and what is left open of both."""

    tools: tuple[ToolSpec, ...] = ()
    schema: Schema | None = None
    left_open: tuple[str, ...] = ()


def bind_schemas(tools: Sequence[ToolSpec], output: OutputFormat, holds: Holds, *, is_flat: bool) -> Bound:
    """What binds. `is_flat`: the dialect's arguments are no JSON. Raises `RequestError` for what is strict."""
    bound: list[ToolSpec] = []
    left_open: list[str] = []
    for tool in tools:
        enforced = enforce(tool.parameters, holds, is_object=True, is_flat=is_flat)
        if is_flat:
            enforced = loosen_texts(flatten(enforced))
        if tool.strict and enforced.left_open:
            raise refuse_tool(tool, enforced.left_open[0])
        grammar = tool.grammar if not is_flat and _can_be_quoted(tool.grammar) else None
        if grammar != tool.grammar:
            if tool.strict:
                raise refuse_tool(tool, "format")
            left_open.append(f"tools.{tool.name}.format")
        bound.append(replace(tool, parameters=enforced.schema, grammar=grammar))
        left_open += list_places(f"tools.{tool.name}.parameters", enforced.left_open)
    schema = None
    if output.kind == "json_schema":
        enforced = enforce(output.schema or {}, holds)
        if output.strict and enforced.left_open:
            raise _refuse_format(enforced)
        schema = enforced.schema
        left_open += list_places("response_format", enforced.left_open)
    return Bound(tuple(bound), schema, tuple(left_open))


def loosen(tool: ToolSpec) -> ToolSpec:
    """A tool whose schema makes no grammar after all, with only its shape bound. Raises `RequestError`."""
    if tool.strict:
        raise refuse_tool(tool, "")
    return replace(tool, parameters={"type": "object"}, grammar=None)


def _can_be_quoted(grammar: str | None) -> bool:
    """Whether a free-form tool's grammar has a form inside JSON."""
    try:
        quote_grammar(grammar or "start:", "start")
    except Unquotable:
        return False
    return True


def refuse_tool(tool: ToolSpec, place: str) -> RequestError:
    """A strict tool whose schema cannot be held."""
    where = ".".join(filter(None, ("parameters", _shown(place))))
    return RequestError(
        f"the tool '{tool.name}' is strict, and {where} cannot be enforced: change the schema or send strict false",
        code="invalid_tool_schema",
        param=f"tools.{tool.name}.{where}",
    )


def _refuse_format(enforced: Enforced) -> RequestError:
    where = ".".join(filter(None, ("response_format", _shown(enforced.left_open[0]))))
    return RequestError(
        f"the output format is strict, and {where} cannot be enforced: change the schema or send strict false",
        param=where,
    )


def _shown(place: str) -> str:
    return place.encode("ascii", "replace").decode()[:160]
