"""MiniCPM: `<function name="…">` and `<param name="…">` tags, with CDATA where the text needs it."""

from phobos.chat.dialects.dialect import Dialect
from phobos.chat.dialects.forms.tagged_calls import TaggedCalls

CALLS = TaggedCalls(
    openers=('<function name="',),
    call_begin='<function name="',
    name_end='">',
    key_begin='<param name="',
    key_end='">',
    value_end="</param>",
    call_end="</function>",
    has_cdata=True,
    python_words=True,
)
MINICPM = Dialect("minicpm", CALLS, lambda template: "<function name=" in template)
