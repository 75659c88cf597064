"""Thinking blocks, and how little is held back."""

from __future__ import annotations

import pytest

from phobos.chat.dialects import DIALECTS
from phobos.chat.dialects.families.cohere import COHERE, COHERE_TEXT
from phobos.chat.dialects.families.gemma import GEMMA
from phobos.chat.dialects.families.harmony import HARMONY
from phobos.chat.dialects.families.hermes import HERMES
from phobos.chat.dialects.families.llama3 import LLAMA3
from phobos.chat.dialects.families.mistral import MISTRAL_ARGS
from phobos.chat.dialects.scanner import Scanner
from phobos.chat.events import ToolCallDelta, ToolCallStart
from phobos.chat.messages import ToolSpec
from reading import Answer, cut_every, fold, read

F = ToolSpec("f", "", {"type": "object", "properties": {"a": {"type": "string"}}})


def check(text: str, wanted: Answer, dialect=HERMES, tools=(F,), *, in_reasoning: bool = False) -> None:  # type: ignore[no-untyped-def]
    for n_chars in (1, 2, 3, 4, 5, 7, 11, len(text) or 1):
        assert read(dialect, tools, cut_every(text, n_chars), in_reasoning=in_reasoning) == wanted, n_chars


def thought(reasoning: str, content: str = "") -> Answer:
    return Answer(content, reasoning, order=("reasoning", "content") if content.strip() else ("reasoning",))


@pytest.mark.parametrize(
    ("text", "in_reasoning", "wanted"),
    [
        ("<think>\nso\n</think>\n\nHi", False, thought("so", "Hi")),
        ("\n\n<think>so</think>Hi", False, thought("so", "Hi")),
        ("so it is\n</think>\n\nHi\n", True, thought("so it is", "Hi\n")),
        ("<think>\nso\n</think>\n\nHi", True, thought("so", "Hi")),
        ("so it is", True, thought("so it is")),
        ("<think>\nso it is\n", False, thought("so it is\n")),
        ("a\n\n b\n</thin", True, thought("a\n\n b\n</thin")),
        ("</think>\n\nHi", True, Answer("Hi", order=("content",))),
        ("\n</think>", True, Answer()),
        ("Hi <think> there </think>", False, Answer("Hi <think> there </think>", order=("content",))),
        ("<think>a</think>\n<think>b</think> c", False, Answer("c", "ab", order=("reasoning", "content"))),
        ("the tag `</think>` closes\n</think>\nHi", True, thought("the tag `</think>` closes", "Hi")),
        ("say \"</think>\" (or '</think>')</think>Hi", True, thought("say \"</think>\" (or '</think>')", "Hi")),
        ('he said "yes"</think>Hi', True, thought('he said "yes"', "Hi")),
        ("it's 'so'</think>Hi", True, thought("it's 'so'", "Hi")),
        ("```py\nx\n```\n</think>Hi", True, thought("```py\nx\n```", "Hi")),
        ("`a` and `b`</think>Hi", True, thought("`a` and `b`", "Hi")),
        ("`<think></think>` is a block</think>Hi", True, thought("`<think></think>` is a block", "Hi")),
        ("<tool_call> in thoughts</think>Hi", True, thought("<tool_call> in thoughts", "Hi")),
        ("", True, Answer()),
        ("  \n", False, Answer("  \n")),
    ],
)
def test_thinking_blocks(text: str, in_reasoning: bool, wanted: Answer) -> None:
    check(text, wanted, in_reasoning=in_reasoning)


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "b"}}\n</tool_call>'


def test_a_call_behind_thoughts() -> None:
    wanted = Answer("", "hm", (("f", '{"a": "b"}'),), ("reasoning", "call 0"))
    check(f"hm\n</think>\n\n{CALL}", wanted, in_reasoning=True)


def test_a_call_inside_an_open_block_is_a_thought() -> None:
    check(f"hm\n{CALL}", thought(f"hm\n{CALL}"), in_reasoning=True)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
def test_every_dialect_splits_its_own_block(dialect) -> None:  # type: ignore[no-untyped-def]
    block = dialect.reasoning
    text = f"{block.begin}\nsome thoughts{block.closing}"
    answer = f"{dialect.message_begin}{dialect.answer_begin}Hello{dialect.answer_end}"
    check(text + answer, thought("some thoughts", "Hello"), dialect)
    check(f"some thoughts{block.closing}{answer}", thought("some thoughts", "Hello"), dialect, in_reasoning=True)


def test_harmony_channels() -> None:
    text = (
        "<|channel|>analysis<|message|>First.<|end|><|start|>assistant<|channel|>commentary<|message|>I will look."
        "<|end|><|start|>assistant<|channel|>analysis<|message|> Then.<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a":"b"}'
    )
    wanted = Answer(
        "I will look.", "First.Then.", (("f", '{"a":"b"}'),), ("reasoning", "content", "reasoning", "call 0")
    )
    check(text, wanted, HARMONY)
    check("<|channel|>final<|message|>Hi", Answer("Hi", order=("content",)), HARMONY, ())
    check("<|channel|>analysis<|message|>cut off", thought("cut off"), HARMONY)
    unknown = '<|start|>assistant<|channel|>commentary to=functions.g<|message|>{"a":1}'
    assert not read(HARMONY, (F,), [unknown]).calls


def test_markup_round_answers_is_dropped() -> None:
    check("<|START_RESPONSE|>Hi<|END_RESPONSE|>", Answer("Hi", order=("content",)), COHERE)
    check("<|START_TEXT|>Hi\n<|END_TEXT|>", Answer("Hi\n", order=("content",)), COHERE_TEXT)


def test_gemma_thinks_between_calls() -> None:
    text = (
        '<|channel>thought\na\n<channel|><|tool_call>call:f{a:<|"|>b<|"|>}<tool_call|><|channel>thought\nc<channel|>d'
    )
    wanted = Answer("d", "ac", (("f", '{"a": "b"}'),), ("reasoning", "call 0", "reasoning", "content"))
    check(text, wanted, GEMMA)


def test_a_bare_json_call_counts_at_the_start_only() -> None:
    call = '{"name": "f", "parameters": {"a": "b"}}'
    check(call, Answer(calls=(("f", '{"a": "b"}'),), order=("call 0",)), LLAMA3)
    check(f"Hi {call}", Answer(f"Hi {call}", order=("content",)), LLAMA3)
    person = '{"name": "Ada", "age": 36}'
    check(person, Answer(person, order=("content",)), LLAMA3)


def test_only_a_possible_marker_is_held_back() -> None:
    scanner = Scanner(HERMES, (F,))
    assert fold(scanner.push("Hello")).content == "Hello"
    assert not scanner.push(" ")  # may stand before a call
    assert fold(scanner.push("a <")).content == " a"
    assert fold(scanner.push("b")).content == " <b"
    assert fold(scanner.push(" <tool_ca")).content == ""
    assert fold(scanner.push("t")).content == " <tool_cat"
    assert fold(scanner.push("\n<tool_call>oh")).content == "\n<tool_call>oh"


def test_without_tools_white_space_is_not_held_back() -> None:
    scanner = Scanner(HERMES, ())
    assert fold(scanner.push("Hello ")).content == "Hello "


def test_arguments_come_as_they_are_written() -> None:
    scanner = Scanner(HERMES, (F,))
    assert not scanner.push('<tool_call>\n{"name": "f", "arguments": {')
    events = [event for piece in scanner.push('"') for event in piece.events]  # type: ignore[union-attr]
    assert isinstance(events[0], ToolCallStart) and events[0].name == "f"
    assert events[1] == ToolCallDelta(0, '{"')
    for text in ('a": "one', " two", "\\", 'n"', "}"):
        events = [event for piece in scanner.push(text) for event in piece.events]  # type: ignore[union-attr]
        assert events in ([], [ToolCallDelta(0, text)], [ToolCallDelta(0, "\\" + text)])


def test_ids_are_unique_and_written_ones_are_kept() -> None:
    text = "".join(f"[TOOL_CALLS]f[CALL_ID]{call_id}[ARGS]{{}}" for call_id in ("abcdefghi", "abcdefghi", "taken1234"))
    from phobos.chat.dialects.families.mistral import MISTRAL_IDS

    scanner = Scanner(MISTRAL_IDS, (F,), used_ids=["taken1234"])
    starts = [e for piece in scanner.push(text) for e in getattr(piece, "events", ()) if isinstance(e, ToolCallStart)]
    ids = [start.id for start in starts]
    assert ids[0] == "abcdefghi" and len({*ids, "taken1234"}) == 4
    assert [start.index for start in starts] == [0, 1, 2]


def test_the_state_that_a_grammar_follows() -> None:
    scanner = Scanner(HERMES, (F,), in_reasoning=True)
    scanner.push("hm </think>")
    assert not scanner.in_reasoning and scanner.text_from(scanner.answer_from) == ""
    scanner.push("\n\n")
    assert scanner.text_from(scanner.answer_from) == "\n\n"
    scanner.push("a <tool_call>\n")
    opening = scanner.opening
    assert opening is not None and scanner.text_from(opening.position) == "\n"
    scanner.push('{"name": "f", "arguments": {"a": "b"}}')
    assert scanner.opening is opening
    scanner.push("\n</tool_call>")
    assert scanner.opening is None and scanner.calls == [("f", '{"a": "b"}')]

    bare = Scanner(LLAMA3, (F,))
    bare.push('{"name": "')
    assert bare.opening is None
    bare.push('f", "p')
    assert bare.opening is not None and bare.opening.name == "f"
    assert bare.text_from(bare.opening.position) == ', "p'


def test_mistral_thinks_in_brackets() -> None:
    check("[THINK]a[/THINK]b", thought("a", "b"), MISTRAL_ARGS)
