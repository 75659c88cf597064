"""Conversations that templates cannot say as they are: what is folded, what is refused, what reasoning and continuing
make of the prompt."""

import json
from pathlib import Path

import pytest

from phobos.chat.messages import GenerationRequest, Message, ToolCall, ToolChoice, ToolSpec
from phobos.chat.request_prompt import render_request
from phobos.chat.template import ChatTemplate
from phobos.chat.template_fitting import fit_dialect
from phobos.chat.template_sources import CHATML, NAMED_TEMPLATES, find_template, read_template
from phobos.errors import RequestError, UsageError

USER, SYSTEM, REPLY = Message("user", "Hi"), Message("system", "Be brief"), Message("assistant", "Yo")
TOOL = ToolSpec("f", "does f", {"type": "object", "properties": {"x": {"type": "integer"}}})
CALL = ToolCall("call_1", "f", '{"x": 1, "city": "Münster"}')
CALLS = Message("assistant", None, tool_calls=(CALL,))
RESULT = Message("tool", "42", tool_call_id="call_1")
ALTERNATING = """
{%- for m in messages -%}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('roles must alternate') }}{%- endif -%}
<{{ m.role }}>{{ m.content }}{%- endfor -%}"""
TOOLS = """
{%- if tools %}[{{ tools|map(attribute='function')|map(attribute='name')|join }}]{% endif -%}
{%- for m in messages %}<{{ m.role }}>{{ m.content if m.content is not none }}
{%- for c in m.tool_calls or [] %}({{ c.function.name }}:{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};
{%- endfor %}){% endfor %}{% endfor -%}"""


def text(source: str, *messages: Message, tools: tuple[ToolSpec, ...] = (), **options: object) -> str:
    return ChatTemplate(source, "<s>", "</s>").render_text(messages, tools, **options)


def test_system_is_folded_where_there_is_none() -> None:
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + ALTERNATING
    assert text(refuses, SYSTEM, USER) == "<user>Be brief\n\nHi"
    ignores = "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    assert text(ignores, SYSTEM, USER, REPLY) == "<user>Be brief\n\nHi<assistant>Yo"
    assert text(ignores, SYSTEM) == "<user>Be brief"


def test_system_in_the_middle_moves_to_the_front() -> None:
    strict = """{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('first!') }}
{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"""
    late = Message("system", "And polite")
    assert text(strict, SYSTEM, USER, late, USER) == "<system>Be brief\n\nAnd polite<user>Hi<user>Hi"
    assert text(CHATML, USER, late).index("Hi") < text(CHATML, USER, late).index("polite")


def test_neighbours_of_one_role_are_merged() -> None:
    assert text(ALTERNATING, USER, Message("user", "There"), REPLY) == "<user>Hi\n\nThere<assistant>Yo"


def test_what_cannot_be_folded_is_refused_in_the_templates_words() -> None:
    with pytest.raises(RequestError, match="roles must alternate") as caught:
        text(ALTERNATING, REPLY, USER)
    assert caught.value.status == 400


@pytest.mark.parametrize("form", ["missing", "none", "blank"])
def test_absent_content_never_shows(form: str) -> None:
    sources = {
        "missing": TOOLS,
        "none": TOOLS.replace("m.content if m.content is not none", "m['content'] if m.content is not none"),
        "blank": TOOLS.replace("{{ m.content if m.content is not none }}", "{{ m.content.strip() }}"),
    }
    found = text(sources[form], USER, CALLS, RESULT, tools=(TOOL,))
    assert "None" not in found and "null" not in found
    assert found == "[f]<user>Hi<assistant>(f:x=1;city=Münster;)<tool>42"


def test_printed_none_is_avoided() -> None:
    prints = TOOLS.replace("{{ m.content if m.content is not none }}", "{{ m['content'] }}")
    assert text(prints, USER, CALLS, RESULT, tools=(TOOL,)) == "[f]<user>Hi<assistant>(f:x=1;city=Münster;)<tool>42"


def test_calls_only_where_content_is_none() -> None:
    odd = """{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and m['content'] is none %}
{%- for c in m.tool_calls %}({{ c.function.name }}{{ c.function.arguments|tojson }}){% endfor %}
{%- else %}{{ m.content }}{% endif %}{% endfor %}"""
    template = ChatTemplate(odd)
    assert template.traits.empty_content == "none"
    assert template.traits.splits_calls
    spoken = Message("assistant", "Let me see", tool_calls=(CALL,))
    assert template.render_text([USER, spoken]) == (
        '<user>Hi<assistant>Let me see<assistant>(f{"x": 1, "city": "Münster"})'
    )


def test_arguments_are_mappings_or_text_as_the_template_wants() -> None:
    dumps = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
    mapping = dumps + "{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}"
    joined = dumps + "{{ '' + c.function.arguments }}{% endfor %}{% endfor %}"
    for source in (mapping, joined):
        assert text(source, USER, CALLS, RESULT) == 'Hif{"x": 1, "city": "Münster"}42'


@pytest.mark.parametrize("arguments", ["not json", "[1]", '{"x": NaN}', "{" * 5000])
def test_arguments_that_are_no_object_stay_text(arguments: str) -> None:
    broken = Message("assistant", None, tool_calls=(ToolCall("c", "f", arguments),))
    printing = TOOLS.replace(
        "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};\n{%- endfor %}", "{{ c.function.arguments }}"
    )
    assert arguments in text(printing, USER, broken, RESULT)
    with pytest.raises(RequestError, match="chat template"):
        text(TOOLS, USER, broken, RESULT)


def test_empty_arguments_are_an_empty_object() -> None:
    assert "(f:)" in text(TOOLS, USER, Message("assistant", None, tool_calls=(ToolCall("c", "f", ""),)), RESULT)


def test_content_as_parts_where_the_template_wants_them() -> None:
    parts = "{% for m in messages %}{% for p in m.content %}{{ p.text if p.type == 'text' }}{% endfor %}{% endfor %}"
    template = ChatTemplate(parts)
    assert template.traits.has_parts
    assert template.render_text([USER, REPLY]) == "HiYo"


def test_one_call_a_message() -> None:
    single = TOOLS.replace(
        "{%- for c in", "{%- if m.tool_calls|length > 1 %}{{ raise_exception('one') }}{% endif -%}{%- for c in"
    )
    two = Message("assistant", None, tool_calls=(CALL, ToolCall("call_2", "f", '{"x": 2}')))
    results = (RESULT, Message("tool", "43", tool_call_id="call_2"))
    assert text(single, USER, two, *results) == (
        "<user>Hi<assistant>(f:x=1;city=Münster;)<tool>42<assistant>(f:x=2;)<tool>43"
    )


def test_a_user_speaks_after_a_result() -> None:
    strict = "{% for m in messages %}{% if m.role == 'user' and loop.previtem and loop.previtem.role == 'tool' %}" + (
        "{{ raise_exception('answer first') }}{% endif %}{% endfor %}" + TOOLS
    )
    assert text(strict, USER, CALLS, RESULT, USER).endswith("<tool>42<assistant> <user>Hi")


def test_ids_of_nine_characters() -> None:
    strict = """{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id|length != 9 %}
{{- raise_exception('nine') }}{% endif %}{{ c.function.name }}{{ c.function.arguments|tojson }}#{{ c.id }}{% endfor %}
{%- if m.role == 'tool' %}@{{ m.tool_call_id }}={% endif %}{{ m.content }}{% endfor %}"""
    found = text(strict, USER, CALLS, RESULT)
    assert found == 'Hif{"x": 1, "city": "Münster"}#000000000@000000000=42'


def test_tools_as_text_where_the_template_knows_none() -> None:
    found = text(CHATML, SYSTEM, USER, CALLS, RESULT, tools=(TOOL,))
    system, user, call, result = found.split("<|im_start|>")[1:5]
    assert system.startswith("system\nBe brief\n\nYou may call functions")
    assert '{"type": "function", "function": {"name": "f"' in system
    assert user == "user\nHi<|im_end|>\n"
    assert json.loads(call.split("\n")[2]) == {"name": "f", "arguments": json.loads(CALL.arguments)}
    assert result == "user\n<tool_response>\n42\n</tool_response><|im_end|>\n"
    assert text(CHATML, USER, CALLS, RESULT, RESULT).count("<|im_start|>user") == 2
    assert text(CHATML, USER, tools=(TOOL,)).startswith("<|im_start|>system\nYou may call")


def test_a_tool_message_without_content() -> None:
    assert text(TOOLS, USER, CALLS, Message("tool", None, tool_call_id="call_1")).endswith("<tool>")


def test_the_name_of_a_result_comes_from_its_call() -> None:
    named = TOOLS.replace("<{{ m.role }}>", "<{{ m.role }}>{{ m.name if m.role == 'tool' }}")
    assert text(named, USER, CALLS, RESULT).endswith("<tool>f42")
    assert text(named, USER, CALLS, Message("tool", "42", tool_call_id="call_1", name="own")).endswith("<tool>own42")


def test_no_tools_is_what_the_template_can_bear() -> None:
    looping = "{% for t in tools %}{{ t.function.name }}{% endfor %}{{ messages[-1].content }}"
    assert text(looping, USER) == "Hi"
    undefined = "{% if tools is defined %}{{ raise_exception('tools') }}{% endif %}{{ messages[-1].content }}"
    assert text(undefined, USER) == "Hi"


def test_parameters_without_description() -> None:
    careless = (
        """{% for t in tools or [] %}{{ t.function.name }}{% for k, p in t.function.parameters.properties.items() %}
{{- '(' + p.description + p.type + ')' }}{% endfor %}{% endfor %}"""
        + TOOLS
    )
    assert text(careless, USER, tools=(TOOL,)).startswith("f(integer)")


def test_special_variables() -> None:
    assert text("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", USER) == "<s>Hi</s>"
    fire = "{{ functions }}{{ 'x' if datetime }}{{ messages[-1].content }}"
    assert text(fire, USER) == "[]xHi"
    smol = "{{ xml_tools|length }}{{ tools[0].function.name if tools }}" + TOOLS
    assert text(smol, USER, tools=(TOOL,)).startswith("1f")


THINKING = CHATML.replace(
    "assistant\\n' }}{% endif %}",
    "assistant\\n' }}{{ '<think>\\n' if enable_thinking else '<think>\\n\\n</think>\\n\\n' }}{% endif %}",
)


def render_with(source: str, *messages: Message, **fields: object) -> str:
    request = GenerationRequest("r", messages=messages, **fields)  # type: ignore[arg-type]
    return "".join(segment.text for segment in render_request(ChatTemplate(source), request))


def test_reasoning_is_off_unless_asked() -> None:
    assert render_with(THINKING, USER).endswith("<think>\n\n</think>\n\n")
    assert render_with(THINKING, USER, thinking=True).endswith("<think>\n")
    assert render_with(THINKING, USER, template_kwargs={"enable_thinking": True}).endswith("<think>\n")


@pytest.mark.parametrize(
    ("fields", "variables", "expected"),
    [
        ({"thinking": True}, "{{ thinking }}{{ reasoning }}{{ thinking_mode }}", "TrueTrueenabled"),
        ({}, "{{ thinking }}{{ thinking_mode }}{{ reasoning_effort is defined }}", "FalsedisabledFalse"),
        ({"thinking": True, "reasoning_effort": "high"}, "{{ reasoning_effort }}", "high"),
        ({"thinking": True, "reasoning_effort": "xhigh"}, "{{ reasoning_effort }}", "high"),
        ({"thinking": True, "reasoning_effort": "minimal"}, "{{ reasoning_effort }}", "low"),
        ({"reasoning_effort": "none"}, "{{ reasoning_effort is defined }}", "False"),
        (
            {"preserve_thinking": True},
            "{{ preserve_thinking }}{{ clear_thinking }}{{ drop_thinking }}",
            "TrueFalseFalse",
        ),
        ({}, "{{ clear_thinking is defined }}", "False"),
        ({"template_kwargs": {"add_generation_prompt": False}}, "{{ add_generation_prompt }}", "False"),
    ],
)
def test_names_of_thinking(fields: dict[str, object], variables: str, expected: str) -> None:
    assert render_with(variables + "{{ messages[0].content }}", USER, **fields) == expected + "Hi"


def test_reasoning_in_history_has_every_name() -> None:
    source = "{% for m in messages %}{{ m.reasoning_content }}{{ m.thinking }}{{ m.content }}{% endfor %}"
    assert render_with(source, USER, Message("assistant", "Yo", reasoning="hm"), USER) == "HihmhmYoHi"


def test_no_tools_are_shown_where_none_may_be_called() -> None:
    source = TOOLS
    assert render_with(source, USER, tools=(TOOL,)).startswith("[f]")
    assert render_with(source, USER, tools=(TOOL,), tool_choice=ToolChoice("none")) == "<user>Hi"


def test_a_trailing_assistant_message_is_continued() -> None:
    half = Message("assistant", "The answer")
    assert render_with(CHATML, USER, half, continue_assistant=True).endswith("<|im_start|>assistant\nThe answer")
    assert render_with(CHATML, USER, half).endswith("The answer<|im_end|>\n<|im_start|>assistant\n")
    assert render_with(THINKING, USER, half, continue_assistant=True).endswith("</think>\n\nThe answer")
    thought = Message("assistant", "The answer", reasoning="hm")
    opened = render_with(THINKING, USER, thought, continue_assistant=True, thinking=True)
    assert opened.endswith("<think>\nhm\n</think>\n\nThe answer")


def test_the_template_cannot_change_the_request() -> None:
    source = "{% set _ = tools[0].function.parameters.properties.update({'y': 1}) if tools %}" + TOOLS
    text(source, USER, tools=(TOOL,))
    assert TOOL.parameters["properties"] == {"x": {"type": "integer"}}


def test_prefilled_reasoning_opens_the_answer() -> None:
    assert render_with(THINKING, USER, prefill_thinking="So").endswith("assistant\n<think>\nSo")
    assert render_with(CHATML, USER, prefill_thinking="So").endswith("assistant\n<think>\nSo")
    mistral = CHATML + "{# [TOOL_CALLS] [THINK] #}"
    _, fitted = fit_dialect(ChatTemplate(mistral))
    request = GenerationRequest("r", messages=(USER,), prefill_thinking="")
    assert "".join(segment.text for segment in render_request(fitted, request)).endswith("assistant\n[THINK]")


def test_reasoning_that_nobody_asked_for_is_closed() -> None:
    always = CHATML.replace("assistant\\n' }}{% endif %}", "assistant\\n<think>\\n' }}{% endif %}")
    assert render_with(always, USER).endswith("assistant\n<think>\n\n</think>\n\n")
    assert render_with(always, USER, thinking=True).endswith("assistant\n<think>\n")
    assert render_with(always, USER, template_kwargs={"enable_thinking": True}).endswith("assistant\n<think>\n")
    assert ChatTemplate(THINKING).traits.knows_thinking
    assert not ChatTemplate(always).traits.knows_thinking


@pytest.mark.parametrize("name", sorted(NAMED_TEMPLATES))
def test_named_templates_render(name: str) -> None:
    found = text(NAMED_TEMPLATES[name], SYSTEM, USER, REPLY, Message("user", "More"))
    assert all(said in found for said in ("Be brief", "Hi", "Yo", "More"))
    assert found.index("Hi") < found.index("Yo") < found.index("More")


def test_which_template_is_used(tmp_path: Path) -> None:
    own = {"tokenizer.chat_template": "own"}
    assert find_template(own) == "own"
    assert find_template({}) is None
    assert find_template({"tokenizer.chat_template": " "}) is None
    assert find_template({"tokenizer.chat_template.tool_use": "tools"}) == "tools"
    assert read_template("chatml") == CHATML
    assert read_template("{{ bos_token }}") == "{{ bos_token }}"
    file = tmp_path / "t.jinja"
    file.write_text("filed")
    assert read_template(str(file)) == "filed"
    for wrong in (str(tmp_path), "no-such-name"):
        with pytest.raises(UsageError, match="chatml"):
            read_template(wrong)


def test_a_second_template_for_tools() -> None:
    both = {"tokenizer.chat_template": CHATML + "\n", "tokenizer.chat_template.tool_use": "T" + TOOLS + "\n"}
    source = find_template(both)
    assert source is not None
    assert text(source, USER, tools=(TOOL,)) == "T[f]<user>Hi"
    assert text(source, USER) == text(CHATML, USER)
