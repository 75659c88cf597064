"""Mistral: a JSON list after `[TOOL_CALLS]`, later a name, at times an id, and `[ARGS]`."""

from dataclasses import replace

from phobos.chat.dialects.dialect import Dialect, Reasoning
from phobos.chat.dialects.forms.json_calls import JsonCalls
from phobos.chat.dialects.forms.named_calls import NamedCalls

THINK = Reasoning("[THINK]", "[/THINK]", after_begin="", before_end="", after_end="")
LIST = JsonCalls(
    openers=("[TOOL_CALLS]",),
    begin="[TOOL_CALLS][",
    end="]",
    separator=", ",
    tail='", \\"id\\": \\"" /[a-zA-Z0-9]{9}/ "\\""',
)
ARGS = NamedCalls(openers=("[TOOL_CALLS]",), call_begin="[TOOL_CALLS]", name_end="[ARGS]", call_end="")
IDS = replace(ARGS, id_begin="[CALL_ID]")

MISTRAL_IDS = Dialect("mistral-ids", IDS, lambda template: "[CALL_ID]" in template, THINK)
MISTRAL_ARGS = Dialect("mistral-args", ARGS, lambda template: "[ARGS]" in template, THINK)
MISTRAL = Dialect("mistral", LIST, lambda template: "[TOOL_CALLS]" in template, THINK)
