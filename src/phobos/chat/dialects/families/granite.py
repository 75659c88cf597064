"""Granite 3: a JSON list behind `<|tool_call|>`."""

from phobos.chat.dialects.dialect import Dialect
from phobos.chat.dialects.forms.json_calls import JsonCalls

CALLS = JsonCalls(openers=("<|tool_call|>",), begin="<|tool_call|>[", end="]", separator=", ")
GRANITE = Dialect("granite", CALLS, lambda template: "<|tool_call|>" in template)
