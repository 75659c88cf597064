"""Functionary 3.1: JSON between `<function=NAME>` tags."""

from phobos.chat.dialects.dialect import Dialect
from phobos.chat.dialects.forms.named_calls import NamedCalls

CALLS = NamedCalls(openers=("<function=",), call_begin="<function=", name_end=">", call_end="</function>")
FUNCTIONARY_3_1 = Dialect(
    "functionary-3.1", CALLS, lambda template: "<function=" in template and "<parameter=" not in template
)
