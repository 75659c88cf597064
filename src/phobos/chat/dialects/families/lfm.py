"""LFM 2 and 2.5: Python calls in a list between its own tokens, which some of their templates do not spell."""

from phobos.chat.dialects.dialect import Dialect
from phobos.chat.dialects.forms.python_calls import PythonCalls

CALLS = PythonCalls(openers=("<|tool_call_start|>",), begin="<|tool_call_start|>", end="<|tool_call_end|>")
_INTRODUCTION = '"List of tools: ["'
LFM = Dialect("lfm", CALLS, lambda template: "<|tool_call_start|>" in template or _INTRODUCTION in template)
