"""Answers bound to calls, formats and thinking blocks, from a model without sense."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import jsonschema
import pytest

from phobos.chat.dialects import DIALECTS
from phobos.chat.dialects.families.harmony import HARMONY
from phobos.chat.dialects.families.hermes import HERMES
from phobos.chat.dialects.families.llama3 import LLAMA3
from phobos.chat.dialects.families.plain import PLAIN
from phobos.chat.messages import GenerationRequest, OutputFormat, ToolChoice, ToolSpec
from phobos.chat.tool_schemas import normalise_parameters
from phobos.engine.constrained.binding import Binding
from phobos.engine.constrained.grammar import Grammars
from phobos.errors import RequestError
from walking import MarkerVocabulary, Walk, allowed, check_calls, walk

ALPHA = ToolSpec(
    "alpha",
    "",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "n": {"type": "integer", "minimum": 2, "maximum": 40},
            "kind": {"type": "string", "enum": ["a<b", "plain", "two\nlines"]},
            "ok": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "minItems": 1, "maxItems": 2},
            "deep": {
                "type": "object",
                "properties": {"x": {"type": "number"}, "y": {"type": "string", "maxLength": 3, "nullable": True}},
                "required": ["x"],
            },
            "code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{2}$"},
            "short": {"type": "string", "minLength": 1, "maxLength": 5},
        },
        "required": ["city", "ok", "code"],
    },
)
BETA = ToolSpec("beta.x", "", {"type": "object", "properties": {}})
GAMMA = ToolSpec("gamma", "", {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]})
TOOLS = (ALPHA, BETA, GAMMA)
ALL = (*DIALECTS, PLAIN)
SINGLE = ("llama3", "harmony", "muse-glimmer", "functionary-3.2")


@cache
def grammars_of(name: str) -> Grammars:
    dialect = next(dialect for dialect in ALL if dialect.name == name)
    return Grammars(MarkerVocabulary(dialect), dialect)


def ask(**fields: Any) -> GenerationRequest:
    return GenerationRequest("r", **{"tools": TOOLS, **fields})


def shaped(kind: Any, schema: Any = None, pattern: str | None = None, **fields: Any) -> GenerationRequest:
    return GenerationRequest("r", output=OutputFormat(kind, schema, pattern), **fields)


# Calls


@pytest.mark.parametrize("name", [dialect.name for dialect in ALL])
def test_required_gives_valid_calls_and_nothing_else(name: str) -> None:
    grammars = grammars_of(name)
    for seed in range(4):
        request = ask(tool_choice=ToolChoice("required"), parallel_tool_calls=seed % 2 == 0)
        found = walk(grammars, request, seed)
        assert found.is_whole and found.answer.calls and not found.answer.content.strip(), found.text[-300:]
        assert seed % 2 == 0 or len(found.answer.calls) == 1
        check_calls(found.answer, TOOLS)


@pytest.mark.parametrize("name", [dialect.name for dialect in ALL])
def test_a_named_function_is_the_one(name: str) -> None:
    found = walk(grammars_of(name), ask(tool_choice=ToolChoice("function", "gamma")), 7)
    assert found.is_whole and {called for called, _ in found.answer.calls} == {"gamma"}
    check_calls(found.answer, TOOLS)


OPENED = {
    "muse-glimmer": " to=gamma<|message|>",
    "functionary-3.2": ">>>gamma\n",
    "kimi-k3": "<|open|>tools<|sep|>",
    "minimax-m3": "]<]minimax[>[<tool_call>",
    "granite": "<|tool_call|>",
    "command-r": "Action:\n```json",
    "hermes": "<tool_call>",
    "qwen-xml": "<tool_call>",
    "seed-oss": "<seed:tool_call>",
    "lfm": "<|tool_call_start|>",
    "minicpm": '<function name="',
    "glm": "<tool_call>",
    "deepseek": "<｜tool▁calls▁begin｜>",
    "mistral": "[TOOL_CALLS]",
    "mistral-args": "[TOOL_CALLS]",
    "gemma": "<|tool_call>",
    "kimi-k2": "<|tool_calls_section_begin|>",
    "llama3": '{"name": "gamma"',
    "harmony": " to=functions.gamma<|channel|>commentary json<|message|>",
    "functionary-3.1": "<function=",
    "deepseek-v4": "<｜DSML｜tool_calls>",
}


def run_opened(name: str, before: str = "", **fields: Any) -> tuple[Walk, int]:
    """Free text, then what opens a call, then a walk to the answer's end."""
    grammars = grammars_of(name)
    script = grammars.vocabulary.encode(before + OPENED[name])
    ends_there = ask(parallel_tool_calls=False, **fields)
    return walk(grammars, ends_there, 3, script=script), len(script)


@pytest.mark.parametrize("name", OPENED)
def test_auto_is_free_until_a_call_opens_and_then_it_is_valid(name: str) -> None:
    before = "" if name in SINGLE else "Let me see. "
    found, n_free = run_opened(name, before)
    assert all(found.free[:n_free]) and not found.free[n_free]
    assert found.is_whole and len(found.answer.calls) == 1, found.text[-300:]
    assert found.answer.content.strip() == before.strip()
    check_calls(found.answer, TOOLS)


def test_auto_is_free_again_behind_a_call() -> None:
    grammars = grammars_of("hermes")
    call = '<tool_call>\n{"name": "beta.x", "arguments": {}}\n</tool_call>'
    script = grammars.vocabulary.encode(call + " ok <tool_call>\n")
    found = walk(grammars, ask(), 1, script=script, limit=len(script))
    n = len(grammars.vocabulary.encode(call))
    assert not any(found.free[1:n]) and all(found.free[n + 1 : len(script) - 1]) and not found.free[-1]


def test_one_call_only_ends_the_answer() -> None:
    grammars = grammars_of("hermes")
    script = grammars.vocabulary.encode('<tool_call>\n{"name": "beta.x", "arguments": {}}\n</tool_call>')
    found = walk(grammars, ask(parallel_tool_calls=False), 1, script=script)
    assert len(found.tokens) == len(script) + 1 and found.is_whole


def test_an_opener_with_something_else_in_its_token_stays_text() -> None:
    dialect = HERMES
    grammars = Grammars(MarkerVocabulary(dialect, texts=("<tool_call>x",)), dialect)
    script = grammars.vocabulary.encode("<tool_call>xyz")
    found = walk(grammars, ask(), 1, script=script, limit=len(script))
    assert all(found.free) and found.answer.content == "<tool_call>xyz"


def test_none_and_no_tools_bind_nothing() -> None:
    grammars = grammars_of("hermes")
    assert grammars.plan(ask(tool_choice=ToolChoice("none"))) is None
    assert grammars.plan(GenerationRequest("r")) is None


def test_calls_are_laid_out_as_the_template_would_and_in_its_tokens() -> None:
    grammars = grammars_of("hermes")
    found = walk(grammars, ask(tool_choice=ToolChoice("function", "beta.x"), parallel_tool_calls=False), 5)
    assert found.text.rstrip() == '<tool_call>\n{"name": "beta.x", "arguments": {}}\n</tool_call>'
    assert list(found.tokens[:-1]) == grammars.vocabulary.encode(found.text)


def test_a_token_is_joined_with_what_must_follow_it() -> None:
    words = MarkerVocabulary(HERMES, texts=('"}}', '"}}\n'))
    grammars = Grammars(words, HERMES)
    request = ask(tools=(GAMMA,), tool_choice=ToolChoice("required"))
    binding = Binding(grammars, grammars.plan(request), None)
    for token in words.encode('<tool_call>\n{"name": "gamma", "arguments": {"q": "x'):
        mask = binding.mask()
        assert mask is not None and token in allowed(mask, words.n_vocab)
        binding.accept(binding.extend(token))
    binding.mask()
    (short,), (joined,) = words.encode('"}}'), words.encode('"}}\n')
    assert binding.extend(short) == joined and binding.extend(ord("y")) == ord("y")
    binding.accept(joined)
    mask = binding.mask()
    assert mask is not None and allowed(mask, words.n_vocab) == words.encode("</tool_call>")[:1]


def test_a_model_that_repeats_a_call_is_ended() -> None:
    for seed in range(6):
        found = walk(grammars_of("hermes"), ask(tools=(BETA,), tool_choice=ToolChoice("required")), seed)
        assert 1 <= len(found.answer.calls) <= 2 and found.is_whole


def test_no_token_runs_on_into_a_call_that_should_not_begin() -> None:
    """Without a token for the closing tag, its last piece may bring the line break before the next call with it."""
    words = MarkerVocabulary(HERMES, texts=(">\n", "\n<", "_call>\n<"))
    words_of = Grammars(words, HERMES)
    for seed in range(8):
        found = walk(words_of, ask(tools=(BETA,), tool_choice=ToolChoice("required")), seed)
        assert found.is_whole and len(found.answer.calls) <= 2 and not found.answer.content.strip()


def test_a_call_that_is_cut_in_its_head_is_no_text() -> None:
    for limit in range(12, 40):
        found = walk(grammars_of("hermes"), ask(tool_choice=ToolChoice("function", "gamma")), 1, limit=limit)
        assert not found.is_whole and not found.answer.content


def test_no_call_begins_that_there_is_no_room_for() -> None:
    for seed in range(6):
        request = ask(tools=(GAMMA,), tool_choice=ToolChoice("required"))
        found = walk(grammars_of("hermes"), request, seed, limit=400)
        assert found.is_whole, found.text[-300:]
        check_calls(found.answer, TOOLS)


def test_arguments_that_the_schema_does_not_name_are_not_made_up() -> None:
    loose = ToolSpec("f", "", normalise_parameters("f", {"type": "object", "properties": {"a": {"type": "boolean"}}}))
    for seed in range(5):
        found = walk(grammars_of("hermes"), ask(tools=(loose,), tool_choice=ToolChoice("required")), seed)
        assert all(set(json.loads(arguments)) <= {"a"} for _, arguments in found.answer.calls)


# Formats

TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["v", "next"],
        }
    },
    "$ref": "#/$defs/node",
}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False},
        {"type": "object", "properties": {"a": {"enum": ["x", 2, None, True]}}, "required": ["a"]},
        {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
        {"type": "string", "pattern": "^[a-f]{3}-[0-9]+$"},
        {"anyOf": [{"type": "integer", "minimum": 5}, {"type": "string", "maxLength": 4}]},
        {"type": "object", "properties": {"d": {"type": "string", "format": "date"}}, "required": ["d"]},
        {"allOf": [{"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}, {"type": "object"}]},
        {"type": "array", "prefixItems": [{"type": "null"}, {"type": "boolean"}], "items": False, "minItems": 2},
        TREE,
    ],
    ids=lambda schema: json.dumps(schema)[:40],
)
def test_json_schema_binds(schema: dict[str, Any]) -> None:
    for seed in range(3):
        found = walk(grammars_of("hermes"), shaped("json_schema", schema), seed)
        assert found.is_whole
        jsonschema.validate(json.loads(found.answer.content), schema)


def test_json_object_binds() -> None:
    found = walk(grammars_of("qwen-xml"), shaped("json_object"), 2)
    assert isinstance(json.loads(found.answer.content), dict)


@pytest.mark.parametrize(
    ("kind", "pattern", "wanted"),
    [
        ("regex", r"(yes|no)(/[a-c]{2})?", r"(yes|no)(/[a-c]{2})?"),
        ("regex", r"\d{3}\n\d", r"[0-9]{3}\n[0-9]"),
        ("grammar", 'start: "a" NUMBER "b"\nNUMBER: /[0-9]{1,3}/', r"a[0-9]{1,3}b"),
        ("grammar", 'root ::= "x" [0-9] "y" | "z"', r"x[0-9]y|z"),
    ],
)
def test_patterns_and_grammars_bind(kind: str, pattern: str, wanted: str) -> None:
    for seed in range(5):
        found = walk(grammars_of("hermes"), shaped(kind, pattern=pattern), seed)
        assert found.is_whole and re.fullmatch(wanted, found.answer.content)


def test_a_format_beside_tools_gives_either() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    called, answered = 0, 0
    for seed in range(12):
        found = walk(grammars_of("hermes"), shaped("json_schema", schema, tools=TOOLS), seed)
        assert found.is_whole and bool(found.answer.calls) != bool(found.answer.content.strip())
        check_calls(found.answer, TOOLS)
        called += bool(found.answer.calls)
        answered += not found.answer.calls
    assert called and answered


def test_answers_that_stand_in_markup_are_bound_inside_it() -> None:
    for name in ("cohere", "harmony"):
        schema = {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}
        found = next(f for seed in range(9) if (f := walk(grammars_of(name), shaped("json_schema", schema), seed)))
        jsonschema.validate(json.loads(found.answer.content), schema)


# Thinking


def test_the_format_begins_behind_the_thoughts() -> None:
    grammars = grammars_of("hermes")
    request = shaped("json_schema", {"type": "integer"}, thinking=True)
    script = grammars.vocabulary.encode("so I think\n</think>\n\n")
    found = walk(grammars, request, 1, script=script, in_reasoning=True)
    assert found.answer.reasoning == "so I think" and isinstance(json.loads(found.answer.content), int)


def test_a_model_that_opens_its_own_block_may_think() -> None:
    grammars = grammars_of("hermes")
    request = shaped("json_schema", {"type": "integer"}, thinking=True)
    script = grammars.vocabulary.encode("<think>\nso\n</think>\n")
    found = walk(grammars, request, 1, script=script)
    assert found.answer.reasoning == "so" and isinstance(json.loads(found.answer.content), int)
    silent = walk(grammars, shaped("json_schema", {"type": "integer"}), 1)
    assert not silent.answer.reasoning and isinstance(json.loads(silent.answer.content), int)


def test_an_answer_that_is_bound_does_not_end_in_its_thoughts() -> None:
    grammars = grammars_of("hermes")
    binding = opened_binding(grammars, ask(tool_choice=ToolChoice("required"), thinking=True))
    mask = binding.mask()
    assert mask is not None
    assert set(range(grammars.vocabulary.n_vocab)) - set(allowed(mask, grammars.vocabulary.n_vocab)) == set(
        grammars.vocabulary.end_ids
    )


def opened_binding(grammars: Grammars, request: GenerationRequest) -> Binding:
    from phobos.chat.dialects.scanner import Scanner

    return Binding(grammars, grammars.plan(request), Scanner(grammars.dialect, request.tools, in_reasoning=True))


def test_the_thinking_budget_closes_the_block() -> None:
    grammars = grammars_of("hermes")
    for budget in (0, 1, 5):
        request = GenerationRequest("r", thinking=True, thinking_budget=budget)
        script = [ord("x")] * budget
        found = walk(grammars, request, 1, script=script, in_reasoning=True, limit=budget + 12)
        closing = grammars.vocabulary.encode("\n</think>\n\n")
        assert list(found.tokens[budget : budget + len(closing)]) == closing
        assert found.answer.reasoning == "x" * budget


def test_a_block_closed_in_time_is_left_alone() -> None:
    grammars = grammars_of("hermes")
    request = GenerationRequest("r", thinking=True, thinking_budget=30)
    script = grammars.vocabulary.encode("so\n</think>\n\nHello")
    found = walk(grammars, request, 1, script=script, in_reasoning=True, limit=len(script))
    assert all(found.free) and found.answer.content == "Hello"


# Refusals

ENDLESS = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}


def strictly(schema: dict[str, Any]) -> GenerationRequest:
    return GenerationRequest("r", output=OutputFormat("json_schema", schema, strict=True))


@pytest.mark.parametrize(
    ("request_", "param", "words"),
    [
        (strictly({"type": "integer", "minimum": 5, "maximum": 3}), "response_format.minimum", "strict"),
        (strictly({"type": "array", "uniqueItems": True}), "response_format.uniqueItems", "uniqueItems"),
        (strictly({"type": "object", "properties": {"a": {"pattern": "(?=a)"}}}), None, "properties.a.pattern"),
        (strictly({"$ref": "http://x/y"}), "response_format.$ref", "strict"),
        (strictly(ENDLESS), "response_format", "cannot be enforced"),
        (shaped("regex", pattern="(a"), "response_format", "unclosed group"),
        (shaped("regex", pattern="a" * 70_000), "response_format", "64 KiB"),
        (shaped("grammar", pattern="start: nowhere"), "response_format", "nowhere"),
        (shaped("grammar", pattern="start: A\nA: /a/ & /b/"), "response_format", "nothing fits"),
        (shaped("grammar", pattern="root ::= ("), "response_format", ""),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) else "",
)
def test_what_cannot_be_enforced_is_refused_by_name(request_: GenerationRequest, param: str | None, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        grammars_of("hermes").plan(request_)
    assert caught.value.status == 400 and words in str(caught.value), str(caught.value)
    assert param is None or caught.value.param == param
    assert len(str(caught.value)) < 500 and "<state>" not in str(caught.value)


ODD = ToolSpec("odd", "", {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}})


def test_a_strict_tool_whose_schema_cannot_be_held_is_named() -> None:
    strict = ToolSpec("odd", "", ODD.parameters, strict=True)
    with pytest.raises(RequestError, match=r"'odd' is strict.*uniqueItems") as caught:
        grammars_of("hermes").plan(ask(tools=(ALPHA, strict)))
    assert caught.value.code == "invalid_tool_schema"
    assert caught.value.param == "tools.odd.parameters.properties.a.uniqueItems"


def test_a_schema_that_is_not_strict_is_held_as_far_as_can_be_and_says_where_not() -> None:
    for name in ("hermes", "qwen-xml"):
        plan = grammars_of(name).plan(ask(tools=(ALPHA, ODD)))
        assert plan is not None and plan.left_open == ("tools.odd.parameters.properties.a.uniqueItems",)
    plan = grammars_of("hermes").plan(shaped("json_schema", {"type": "string", "format": "moon"}, tools=(ODD,)))
    assert plan is not None and set(plan.left_open) == {
        "tools.odd.parameters.properties.a.uniqueItems",
        "response_format.format",
    }


def test_a_tool_that_makes_no_grammar_is_left_open_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars = Grammars(MarkerVocabulary(HERMES), HERMES)
    compile_ = Grammars._compile

    def fail_on(self: Grammars, text: str, param: str, user: str | None = None) -> Any:
        if '"v"' in text:
            raise RequestError("too much", param=param)
        return compile_(self, text, param, user)

    monkeypatch.setattr(Grammars, "_compile", fail_on)
    heavy = {"type": "object", "properties": {"v": {"type": "string"}}}
    plan = grammars.plan(ask(tools=(GAMMA, ToolSpec("heavy", "", heavy))))
    assert plan is not None and plan.left_open == ("tools.heavy.parameters",)
    with pytest.raises(RequestError, match="'heavy' is strict"):
        grammars.plan(ask(tools=(GAMMA, ToolSpec("heavy", "", heavy, strict=True))))


def test_a_grammar_is_compiled_once() -> None:
    grammars = grammars_of("hermes")
    first = grammars.plan(ask(tool_choice=ToolChoice("required")))
    assert grammars.plan(ask(tool_choice=ToolChoice("required"))) is first
    assert grammars.plan(ask(tool_choice=ToolChoice("required"), parallel_tool_calls=False)) is not first


def test_markers_that_are_control_tokens_show_and_no_others() -> None:
    for dialect in (HERMES, HARMONY, LLAMA3):
        grammars = grammars_of(dialect.name)
        shown = {grammars.vocabulary.spelling(i) for i in grammars.shown_ids}
        assert "<|unused|>" not in shown and not {"<EOS>", "<EOT>"} & shown
        assert all(text in dialect.marker_text for text in shown)
    assert "<|channel|>" in {grammars_of("harmony").vocabulary.spelling(i) for i in grammars_of("harmony").shown_ids}


def test_a_least_length_does_not_let_an_argument_run_over_its_end() -> None:
    note = ToolSpec("note", "", {"type": "object", "properties": {"t": {"type": "string", "minLength": 9}}})
    grammars = grammars_of("qwen-xml")
    script = "<tool_call>\n<function=note>\n<parameter=t>\nshort\n</parameter>"
    request = GenerationRequest("r", tools=(note,), tool_choice=ToolChoice("required"))
    with pytest.raises(AssertionError):
        walk(grammars, request, 1, script=grammars.vocabulary.encode(script))
    walk(grammars, request, 1, script=grammars.vocabulary.encode(script.replace("short", "long enough")))


# One call, where one is forced

ENDS = ("", "\n", " ", "\n\n", " \n")


@pytest.mark.parametrize("name", [dialect.name for dialect in ALL])
def test_a_model_that_ends_in_its_own_way_is_not_made_to_call_again(name: str) -> None:
    grammars = grammars_of(name)
    words = grammars.vocabulary
    once = walk(grammars, ask(tools=(BETA,), tool_choice=ToolChoice("required"), parallel_tool_calls=False), 3).text
    once = once.rstrip(" \n")
    for marker in grammars.dialect.dropped:
        once = once.removesuffix(marker).rstrip(" \n")
    for choice in (ToolChoice("required"), ToolChoice("function", "beta.x")):
        for end in (*ENDS, *grammars.dialect.dropped):
            request = ask(tools=(BETA,), tool_choice=choice)
            script = [*words.encode(once + end), min(words.end_ids)]
            found = walk(grammars, request, 1, script=script)
            assert found.is_whole and len(found.answer.calls) == 1 and not found.answer.content.strip(), found.text


@pytest.mark.parametrize("name", [dialect.name for dialect in ALL])
def test_a_named_function_is_called_once(name: str) -> None:
    for seed in range(3):
        found = walk(grammars_of(name), ask(tool_choice=ToolChoice("function", "gamma")), seed)
        assert found.is_whole and [called for called, _ in found.answer.calls] == ["gamma"]
