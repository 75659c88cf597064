"""Dialects learnt from templates: the shared ones against those written by hand, odd ones, and hostile ones."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from derived_templates import SOURCES, derive, derived
from models.small_vocabulary import shared_files
from phobos.chat.dialects.dialect import Dialect
from phobos.chat.messages import Message, ToolCall
from phobos.chat.template import ChatTemplate
from phobos.chat.template_fitting import fit_dialect
from phobos.inspection import dialect_of
from reading import Answer, cut_every, read
from template_conversations import BOS, CALL, EOS, OTHER_CALL, USER, WEATHER, calling, result

# Families whose calls are of another shape than the forms that can be learnt.
NOT_DERIVABLE = {
    "gemma": "text stands in tokens of its own, keys are bare",
    "harmony": "a message's header says whether it is a call",
    "functionary-3.2": "a part's header says whether it is a call",
    "muse-glimmer": "a message's header says whether it is a call",
    "kimi-k3": "tags tell the type of each argument",
    "minimax-m3": "the closing tag of an argument has its name",
}


def load(path: Path) -> ChatTemplate:
    return ChatTemplate(path.read_text(), BOS, EOS)


def written_by(template: ChatTemplate, dialect: Dialect, *calls: ToolCall) -> str:
    """What the template writes of calls, from the first opener on."""
    messages = [USER, calling(*calls), *(result(call, "12 degrees") for call in calls)]
    text = template.render_text(messages, (WEATHER,), add_generation_prompt=False)
    begin = text.rindex(USER.content or "")
    begin = min(place for opener in dialect.calls.openers if (place := text.find(opener, begin)) >= 0)
    return text[begin : text.index("12 degrees", begin)]


def calls_in(dialect: Dialect, text: str, n_chars: int) -> tuple[tuple[str, Any], ...]:
    found = read(dialect, (WEATHER,), cut_every(text, n_chars)).calls
    return tuple((name, json.loads(arguments)) for name, arguments in found)


@pytest.mark.parametrize("path", shared_files("templates", "*.jinja"))
def test_derived_and_written_by_hand_agree(path: Path) -> None:
    template = load(path)
    known, fitted = fit_dialect(template)
    found = derive(template.source)
    if not template.traits.knows_calls:
        assert found is None
        return
    if known.name in NOT_DERIVABLE:
        assert found is None
        return
    assert found is not None
    for calls in ((CALL,),) if known.name in ("llama3", "gigachat") else ((CALL,), (CALL, OTHER_CALL)):
        wanted = tuple((call.name, json.loads(call.arguments)) for call in calls)
        text = written_by(fitted, known, *calls)
        for n_chars in (1, 3, len(text)):
            assert calls_in(known, text, n_chars) == calls_in(found, text, n_chars) == wanted, text
    if known.reasoning.begin in template.source:
        marks = (found.reasoning.begin, found.reasoning.end)
        assert marks == (known.reasoning.begin, known.reasoning.end)


def test_how_many_of_the_shared_templates_are_derivable() -> None:
    files = [path for path in shared_files("templates", "*.jinja") if isinstance(path, Path)]
    if len(files) < 60:
        pytest.skip("no shared templates: set PHOBOS_SHARED to the folder that holds them")
    fitted = [fit_dialect(template)[0].name for path in files if (template := load(path)).traits.knows_calls]
    assert len(fitted) == 54 and sum(name not in NOT_DERIVABLE for name in fitted) == 47


@pytest.mark.parametrize("name", SOURCES)
def test_a_family_without_a_file_calls_in_its_own_syntax(name: str) -> None:
    """Marks that no known dialect has, so that none fits."""
    source = SOURCES[name]
    for known, other in MARKS.items():
        source = source.replace(known, other)
    dialect, template = fit_dialect(ChatTemplate(source, BOS, EOS))
    assert dialect.name == "derived" and template.traits.knows_tools, name
    assert dialect_of(source) == "derived"
    text = written_by(template, dialect, CALL, OTHER_CALL)
    wanted = tuple((call.name, json.loads(call.arguments)) for call in (CALL, OTHER_CALL))
    assert calls_in(dialect, text, 1) == wanted
    assert "one JSON object a line" not in template.render_text([USER], (WEATHER,))


MARKS = {
    "<tool_call": "<act",
    "</tool_call": "</act",
    "TOOLCALL": "ACTS",
    "functools[": "acts:[",
    "[TOOL_CALLS]": "[ACTS]",
    "CALL_ID": "ACT_ID",
    "[ARGS]": "[WITH]",
    "<function=": "<act=",
    "</function>": "</act>",
    "parameter": "part",
    "arg_key": "k",
    "arg_value": "v",
    "tool▁call": "act",
    "<|tool_call_": "<|act_",
}


def test_thoughts_are_learnt_too() -> None:
    source = SOURCES["hermes"].replace("think>", "ponder>").replace("tool_call>", "act>")
    dialect, template = fit_dialect(ChatTemplate(source, BOS, EOS))
    assert (dialect.reasoning.opening, dialect.reasoning.closing) == ("<ponder>\n", "\n</ponder>\n\n")
    text = template.render_text([USER, calling(CALL, reasoning="So")], (WEATHER,))
    text = text[text.index("<ponder>") : text.index("<|im_end|>", text.index("<ponder>"))]
    arguments = (("get_weather", CALL.arguments),)
    assert read(dialect, (WEATHER,), cut_every(text, 2)) == Answer(
        reasoning="So", calls=arguments, order=("reasoning", "call 0")
    )


def test_arguments_in_an_objects_own_keys_and_ids_beside_them() -> None:
    call = '{"id": "{{ c.id }}", "fn": "{{ f.name }}", "with": {{ f.arguments | tojson }}, "kind": "function"}'
    source = SOURCES["nemotron"].replace("TOOLCALL", "ACTS")
    begin, end = source.index('{"name"'), source.index("| tojson }}}") + len("| tojson }}}")
    found = derive(source[:begin] + call + source[end:])
    assert found is not None
    rules = found.calls.grammar((WEATHER,), parallel=False, opening=None)
    assert '"{\\"fn\\": \\"get_weather\\", "' in rules and '\\"with\\": ' in rules and '\\"kind\\"' in rules
    text = '<ACTS>[{"fn": "get_weather", "with": {"city": "Rom"}, "kind": "function"}]</ACTS>'
    assert calls_in(found, text, 1) == (("get_weather", {"city": "Rom"}),)


NO_DIALECT = {
    "reversed": "{% for c in m.tool_calls %}{{ c.function.arguments | tojson }} by {{ c.function.name }}{% endfor %}",
    "prose": "{% for c in m.tool_calls %}I call {{ c.function.name }}: {{ c.function.arguments | tojson }}{% endfor %}",
    "name only": "{% for c in m.tool_calls %}<go>{{ c.function.name }}</go>{% endfor %}",
    "shouted": "{% for c in m.tool_calls %}<go>{{ c.function | tojson | upper }}</go>{% endfor %}",
    "random": "{% for c in m.tool_calls %}{{ raise_exception('no calls') }}{% endfor %}",
    "endless": "{% for c in m.tool_calls %}<go>{{ c.function | tojson }}{{ '{ ' * 9000 }}{% endfor %}",
    "nested": "{% for c in m.tool_calls %}{{ '{\"a\":' * 3000 }}{{ c.function | tojson }}{{ '}' * 3000 }}{% endfor %}",
}


@pytest.mark.parametrize("name", NO_DIALECT)
def test_a_template_that_defies_learning_is_plain(name: str, caplog: pytest.LogCaptureFixture) -> None:
    source = (
        "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{{ m.content or '' }}{% if m.tool_calls %}" + NO_DIALECT[name] + "{% endif %}<|im_end|>\n{% endfor %}"
    )
    template = ChatTemplate(source, BOS, EOS)
    with caplog.at_level(logging.WARNING):
        started_s = time.monotonic()
        dialect, fitted = fit_dialect(template)
        assert time.monotonic() - started_s < 5.0
    assert dialect.name == "plain" and not caplog.records
    assert "one JSON object a line" in fitted.render_text([Message("user", "Hi")], (WEATHER,))


def test_what_goes_wrong_while_learning_is_told_and_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object) -> None:
        raise IndexError("list index out of range")

    monkeypatch.setattr("phobos.chat.template_fitting.derive_dialect", fail)
    source = SOURCES["hermes"].replace("tool_call>", "act>")
    assert fit_dialect(ChatTemplate(source, BOS, EOS))[0].name == "plain"
    assert "could not be learnt" in caplog.text


def test_known_families_are_not_learnt() -> None:
    assert fit_dialect(ChatTemplate(SOURCES["hermes"], BOS, EOS))[0].name == "hermes"
    assert derived("hermes").calls.openers == ("<tool_call>",)
