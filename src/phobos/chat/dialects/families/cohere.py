"""Cohere: Command R+ with an action in a fence, Command R7B and A with JSON between tokens, Cohere 2 MoE likewise."""

from phobos.chat.dialects.dialect import Dialect, Reasoning
from phobos.chat.dialects.forms.json_calls import JsonCalls

THINK = Reasoning("<|START_THINKING|>", "<|END_THINKING|>", after_begin="", before_end="", after_end="")
CALLS = JsonCalls(
    openers=("<|START_ACTION|>",),
    begin="<|START_ACTION|>[\n    ",
    end="\n]<|END_ACTION|>",
    separator=",\n    ",
    name_key="tool_name",
    arguments_key="parameters",
    head='"tool_call_id": "0", ',
)
COHERE_TEXT = Dialect(
    "cohere-text",
    CALLS,
    lambda template: "<|START_ACTION|>" in template and "<|START_TEXT|>" in template,
    THINK,
    dropped=("<|START_TEXT|>", "<|END_TEXT|>"),
    answer_begin="<|START_TEXT|>",
    answer_end="<|END_TEXT|>",
)
COHERE = Dialect(
    "cohere",
    CALLS,
    lambda template: "<|START_ACTION|>" in template,
    THINK,
    dropped=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    answer_begin="<|START_RESPONSE|>",
    answer_end="<|END_RESPONSE|>",
)
COMMAND_R = Dialect(
    "command-r",
    JsonCalls(
        openers=("Action:\n```json", "Action: ```json"),
        begin="Action:\n```json\n[\n    ",
        end="\n]```",
        separator=",\n    ",
        name_key="tool_name",
        arguments_key="parameters",
    ),
    lambda template: "Action:\\n```json" in template and "tool_name" in template,
)
