"""Apriel: a JSON list between `<tool_calls>` tags."""

from phobos.chat.dialects.dialect import Dialect
from phobos.chat.dialects.forms.json_calls import JsonCalls

CALLS = JsonCalls(openers=("<tool_calls>",), begin="<tool_calls>[", end="]</tool_calls>", separator=", ")
APRIEL = Dialect("apriel", CALLS, lambda template: "<tool_calls>[" in template)
