"""FireFunction: a JSON list behind `functools`."""

from phobos.chat.dialects.dialect import Dialect
from phobos.chat.dialects.forms.json_calls import JsonCalls

CALLS = JsonCalls(openers=("functools[",), begin="functools[", end="]", separator=", ")
FIREFUNCTION = Dialect("firefunction", CALLS, lambda template: "functools[" in template)
