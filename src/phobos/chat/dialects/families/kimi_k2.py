"""Kimi K2: `functions.NAME:INDEX` and JSON between its own tokens."""

from phobos.chat.dialects.dialect import Dialect
from phobos.chat.dialects.forms.named_calls import NamedCalls

CALLS = NamedCalls(
    openers=("<|tool_calls_section_begin|>",),
    begin="<|tool_calls_section_begin|>",
    end="<|tool_calls_section_end|>",
    call_begin="<|tool_call_begin|>",
    name_end="<|tool_call_argument_begin|>",
    call_end="<|tool_call_end|>",
    name_form=r"\s*(?:functions\.)?(.+?)(?::\d+)?\s*",
    name_begin="functions.",
    name_tail='":" /[0-9]{1,3}/',
)
KIMI_K2 = Dialect("kimi-k2", CALLS, lambda template: "<|tool_calls_section_begin|>" in template, named_ids=True)
