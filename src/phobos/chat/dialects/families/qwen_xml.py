"""Qwen3-Coder, Qwen 3.5, Nemotron 3: `<function=…>` and `<parameter=…>` tags."""

from phobos.chat.dialects.dialect import Dialect
from phobos.chat.dialects.forms.tagged_calls import TaggedCalls

CALLS = TaggedCalls(
    openers=("<tool_call>", "<function="),
    call_begin="<tool_call>\n<function=",
    name_end=">\n",
    key_begin="<parameter=",
    key_end=">",
    value_end="</parameter>\n",
    call_end="</function>\n</tool_call>",
    pad="\n",
    python_words=True,
)
QWEN_XML = Dialect("qwen-xml", CALLS, lambda template: "<function=" in template and "<parameter=" in template)
