"""GigaChat: a JSON object behind `<|function_call|>`."""

from phobos.chat.dialects.dialect import Dialect
from phobos.chat.dialects.forms.json_calls import JsonCalls

CALLS = JsonCalls(openers=("<|function_call|>",), begin="<|function_call|>", end="", between="")
GIGACHAT = Dialect("gigachat", CALLS, lambda template: "<|function_call|>" in template)
