"""Llama 3: the answer is one JSON object with a name and parameters, without any marker."""

from phobos.chat.dialects.dialect import Dialect
from phobos.chat.dialects.forms.json_calls import JsonCalls

CALLS = JsonCalls(
    openers=('{"name":', '{ "name":', "<|python_tag|>{"),
    begin="",
    end="",
    arguments_key="parameters",
    several=False,
    opens_at_name=True,
    at_start=True,
)
LLAMA3 = Dialect("llama3", CALLS, lambda template: '"parameters": ' in template and '{"name": "' in template)
