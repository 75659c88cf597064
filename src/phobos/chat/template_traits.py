"""Finds out what a template can say, by rendering small conversations through it and looking at what comes out."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from phobos.chat.conversation import EmptyContent, Traits
from phobos.chat.messages import Message, ToolCall, ToolSpec

_SYSTEM, _USER, _RESULT, _CALLED, _NAME, _VALUE = "Qsystemq", "Quserq", "Qresultq", "Qcalledq", "qname", "Qvalueq"
_EMPTY: tuple[EmptyContent, ...] = ("missing", "none", "blank")
_SCHEMA = {"type": "object", "properties": {"qkey": {"type": "string", "description": "q"}}, "required": ["qkey"]}
_TOOL = ToolSpec(_NAME, "q", _SCHEMA)


class Probe(Protocol):
    """Renders a conversation exactly as these traits have it; None where the template refuses."""

    def __call__(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], traits: Traits, *, thinking: bool = False
    ) -> str | None: ...


def find_traits(probe: Probe) -> Traits:
    """Render small conversations and see what comes out."""
    traits = Traits()

    def shows(messages: Sequence[Message], tools: bool, trial: Traits, *wanted: str) -> bool:
        text = probe(messages, (_TOOL,) if tools else (), trial)
        return text is not None and all(word in text for word in wanted)

    user, system = Message("user", _USER), Message("system", _SYSTEM)
    trials = [
        replace(traits, no_tools=no_tools, has_parts=has_parts)
        for has_parts in (False, True)
        for no_tools in ("none", "empty", "missing")
    ]
    traits = next((trial for trial in trials if shows([user], False, trial, _USER)), traits)
    knows_system = shows([system, user], False, traits, _SYSTEM, _USER)
    first = [system, user] if knows_system else [user]
    knows_tools = shows(first, True, traits, _NAME, _USER)
    silent, aloud = (probe([user], (), traits, thinking=thinking) for thinking in (False, True))
    traits = replace(traits, knows_system=knows_system, knows_tools=knows_tools, knows_thinking=silent != aloud)
    return _find_call_traits(probe, traits, first)


def _find_call_traits(probe: Probe, traits: Traits, first: list[Message]) -> Traits:
    """How calls and their results are given, or that the template has no words for them."""
    call = ToolCall("123456789", _NAME, json.dumps({"qkey": _VALUE}))
    ask = Message("assistant", None, tool_calls=(call,))
    answer = Message("tool", _RESULT, tool_call_id=call.id, name=_NAME)
    tools = (_TOOL,) if traits.knows_tools else ()
    best: tuple[int, Traits] | None = None
    for named_ids, has_text_arguments, empty_content in itertools.product((False, True), (False, True), _EMPTY):
        if named_ids and best is not None:
            break
        trial = replace(traits, named_ids=named_ids, has_text_arguments=has_text_arguments, empty_content=empty_content)
        text = probe([*first, ask, answer], tools, trial)
        if text is None or text.count(_NAME) <= traits.knows_tools or _VALUE not in text:
            continue
        # Arguments written as JSON text twice over, or an absent content written out, are worse than none.
        flaws = text.count("None") + text.count("null") + 10 * text.count('\\"') + 100 * (_RESULT not in text)
        if best is None or flaws < best[0]:
            best = flaws, trial
    if best is None:
        said = replace(ask, content=_CALLED, tool_calls=())
        text = probe([*first, said, answer], tools, traits)
        # A template without any words for tools may print whatever role it is given; its model has not seen that one.
        knows_results = traits.knows_tools and text is not None and _RESULT in text
        return replace(traits, knows_calls=False, knows_results=knows_results)
    traits = replace(best[1], knows_results=best[0] < 100)
    text = probe([*first, replace(ask, content=_CALLED), answer], tools, traits)
    return replace(traits, splits_calls=text is not None and _VALUE not in text)
