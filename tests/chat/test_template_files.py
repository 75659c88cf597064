"""The shared real templates compile, render every kind of conversation, and render it as `transformers` does."""

import hashlib
import json
from pathlib import Path

import pytest

from phobos.chat.template import ChatTemplate
from small_vocabulary import shared_files
from template_conversations import BOS, CALL, CONVERSATIONS, EOS

EXPECTED = json.loads((Path(__file__).parents[1] / "golden" / "template_renderings.json").read_text())
# What these templates leave out by design: text before a call, system text away from the last user turn, earlier
# system text, text beside calls written as reasoning only.
OMITS = {"spoken", "result", "after", "turns"}


def load(path: Path) -> ChatTemplate:
    source = path.read_text()
    if "strftime_now" in source:
        source = "{% macro strftime_now(form) %}2026-01-02{% endmacro %}" + source
    return ChatTemplate(source, BOS, EOS)


@pytest.mark.parametrize("path", shared_files("templates", "*.jinja"))
def test_renders_as_transformers_does(path: Path) -> None:
    template = load(path)
    expected = EXPECTED[path.stem]
    for name, conversation in CONVERSATIONS.items():
        for thinking in (False, True):
            text = template.render_text(conversation.messages, conversation.tools, enable_thinking=thinking)
            key = f"{name}/{'thinking' if thinking else 'answering'}"
            if expected.get(key) is not None:
                assert hashlib.sha256(text.encode()).hexdigest()[:24] == expected[key], key
            missing = [said for said in conversation.said if said not in text]
            assert not missing or name in OMITS, (key, missing)
            if conversation.has_tools:
                assert "get_weather" in text
            if any(message.tool_calls for message in conversation.messages):
                assert "Münster" in text or json.dumps("Münster")[1:-1] in text, key
                assert CALL.arguments.count("{") == 1
                assert '\\"city\\"' not in text, "arguments were encoded twice"


def test_expectations_cover_the_templates() -> None:
    files = shared_files("templates", "*.jinja")
    if len(files) == 1:
        pytest.skip("no shared templates: set PHOBOS_SHARED to the folder that holds them")
    assert len(files) == len(EXPECTED) == 60
    assert sum(value is not None for found in EXPECTED.values() for value in found.values()) > 900
