"""Families that differ from Hermes in their tags and keys only."""

from phobos.chat.dialects.dialect import Dialect, Reasoning
from phobos.chat.dialects.forms.json_calls import JsonCalls

_COHERE_THINK = Reasoning("<|START_THINKING|>", "<|END_THINKING|>", after_begin="", before_end="", after_end="")
_COHERE_CALLS = JsonCalls(
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
    _COHERE_CALLS,
    lambda template: "<|START_ACTION|>" in template and "<|START_TEXT|>" in template,
    _COHERE_THINK,
    dropped=("<|START_TEXT|>", "<|END_TEXT|>"),
    answer_begin="<|START_TEXT|>",
    answer_end="<|END_TEXT|>",
)
COHERE = Dialect(
    "cohere",
    _COHERE_CALLS,
    lambda template: "<|START_ACTION|>" in template,
    _COHERE_THINK,
    dropped=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    answer_begin="<|START_RESPONSE|>",
    answer_end="<|END_RESPONSE|>",
)
APRIEL = Dialect(
    "apriel",
    JsonCalls(openers=("<tool_calls>",), begin="<tool_calls>[", end="]</tool_calls>", separator=", "),
    lambda template: "<tool_calls>[" in template,
)
NEMOTRON = Dialect(
    "nemotron",
    JsonCalls(openers=("<TOOLCALL>",), begin="<TOOLCALL>[", end="]</TOOLCALL>", separator=", "),
    lambda template: "<TOOLCALL>" in template,
)
MINIMAX = Dialect(
    "minimax",
    JsonCalls(openers=("<tool_calls>",), begin="<tool_calls>\n", end="\n</tool_calls>", separator="\n"),
    lambda template: "<tool_calls>" in template,
)
FIREFUNCTION = Dialect(
    "firefunction",
    JsonCalls(openers=("functools[",), begin="functools[", end="]", separator=", "),
    lambda template: "functools[" in template,
)
GRANITE = Dialect(
    "granite",
    JsonCalls(openers=("<|tool_call|>",), begin="<|tool_call|>[", end="]", separator=", "),
    lambda template: "<|tool_call|>" in template,
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
GIGACHAT = Dialect(
    "gigachat",
    JsonCalls(openers=("<|function_call|>",), begin="<|function_call|>", end="", between=""),
    lambda template: "<|function_call|>" in template,
)
