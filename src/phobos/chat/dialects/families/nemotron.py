"""Nemotron Nano 2: a JSON list between `<TOOLCALL>` tags."""

from phobos.chat.dialects.dialect import Dialect
from phobos.chat.dialects.forms.json_calls import JsonCalls

CALLS = JsonCalls(openers=("<TOOLCALL>",), begin="<TOOLCALL>[", end="]</TOOLCALL>", separator=", ")
NEMOTRON = Dialect("nemotron", CALLS, lambda template: "<TOOLCALL>" in template)
