"""A conversation in the shape that a template understands.

Templates differ in what they can say: some know no system role, some no tools, some want one call a message or content
as a list of parts. `Traits` is what was found out about one template by rendering small conversations through it;
`to_template` writes messages accordingly; `FOLDS` are the changes tried, one after another, when a template refuses.
All functions are pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn

from phobos.chat.dialects.families.hermes import CALLS
from phobos.chat.messages import Message, ToolCall, ToolSpec

EmptyContent = Literal["missing", "none", "blank"]
NoTools = Literal["none", "empty", "missing"]


@dataclass(frozen=True)
class Traits:
    """What a template can say.

    `knows_tools`: definitions; `knows_calls`: calls of past turns; `knows_results`: messages of role tool.
    `knows_thinking`: reasoning can be turned on and off.
    `empty_content`: how content is given where only calls stand. `no_tools`: how the absence of tools is given.
    `has_parts`: content must be a list of parts. `has_text_arguments`: a call's arguments must be JSON text.
    `named_ids`: the ids of calls must be `functions.NAME:INDEX`, which some write instead of the name.
    `splits_calls`: calls beside text would be lost, so the two must be two messages.
    """

    knows_system: bool = True
    knows_tools: bool = True
    knows_calls: bool = True
    knows_results: bool = True
    knows_thinking: bool = False
    has_parts: bool = False
    has_text_arguments: bool = False
    named_ids: bool = False
    splits_calls: bool = False
    empty_content: EmptyContent = "missing"
    no_tools: NoTools = "none"


def tool_dict(tool: ToolSpec) -> dict[str, Any]:
    """A tool as templates expect it: OpenAI's own shape."""
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def describe_all(definition: dict[str, Any]) -> dict[str, Any]:
    """A definition with a description on every parameter, for templates that take one for granted."""
    parameters = definition["function"]["parameters"]
    properties = {
        name: {"type": "string", "description": "", **schema} if isinstance(schema, Mapping) else schema
        for name, schema in (parameters.get("properties") or {}).items()
    }
    whole = {"type": "object", "required": [], **parameters, "properties": properties}
    return {**definition, "function": {**definition["function"], "parameters": whole}}


def parse_arguments(text: str) -> Any:
    """A call's arguments as a mapping; text that is no JSON object stays text."""
    try:
        value = json.loads(text or "{}", parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def to_template(messages: Sequence[Message], traits: Traits) -> list[dict[str, Any]]:
    """The messages as a template's `messages`."""
    if traits.named_ids:
        messages = name_ids(messages)
    return [entry for message in messages for entry in _to_entries(message, traits)]


def name_ids(messages: Sequence[Message]) -> list[Message]:
    """Ids of calls as Kimi K2 writes them: the function and how many calls came before."""
    ids: dict[str, str] = {}
    n_calls = 0
    out = []
    for message in messages:
        calls = []
        for call in message.tool_calls:
            ids[call.id] = f"functions.{call.name}:{n_calls}"
            calls.append(replace(call, id=ids[call.id]))
            n_calls += 1
        given = message.tool_call_id
        out.append(replace(message, tool_calls=tuple(calls), tool_call_id=ids.get(given or "", given)))
    return out


def name_results(messages: Sequence[Message]) -> list[Message]:
    """Results that do not name their function get its name from the call."""
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    return [
        replace(message, name=names.get(message.tool_call_id or ""))
        if message.role == "tool" and not message.name
        else message
        for message in messages
    ]


def _to_entries(message: Message, traits: Traits) -> list[dict[str, Any]]:
    entry: dict[str, Any] = {"role": message.role}
    if message.content is not None and not (message.tool_calls and not message.content):
        entry["content"] = _content(message.content, traits)
    elif not message.tool_calls:
        entry["content"] = _content("", traits)
    elif traits.empty_content != "missing":
        entry["content"] = None if traits.empty_content == "none" else _content("", traits)
    if message.reasoning:
        # The names that templates know it by.
        entry |= {"reasoning_content": message.reasoning, "thinking": message.reasoning}
    if message.role == "tool":
        entry["tool_call_id"] = message.tool_call_id or ""
    if message.name:
        entry["name"] = message.name
    if not message.tool_calls:
        return [entry]
    if traits.splits_calls and message.content:
        calls = replace(message, content=None, reasoning=None)
        return [entry, *_to_entries(calls, replace(traits, splits_calls=False))]
    entry["tool_calls"] = [_call_dict(call, traits) for call in message.tool_calls]
    return [entry]


def _call_dict(call: ToolCall, traits: Traits) -> dict[str, Any]:
    arguments = call.arguments if traits.has_text_arguments else parse_arguments(call.arguments)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _content(text: str, traits: Traits) -> str | list[dict[str, str]]:
    return [{"type": "text", "text": text}] if traits.has_parts else text


@dataclass(frozen=True)
class ToolWords:
    """How tools are put into text for a template that has no words for them.

    `introduction` holds `{tools}`, which becomes one definition a line. `only_introduce`: the template has words for
    calls and results.
    """

    introduction: str
    write_calls: Callable[[Sequence[ToolCall]], str]
    write_result: Callable[[str], str]
    only_introduce: bool = False

    def introduce(self, tools: Sequence[ToolSpec]) -> str:
        """The text that tells a model of its tools."""
        lines = "\n".join(json.dumps(tool_dict(tool), ensure_ascii=False) for tool in tools)
        return self.introduction.replace("{tools}", lines)


# The form that most models without a form of their own have seen; the plain dialect reads it.
PLAIN_WORDS = ToolWords(
    introduction=(
        "You may call functions to answer. These are the functions, one JSON object a line:\n{tools}\n\n"
        "To call one, write its name and arguments as a JSON object between tags, and nothing after it:\n"
        '<tool_call>\n{"name": "<function>", "arguments": {<arguments>}}\n</tool_call>\n'
        "The results come back between <tool_response> and </tool_response>."
    ),
    write_calls=CALLS.write,
    write_result=lambda text: f"<tool_response>\n{text}\n</tool_response>",
)


def calls_as_text(messages: Sequence[Message], words: ToolWords) -> list[Message]:
    """Past calls written into the assistant's text."""
    return [
        replace(
            message,
            content="\n".join(filter(None, (message.content, words.write_calls(message.tool_calls)))),
            tool_calls=(),
        )
        if message.tool_calls
        else message
        for message in messages
    ]


def results_as_text(messages: Sequence[Message], words: ToolWords) -> list[Message]:
    """Results written as what the user said; neighbouring ones share a turn."""
    out: list[Message] = []
    after_result = False
    for message in messages:
        if message.role != "tool":
            out.append(message)
        elif after_result:
            out[-1] = replace(out[-1], content=f"{out[-1].content}\n{words.write_result(message.content or '')}")
        else:
            out.append(Message("user", words.write_result(message.content or "")))
        after_result = message.role == "tool"
    return out


def tools_as_text(messages: Sequence[Message], tools: Sequence[ToolSpec], words: ToolWords) -> list[Message]:
    """The tools told in the system message."""
    introduction = words.introduce(tools)
    if messages and messages[0].role == "system":
        content = "\n\n".join(filter(None, (messages[0].content, introduction)))
        return [replace(messages[0], content=content), *messages[1:]]
    return [Message("system", introduction), *messages]


def fold_system(messages: Sequence[Message]) -> list[Message]:
    """System text put before the first user text; a conversation without one gets it as its first."""
    system = "\n\n".join(message.content for message in messages if message.role == "system" and message.content)
    rest = [message for message in messages if message.role != "system"]
    if not system:
        return rest
    for i, message in enumerate(rest):
        if message.role == "user":
            rest[i] = replace(message, content="\n\n".join(filter(None, (system, message.content))))
            return rest
    return [Message("user", system), *rest]


def gather_system(messages: Sequence[Message]) -> list[Message]:
    """All system text in one message at the front."""
    system = [message for message in messages if message.role == "system"]
    rest = [message for message in messages if message.role != "system"]
    if not system:
        return rest
    content = "\n\n".join(message.content for message in system if message.content)
    return [replace(system[0], content=content), *rest]


def merge_turns(messages: Sequence[Message]) -> list[Message]:
    """Neighbours of one role made one message, so that roles alternate; tool results stay apart."""
    out: list[Message] = []
    for message in messages:
        if not out or out[-1].role != message.role or message.role == "tool":
            out.append(message)
            continue
        last = out[-1]
        out[-1] = replace(
            last,
            content="\n\n".join(filter(None, (last.content, message.content))) or last.content,
            reasoning="\n\n".join(filter(None, (last.reasoning, message.reasoning))) or None,
            tool_calls=last.tool_calls + message.tool_calls,
        )
    return out


def one_call_each(messages: Sequence[Message]) -> list[Message]:
    """Calls made together put one after another, each followed by its own result."""
    results = {message.tool_call_id: message for message in messages if message.role == "tool"}
    placed: set[str | None] = set()
    out: list[Message] = []
    for message in messages:
        if message.role == "tool" and message.tool_call_id in placed:
            continue
        if len(message.tool_calls) < 2:
            out.append(message)
            continue
        for i, call in enumerate(message.tool_calls):
            head = {} if i == 0 else {"content": None, "reasoning": None}
            out.append(replace(message, tool_calls=(call,), **head))  # type: ignore[arg-type]
            if call.id in results:
                placed.add(call.id)
                out.append(results[call.id])
    return out


def shorten_ids(messages: Sequence[Message]) -> list[Message]:
    """Ids of calls as nine digits, which some templates insist on."""
    ids: dict[str, str] = {}
    for message in messages:
        for call in message.tool_calls:
            ids.setdefault(call.id, f"{len(ids):09d}")
    return [
        replace(
            message,
            tool_calls=tuple(replace(call, id=ids[call.id]) for call in message.tool_calls),
            tool_call_id=ids.get(message.tool_call_id or "", f"{len(ids):09d}") if message.role == "tool" else None,
        )
        for message in messages
    ]


def join_thoughts(messages: Sequence[Message]) -> list[Message]:
    """Reasoning and text before a call as one reasoning, for templates that allow only one of them there."""
    return [
        replace(message, content=None, reasoning=f"{message.reasoning}\n\n{message.content}")
        if message.tool_calls and message.content and message.reasoning
        else message
        for message in messages
    ]


def answer_results(messages: Sequence[Message]) -> list[Message]:
    """A blank answer put between a result and what the user says next, for templates that insist on one."""
    out: list[Message] = []
    for message in messages:
        if out and out[-1].role == "tool" and message.role == "user":
            out.append(Message("assistant", " "))  # some refuse an answer of no length
        out.append(message)
    return out


Fold = Callable[[Sequence[Message]], list[Message]]

# Tried in order, each on top of those before it, until a template accepts.
FOLDS: tuple[Fold, ...] = (
    join_thoughts,
    gather_system,
    shorten_ids,
    one_call_each,
    answer_results,
    merge_turns,
    fold_system,
    merge_turns,
)
