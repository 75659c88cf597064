"""Qwen 2.5 and 3, Hermes and many others: a JSON object between `<tool_call>` tags."""

from phobos.chat.dialects.dialect import Dialect
from phobos.chat.dialects.forms.json_calls import JsonCalls

CALLS = JsonCalls(openers=("<tool_call>",), begin="<tool_call>\n", end="\n</tool_call>")
HERMES = Dialect("hermes", CALLS, lambda template: "<tool_call>" in template)
