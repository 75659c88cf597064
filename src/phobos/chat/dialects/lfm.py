"""LFM 2 and 2.5: Python calls in a list between its own tokens."""

from phobos.chat.dialects.dialect import Dialect
from phobos.chat.dialects.python_calls import PythonCalls

CALLS = PythonCalls(openers=("<|tool_call_start|>",), begin="<|tool_call_start|>", end="<|tool_call_end|>")
LFM = Dialect("lfm", CALLS, lambda template: "<|tool_call_start|>" in template)
