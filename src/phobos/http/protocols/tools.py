"""The `tools` and `tool_choice` of a request, in every protocol's shape.

Tools that only a host can run (web search and its like) are left out and listed: the functions beside them work. A
namespace is flattened: its tools are offered as `namespace.name` and called back by their own names. A free-form
(`custom`) tool is offered as a function of one text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from phobos.chat.messages import ToolChoice, ToolSpec
from phobos.chat.tool_schemas import MAX_TOOLS, NAME, normalise_parameters
from phobos.errors import RequestError
from phobos.http.transport.wire import quoted

INPUT = "input"  # the one argument of a free-form tool


@dataclass(frozen=True)
class Called:
    """How a protocol names the tool that a model calls: `is_free`: by a text instead of arguments."""

    name: str
    namespace: str | None = None
    is_free: bool = False


@dataclass(frozen=True)
class Offer:
    """The tools that are offered, the places of those left out, and how calls of some are named back."""

    tools: tuple[ToolSpec, ...] = ()
    left_out: tuple[str, ...] = ()
    called: Mapping[str, Called] = field(default_factory=dict)

    def find(self, name: str, namespace: str | None = None) -> str | None:
        """The name under which a tool is offered; None where it is not."""
        names = {tool.name for tool in self.tools}
        full = name if namespace is None else f"{namespace}.{name}"
        if full in names:
            return full
        return next((own for own, called in self.called.items() if called.name == name and own in names), None)


@dataclass(frozen=True)
class Shape:
    """Where a protocol keeps a tool's fields: `holder` nests those of a function, `schema` names the parameters;
    `functions` are the types of functions, None among them where a type may be missing."""

    holder: str | None
    schema: str
    functions: tuple[str | None, ...]
    has_free: bool = False
    has_namespaces: bool = False


CHAT = Shape("function", "parameters", (None, "function"))
RESPONSES = Shape(None, "parameters", ("function",), has_free=True, has_namespaces=True)
MESSAGES = Shape(None, "input_schema", (None, "custom"))


def read_tools(value: Any, shape: Shape, *, strict: bool = False) -> Offer:
    """The tools of a request; none for null or an empty list. `strict`: all are, and none is left out. Raises
    `RequestError`."""
    if value is None:
        return Offer()
    if not isinstance(value, list):
        raise RequestError("tools must be a list", param="tools")
    reader = _Reader(shape, strict)
    for index, item in enumerate(value):
        reader.read(item, f"tools[{index}]", None)
    if len(reader.tools) > MAX_TOOLS:
        n_tools = len(reader.tools)
        raise RequestError(f"tools holds {n_tools} tools, and at most {MAX_TOOLS} are taken", param="tools")
    return Offer(tuple(reader.tools.values()), tuple(reader.left_out), reader.called)


class _Reader:
    def __init__(self, shape: Shape, strict: bool) -> None:
        self.tools: dict[str, ToolSpec] = {}
        self.left_out: list[str] = []
        self.called: dict[str, Called] = {}
        self._shape = shape
        self._strict = strict

    def read(self, item: Any, place: str, namespace: str | None) -> None:
        """One entry of the list, or of a namespace."""
        shape = self._shape
        if not isinstance(item, dict):
            raise RequestError(f"{place} must be an object with a name", param=place)
        kind = item.get("type")
        if kind in shape.functions:
            self._add(self._function(item, place), place, namespace)
        elif kind == "custom" and shape.has_free:
            self._add(_free_tool(item, place, self._strict), place, namespace, is_free=True)
        elif kind == "namespace" and shape.has_namespaces and namespace is None:
            inner = item.get("tools")
            name = check_tool_name(item.get("name"), f"{place}.name")
            if not isinstance(inner, list):
                raise RequestError(f"{place}.tools must be a list", param=f"{place}.tools")
            for index, tool in enumerate(inner):
                self.read(tool, f"{place}.tools[{index}]", name)
        elif not isinstance(kind, str) or self._strict:
            raise RequestError(
                f"{place}.type {quoted(kind)} is not supported: only tools the client runs are",
                code="unsupported_value",
                param=f"{place}.type",
            )
        else:
            self.left_out.append(f"{place}.{kind}")

    def _add(self, tool: ToolSpec, place: str, namespace: str | None, *, is_free: bool = False) -> None:
        name = tool.name if namespace is None else check_tool_name(f"{namespace}.{tool.name}", f"{place}.name")
        if name in self.tools:
            where = f"{place}.{self._shape.holder}.name" if self._shape.holder else f"{place}.name"
            raise RequestError(f"{where} {quoted(name)} is taken twice", code="invalid_tool_name", param=where)
        self.tools[name] = replace(tool, name=name)
        if is_free or namespace is not None:
            self.called[name] = Called(tool.name, namespace, is_free)

    def _function(self, item: dict[str, Any], place: str) -> ToolSpec:
        holder = self._shape.holder
        fields = item.get(holder) if holder else item
        place = f"{place}.{holder}" if holder else place
        if not isinstance(fields, dict):
            raise RequestError(f"{place} must be an object", param=place)
        name, description = _read_head(fields, place)
        parameters = normalise_parameters(name, fields.get(self._shape.schema))
        return ToolSpec(name, description, parameters, strict=self._strict or fields.get("strict") is True)


def _read_head(fields: dict[str, Any], place: str) -> tuple[str, str]:
    name = check_tool_name(fields.get("name"), f"{place}.name")
    description = fields.get("description")
    if description is not None and not isinstance(description, str):
        raise RequestError(f"{place}.description must be a string", param=f"{place}.description")
    return name, description or ""


def _free_tool(item: dict[str, Any], place: str, strict: bool) -> ToolSpec:
    """A tool that is called with a text, which may have to follow a grammar."""
    name, description = _read_head(item, place)
    form = item.get("format")
    text: dict[str, Any] = {"type": "string"}
    grammar = None
    if isinstance(form, dict) and form.get("type") == "grammar":
        syntax, definition = form.get("syntax"), form.get("definition")
        if syntax not in ("lark", "regex") or not isinstance(definition, str) or not definition:
            message = f"{place}.format must be a grammar with the syntax lark or regex and a definition"
            raise RequestError(message, param=f"{place}.format")
        if syntax == "regex":
            text["pattern"] = f"^(?:{definition})$"
        else:
            grammar = definition
        description = f"{description}\n\nThe text follows this {syntax} grammar:\n{definition}".strip()
    parameters = {"type": "object", "properties": {INPUT: text}, "required": [INPUT]}
    return ToolSpec(name, description, parameters, strict=strict, grammar=grammar)


def check_tool_name(value: Any, place: str) -> str:
    """A tool's name. Raises `RequestError` quoting a bad one back."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise RequestError(
            f"{place} {quoted(value)} is no tool name: use up to 128 letters, digits, and any of _ - . : /",
            code="invalid_tool_name",
            param=place,
        )
    return value


# --- the choice -------------------------------------------------------------------------------------------------------


def read_choice(value: Any, offer: Offer) -> tuple[ToolChoice, tuple[str, ...]]:
    """OpenAI's `tool_choice` in either of its APIs, and what of it is ignored. Raises `RequestError`."""
    if value is None:
        return ToolChoice(), ()
    if isinstance(value, dict):
        return _read_named(value, offer)
    if not isinstance(value, str) or value not in ("auto", "none", "required"):
        raise RequestError("tool_choice must be auto, none, required or a named function", param="tool_choice")
    if value == "required" and not offer.tools:
        return ToolChoice(), ("tool_choice",)  # nothing can be called: what is written then is text
    return ToolChoice("required" if value == "required" else "none" if value == "none" else "auto"), ()


def _read_named(value: dict[str, Any], offer: Offer) -> tuple[ToolChoice, tuple[str, ...]]:
    kind = value.get("type")
    if kind in ("function", "custom"):
        return ToolChoice("function", _offered(value, offer)), ()
    if kind == "allowed_tools":
        inner = value.get("allowed_tools")
        fields = inner if isinstance(inner, dict) else value
        mode, listed = fields.get("mode", "auto"), fields.get("tools")
        if mode not in ("auto", "required") or not isinstance(listed, list):
            raise RequestError(
                "tool_choice must have a mode, auto or required, and a list of tools", param="tool_choice"
            )
        of_functions = [
            item for item in listed if isinstance(item, dict) and item.get("type") in ("function", "custom")
        ]
        names = frozenset(_offered(item, offer) for item in of_functions)
        if not names:
            return ToolChoice("none"), ()
        return ToolChoice("required" if mode == "required" else "auto", allowed=names), ()
    if isinstance(kind, str) and offer.left_out:
        return ToolChoice(), ("tool_choice",)  # it names a tool that was left out
    raise RequestError("tool_choice must be auto, none, required or a named function", param="tool_choice")


def _offered(value: dict[str, Any], offer: Offer) -> str:
    """The name of the tool that a choice names."""
    holder = value.get(str(value.get("type")))
    fields = holder if isinstance(holder, dict) else value
    name = fields.get("name")
    if not isinstance(name, str):
        raise RequestError("tool_choice.function.name is required", param="tool_choice")
    namespace = fields.get("namespace")
    found = offer.find(name, namespace if isinstance(namespace, str) else None)
    if found is None:
        raise RequestError(f"tool_choice names {quoted(name)}, which is not among the tools", param="tool_choice")
    return found
