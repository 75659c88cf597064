"""GLM 4.5 to 4.7 and those who write like it: `<arg_key>` and `<arg_value>` pairs, on lines of their own or not."""

import re

from phobos.chat.dialects.dialect import Dialect
from phobos.chat.dialects.forms.tagged_calls import TaggedCalls

LINES = TaggedCalls(
    openers=("<tool_call>",),
    call_begin="<tool_call>",
    name_end="\n",
    key_begin="<arg_key>",
    key_end="</arg_key>\n<arg_value>",
    value_end="</arg_value>\n",
    call_end="</tool_call>",
)
RUN = TaggedCalls(
    openers=("<tool_call>",),
    call_begin="<tool_call>",
    name_end="",
    key_begin="<arg_key>",
    key_end="</arg_key><arg_value>",
    value_end="</arg_value>",
    call_end="</tool_call>",
    between="",
)


def _has_lines(template: str) -> bool:
    return re.search(r"</arg_key>(\\n|\n)", template) is not None


GLM = Dialect("glm", LINES, lambda template: "<arg_key>" in template and _has_lines(template))
GLM_RUN = Dialect("glm-run", RUN, lambda template: "<arg_key>" in template and not _has_lines(template))
