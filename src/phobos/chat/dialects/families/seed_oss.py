"""Seed-OSS: `<function=…>` and `<parameter=…>` tags between its own, and its own tags round thoughts."""

from phobos.chat.dialects.dialect import Dialect, Reasoning
from phobos.chat.dialects.forms.tagged_calls import TaggedCalls

CALLS = TaggedCalls(
    openers=("<seed:tool_call>",),
    call_begin="<seed:tool_call>\n<function=",
    name_end=">\n",
    key_begin="<parameter=",
    key_end=">",
    value_end="</parameter>\n",
    call_end="</function>\n</seed:tool_call>",
    python_words=True,
)
SEED_OSS = Dialect(
    "seed-oss",
    CALLS,
    lambda template: "<seed:tool_call>" in template,
    Reasoning("<seed:think>", "</seed:think>", after_begin="", before_end="", after_end="\n"),
)
