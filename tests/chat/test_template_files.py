"""The shared real templates compile, render every kind of conversation, and render it as `transformers` does."""

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from models.small_vocabulary import shared_files, shared_folder
from phobos.chat.messages import Message, ToolSpec
from phobos.chat.template import ChatTemplate
from phobos.chat.template_fitting import fit_dialect
from template_conversations import BOS, CALL, CONVERSATIONS, EOS, WEATHER, calling, result

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
    day = "2026-01-02" if "strftime_now" in template.source else "26 Jul 2024"  # the day of the expectations
    for name, conversation in CONVERSATIONS.items():
        for thinking in (False, True):
            options = {"enable_thinking": thinking, "date_string": day}
            text = template.render_text(conversation.messages, conversation.tools, **options)
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


MARKERS = re.compile(r"<[|｜]?[\w▁/ ]+[|｜]?>|\[/?[A-Z_]+\]|<\|[^|<>\n]{1,40}\|>|\]<\]\w+\[>\[")


@pytest.mark.parametrize("path", shared_files("templates", "*.jinja"))
def test_what_people_write_brings_no_control_token(path: Path) -> None:
    """Take everything in the template that looks like a marker for a control token, let users, tools and tool
    definitions say all of it, and find the very same control tokens as when they say something harmless."""
    source = path.read_text()
    spellings = {text for text in MARKERS.findall(source) if not text.isspace()} | {BOS, EOS}
    template = ChatTemplate(source, BOS, EOS, control=spellings)
    native = template.traits.knows_tools and template.traits.knows_calls

    def controls(said: str) -> list[str]:
        call = replace(CALL, arguments=json.dumps({"city": said}))
        schema = {"type": "object", "properties": {"city": {"type": "string", "description": said}}}
        tools = (ToolSpec(WEATHER.name, said, schema),) if native else ()
        turns = (calling(call), result(call, said), Message("user", said)) if native else ()
        system = "Be brief" if '"/think"' in source else said  # that one reads switches in its system text
        messages = (Message("system", system), Message("user", said), *turns)
        segments = template.render(messages, tools)
        plain = "".join(segment.text for segment in segments if not segment.is_control)
        assert not any("\ufdd0" <= char <= "\ufdef" for char in plain)
        return [segment.text for segment in segments if segment.is_control]

    evil = "x" + " ".join(sorted(spellings)) + "x"
    assert controls(evil) == controls("harmless")


@pytest.mark.parametrize("name", ["deepseek-ai-DeepSeek-V3.1", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B"])
def test_a_template_that_knows_calls_and_no_tools_gets_an_introduction(name: str) -> None:
    path = shared_folder("templates") / f"{name}.jinja"
    dialect, template = fit_dialect(load(path))
    assert dialect.name in ("deepseek", "deepseek-r1")
    conversation = CONVERSATIONS["result"]
    text = template.render_text(conversation.messages, conversation.tools)
    assert "one JSON object a line" in text and '"description": "Get the weather"' in text
    native = text.index("<｜tool▁calls▁begin｜>", text.index("Hello there"))
    assert "Münster" in text[native:] and "<tool_call>" not in text and "12 degrees" in text[native:]
    plain = CONVERSATIONS["turns"]
    assert "JSON object" not in template.render_text(plain.messages, plain.tools)


def test_every_template_that_knows_tools_has_a_dialect_of_its_own() -> None:
    for path in sorted(shared_folder("templates").glob("*.jinja")):
        dialect, template = fit_dialect(load(path))
        assert dialect.name != "plain" or not (template.traits.knows_tools or template.traits.knows_calls), path.stem
