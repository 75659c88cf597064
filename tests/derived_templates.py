"""Chat templates written for tests, with calls as known dialects write them, and the dialects learnt from them."""

from __future__ import annotations

from functools import cache

from phobos.chat.dialects import DIALECTS
from phobos.chat.dialects.derived.derivation import derive_dialect
from phobos.chat.dialects.dialect import Dialect
from phobos.chat.template import ChatTemplate


def _turns(call: str, begin: str = "", separator: str = "", end: str = "") -> str:
    """A template in ChatML whose calls stand between two texts."""
    between = "{% if not loop.last %}{{ '" + separator + "' }}{% endif %}"
    return (
        "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}{% for m in messages %}"
        "<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n"
        "{% endif %}{{ m.content or '' }}{% if m.tool_calls %}{{ '" + begin + "' }}{% for c in m.tool_calls %}"
        "{% set f = c.function %}"
        + call + between + "{% endfor %}{{ '" + end + "' }}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )  # fmt: skip


_OBJECT = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
_VALUE = "{{ v if v is string else v | tojson }}"
_ITEMS = "{% for k, v in f.arguments.items() %}"
SOURCES = {
    "hermes": _turns("<tool_call>\n" + _OBJECT + "\n</tool_call>", separator="\\n"),
    "nemotron": _turns(_OBJECT, "<TOOLCALL>[", ", ", "]</TOOLCALL>"),
    "minimax-m1": _turns(_OBJECT, "<tool_calls>\\n", "\\n", "\\n</tool_calls>"),
    "firefunction": _turns(_OBJECT, "functools[", ", ", "]"),
    "mistral": _turns(_OBJECT[:-1] + ', "id": "{{ c.id }}"}', "[TOOL_CALLS][", ", ", "]"),
    "mistral-ids": _turns("[TOOL_CALLS]{{ f.name }}[CALL_ID]{{ c.id }}[ARGS]{{ f.arguments | tojson }}"),
    "functionary-3.1": _turns("<function={{ f.name }}>{{ f.arguments | tojson }}</function>"),
    "deepseek": _turns(
        "<｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>{{ f.arguments | tojson }}<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>",
        end="<｜tool▁calls▁end｜>",
    ),
    "qwen-xml": _turns(
        "<tool_call>\n<function={{ f.name }}>\n" + _ITEMS + "<parameter={{ k }}>\n" + _VALUE + "\n</parameter>\n"
        "{% endfor %}</function>\n</tool_call>",
        separator="\\n",
    ),
    "glm-run": _turns(
        "<tool_call>{{ f.name }}" + _ITEMS + "<arg_key>{{ k }}</arg_key><arg_value>" + _VALUE + "</arg_value>"
        "{% endfor %}</tool_call>"
    ),
    "lfm": _turns(
        "{{ f.name }}(" + _ITEMS + """{{ k }}={{ "'" ~ v ~ "'" if v is string else v }}"""
        "{% if not loop.last %}, {% endif %}{% endfor %})",
        "<|tool_call_start|>[",
        ", ",
        "]<|tool_call_end|>",
    ),
}  # fmt: skip


def derive(source: str) -> Dialect | None:
    """What is learnt from a template alone, though a known dialect may fit it."""
    template = ChatTemplate(source, "<BOS>", "<EOS>")
    tools_too, traits = template.traits.knows_tools, template.traits
    known = dict.fromkeys(dialect.reasoning for dialect in DIALECTS)
    return derive_dialect(
        lambda messages, tools: template.probe(messages, tools if tools_too else (), traits), source, known
    )


@cache
def derived(name: str) -> Dialect:
    """The dialect learnt from the template written in the manner of a known one."""
    found = derive(SOURCES[name])
    assert found is not None, name
    return found
