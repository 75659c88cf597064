"""What single families' templates need beyond what all have, with templates written in their manner."""

from __future__ import annotations

from pathlib import Path

from phobos.chat.messages import Message
from phobos.chat.template import ChatTemplate
from phobos.chat.template_fitting import fit_dialect
from phobos.chat.template_sources import read_template
from reading import Answer, cut_every, read
from template_conversations import CALL, EOS, OTHER_CALL, USER, WEATHER, calling, result

RESULT = "{% elif m.role == 'tool' %}<|im_system|>tool<|im_middle|>## Return of {{ m.tool_call_id }}\n{{ m.content }}"
KIMI_K2 = (
    "{% if tools %}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' and m.tool_calls %}"
    "<|im_assistant|>assistant<|im_middle|>{{ m.content or '' }}<|tool_calls_section_begin|>"
    "{% for c in m.tool_calls %}<|tool_call_begin|>{{ c['id'] }}<|tool_call_argument_begin|>"
    "{{ c.function.arguments | tojson }}<|tool_call_end|>{% endfor %}<|tool_calls_section_end|>"
    + RESULT
    + "{% else %}<|im_{{ m.role }}|>{{ m.role }}<|im_middle|>{{ m.content }}{% endif %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}"
)


def test_kimi_k2_calls_are_named_by_their_ids() -> None:
    """Its first template writes a call's own id where the name stands in it."""
    dialect, template = fit_dialect(ChatTemplate(KIMI_K2))
    assert dialect.name == "kimi-k2" and template.traits.knows_calls
    first = (calling(CALL, OTHER_CALL), result(CALL, "12 degrees"), result(OTHER_CALL, "30 degrees"))
    text = template.render_text([USER, *first, calling(CALL), result(CALL, "13 degrees")], (WEATHER,))
    called = text.split("<|tool_call_begin|>")[1:]
    assert [call.split("<|tool_call_argument_begin|>")[0] for call in called] == [
        f"functions.get_weather:{i}" for i in range(3)
    ]
    returned = [part.split("\n")[0] for part in text.split("## Return of ")[1:]]
    assert returned == [f"functions.get_weather:{i}" for i in range(3)]
    assert CALL.id not in text and "<tool_call>" not in text and '{"city": "Rom"}' in text


def test_kimi_k2_results_name_the_calls_also_where_the_template_makes_the_names() -> None:
    made = KIMI_K2.replace("{{ c['id'] }}", "{{ 'functions.' + c.function.name + ':' + loop.index0|string }}")
    _, template = fit_dialect(ChatTemplate(made))
    text = template.render_text([USER, calling(CALL), result(CALL, "12 degrees")], (WEATHER,))
    assert text.count("functions.get_weather:0") == 2 and CALL.id not in text


LFM2 = (
    "{% set ns = namespace(system='') %}{% if messages[0].role == 'system' %}{% set ns.system = messages[0].content %}"
    "{% set messages = messages[1:] %}{% endif %}{% if tools %}"
    "{% set ns.system = ns.system + ('\n' if ns.system else '') + 'List of tools: <|tool_list_start|>[' "
    "+ (tools | map('tojson') | join(', ')) + ']<|tool_list_end|>' %}{% endif %}"
    "{% if ns.system %}<|im_start|>system\n{{ ns.system }}<|im_end|>\n{% endif %}{% for m in messages %}"
    "{% set content = m.content if m.content is string else m.content | tojson %}{% if m.role == 'tool' %}"
    "{% set content = '<|tool_response_start|>' + content + '<|tool_response_end|>' %}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_lfm2_calls_in_its_own_syntax_though_its_template_does_not_spell_it() -> None:
    dialect, template = fit_dialect(ChatTemplate(LFM2, eos_text=EOS))
    assert dialect.name == "lfm"
    text = template.render_text([USER, calling(CALL), result(CALL, "12 degrees")], (WEATHER,))
    assert "<|tool_call_start|>[get_weather(city='Münster', days=3)]<|tool_call_end|>" in text
    assert "<|tool_response_start|>12 degrees<|tool_response_end|>" in text
    assert text.index("<|tool_list_start|>") < text.index('"get_weather"') < text.index("<|tool_list_end|>")


def test_a_mark_of_byte_order_is_no_part_of_a_template(tmp_path: Path) -> None:
    marked = "\ufeff{% for m in messages %}{{ m.content }}{% endfor %}"
    assert ChatTemplate(marked).render_text([Message("user", "Hi")]) == "Hi"
    (tmp_path / "t.jinja").write_text(marked, encoding="utf-8")
    source = read_template(str(tmp_path / "t.jinja"))
    assert source is not None and ChatTemplate(source).render_text([Message("user", "Hi")]) == "Hi"


SEED = (
    "{% if tools %}<seed:bos>system\n{{ tools | tojson }}<seed:eos>{% endif %}{% for m in messages %}"
    "<seed:bos>{{ m.role }}{% if m.reasoning_content %}\n<seed:think>{{ m.reasoning_content }}</seed:think>{% endif %}"
    "{% if m.content %}\n{{ m.content }}{% endif %}{% for c in m.tool_calls or [] %}\n<seed:tool_call>\n"
    "<function={{ c.function.name }}>\n{% for k, v in c.function.arguments.items() %}<parameter={{ k }}>{{ v }}"
    "</parameter>\n{% endfor %}</function>\n</seed:tool_call>{% endfor %}<seed:eos>{% endfor %}"
    "{% if add_generation_prompt %}<seed:bos>assistant\n{% endif %}"
)


def test_seed_oss_has_tags_of_its_own() -> None:
    dialect, template = fit_dialect(ChatTemplate(SEED))
    assert dialect.name == "seed-oss" and dialect.reasoning.begin == "<seed:think>"
    text = template.render_text([USER, calling(CALL, OTHER_CALL, reasoning="So")], (WEATHER,))
    written = text[text.index("<seed:think>") :].removesuffix("<seed:eos><seed:bos>assistant\n")
    assert read(dialect, (WEATHER,), cut_every(written, 3)) == Answer(
        reasoning="So",
        calls=tuple((call.name, call.arguments) for call in (CALL, OTHER_CALL)),
        order=("reasoning", "call 0", "call 1"),
    )


def test_a_template_that_changes_what_it_is_given_changes_no_other() -> None:
    taking = "{% for t in tools or [] %}{{ t.function.name }}{{ t.function.parameters.pop('type') }}{% endfor %}"
    source = taking + "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert [ChatTemplate(source).traits.knows_tools for _ in range(3)] == [True] * 3
