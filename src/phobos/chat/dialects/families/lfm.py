"""LFM 2 and 2.5: Python calls in a list between its own tokens. Not all templates spell these: the first has markers of
the list of tools only, a later one not even those."""

from phobos.chat.dialects.dialect import Dialect
from phobos.chat.dialects.forms.python_calls import PythonCalls

CALLS = PythonCalls(openers=("<|tool_call_start|>",), begin="<|tool_call_start|>", end="<|tool_call_end|>")
_SIGNS = ("<|tool_call_start|>", "<|tool_list_start|>", '"List of tools: ["')
LFM = Dialect("lfm", CALLS, lambda template: any(sign in template for sign in _SIGNS))
