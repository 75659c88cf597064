"""MiniMax M1: JSON objects, one a line, between `<tool_calls>` tags."""

from phobos.chat.dialects.dialect import Dialect
from phobos.chat.dialects.forms.json_calls import JsonCalls

CALLS = JsonCalls(openers=("<tool_calls>",), begin="<tool_calls>\n", end="\n</tool_calls>", separator="\n")
MINIMAX_M1 = Dialect("minimax-m1", CALLS, lambda template: "<tool_calls>" in template)
