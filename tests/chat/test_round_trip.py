"""A call that a model wrote, parsed and put into the history, renders back to the text the model wrote."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from models.small_vocabulary import shared_files
from phobos.chat.messages import Message, ToolCall, ToolSpec
from phobos.chat.template import ChatTemplate
from phobos.chat.template_fitting import fit_dialect
from reading import cut_every, read
from template_conversations import BOS, EOS, USER, result

TOOLS = (
    ToolSpec(
        "look_up",
        "Look it up",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "number": {"type": "integer"},
                "ok": {"type": "boolean"},
                "rate": {"type": "number"},
                "list": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["city"],
        },
    ),
    ToolSpec("ping", "Ping", {"type": "object", "properties": {}}),
)
FIRST = ToolCall(
    "abcDEF123",
    "look_up",
    '{"city": "Mün\\"ster <&\\nü 🙂", "list": ["a", "b"], "number": 12345678901234567890, "ok": true, "rate": 1.5}',
)
SECOND = ToolCall("defGHI456", "ping", "{}")
ONE_CALL = ("llama3", "harmony", "gigachat")


@pytest.mark.parametrize("path", shared_files("templates", "*.jinja"))
def test_a_parsed_call_renders_back(path: Path) -> None:
    dialect, template = fit_dialect(ChatTemplate(path.read_text(), BOS, EOS))
    calls = (FIRST,) if dialect.name in ONE_CALL else (FIRST, SECOND)

    def render(calls: tuple[ToolCall, ...]) -> str:
        asked = Message("assistant", None, tool_calls=calls)
        results = [result(call, "done") for call in calls]
        return template.render_text([USER, asked, *results], TOOLS, add_generation_prompt=False)

    history = render(calls)
    begin = history.index("Hello there")
    begin = min(i for opener in dialect.calls.openers if (i := history.find(opener, begin)) >= 0)
    written = history[begin : history.index("done", begin)]
    answer = read(dialect, TOOLS, cut_every(written, 3))
    assert [name for name, _ in answer.calls] == [call.name for call in calls], written
    for (_, arguments), call in zip(answer.calls, calls, strict=True):
        assert json.loads(arguments) == json.loads(call.arguments)
    parsed = [replace(call, arguments=text) for call, (_, text) in zip(calls, answer.calls, strict=True)]
    assert render(tuple(parsed)) == history
