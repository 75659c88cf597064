"""Tool calls, reasoning and formats through the whole engine, with a model without sense."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from doubles.scripted_backend import END, Collector, ScriptedBackend, ScriptedTokenizer, make_model
from phobos.chat.events import Failed, Finished, ReasoningDelta, TextDelta, ToolCallDelta, ToolCallStart
from phobos.chat.messages import GenerationRequest, Message, OutputFormat, SamplingParams, ToolChoice, ToolSpec
from phobos.chat.template import ChatTemplate
from phobos.counters import Counters
from phobos.engine.constrained.answers import Answers, choose_answers
from phobos.engine.constrained.grammar import Grammars
from phobos.engine.engine import Engine
from phobos.engine.speculative import lookahead
from phobos.errors import RequestError
from walking import ENDINGS

SOURCE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
    "{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}<answer>{% if enable_thinking %}<think>\n{% endif %}"
)
WEATHER = ToolSpec(
    "get_weather",
    "",
    {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]},
)
PING = ToolSpec("ping", "", {"type": "object", "properties": {}})
PIECES = [bytes([i]) for i in range(256)] + [e.encode() for e in ("<tool_call>", "</tool_call>", "<think>", "</think>")]


class Words(ScriptedTokenizer):
    """With what grammars need of a tokenizer."""

    def spelling(self, token_id: int) -> str:
        return self.piece(token_id).decode("utf-8", "replace")

    def decode(self, ids: Iterable[int], *, special: bool = False, continues: bool = False) -> str:
        return super().decode(ids, special=special)


class Desk:
    """A running engine with a chat template."""

    def __init__(
        self,
        script: Callable[[tuple[int, ...]], int | None] | None,
        source: str = SOURCE,
        *,
        bare_calls: bool = True,
        **settings: Any,
    ) -> None:
        self.tokenizer = Words(PIECES)
        self.backend = ScriptedBackend(self.tokenizer.n_vocab, n_ctx=2048, max_rows=512, script=script)
        answers, template = choose_answers(ChatTemplate(source), self.tokenizer, bare_calls=bare_calls)  # type: ignore[arg-type]
        assert isinstance(answers, Answers)
        fields: dict[str, Any] = {"answers": answers, "template": template, "supports_thinking": True, **settings}
        self.model = make_model(self.tokenizer, self.backend, **fields)
        self.engine = Engine(self.model, Counters())
        self.engine.start()

    def ask(self, choice: int = 0, **fields: Any) -> list[Any]:
        """All events of a request."""
        sampling = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=fields.pop("seed", 1))
        request = GenerationRequest("r", **{"messages": (Message("user", "Hi"),), "sampling": sampling, **fields})
        collector = Collector()
        self.engine.submit(self.model.prepare(request), collector, choice=choice)
        collector.wait()
        return collector.events


@pytest.fixture
def desk() -> Iterator[Callable[..., Desk]]:
    made: list[Desk] = []

    def make(*arguments: Any, **settings: Any) -> Desk:
        made.append(Desk(*arguments, **settings))
        return made[-1]

    yield make
    for each in made:
        each.engine.close()


def say(text: str) -> Callable[[tuple[int, ...]], int]:
    """A model that writes this text and ends."""
    tokens = ScriptedTokenizer(PIECES).encode(text)
    state: dict[str, int] = {}

    def script(before: tuple[int, ...]) -> int:
        start = state.setdefault("start", len(before))
        place = len(before) - start
        return tokens[place] if 0 <= place < len(tokens) else END

    return script


def text_of(events: list[Any], kind: type = TextDelta) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


def calls_of(events: list[Any]) -> list[tuple[int, str, str]]:
    starts = [event for event in events if isinstance(event, ToolCallStart)]
    assert len({start.id for start in starts}) == len(starts) and all(start.id for start in starts)
    return [
        (start.index, start.name, "".join(e.arguments for e in events if isinstance(e, ToolCallDelta) and e.index == i))
        for i, start in enumerate(starts)
    ]


def closing(before: tuple[int, ...]) -> int | None:
    """A model without sense that likes to end things."""
    likes = [PIECES.index(e.encode()) + 2 for e in ENDINGS if e.encode() in PIECES]
    return likes[hash(before) % len(likes)] if hash(before) % 4 == 0 else None


def test_required_binds_a_model_without_sense(desk: Callable[..., Desk]) -> None:
    engine = desk(closing)
    for seed in range(5):
        events = engine.ask(tools=(WEATHER, PING), tool_choice=ToolChoice("required"), seed=seed)
        assert events[-1].reason == "tool_calls" and text_of(events).strip() == ""
        for index, (found, name, arguments) in enumerate(calls_of(events)):
            assert found == index and name in ("get_weather", "ping")
            assert set(json.loads(arguments)) == ({"city"} if name == "get_weather" else set())


def test_a_named_function_and_none(desk: Callable[..., Desk]) -> None:
    engine = desk(closing)
    events = engine.ask(tools=(WEATHER, PING), tool_choice=ToolChoice("function", "ping"))
    assert {name for _, name, _ in calls_of(events)} == {"ping"}
    call = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
    events = desk(say(call)).ask(tools=(WEATHER, PING), tool_choice=ToolChoice("none"))
    assert calls_of(events) == [] and text_of(events) == call and events[-1].reason == "stop"


def test_two_calls_have_their_own_indexes_and_ids(desk: Callable[..., Desk]) -> None:
    text = "Well.\n" + "\n".join(
        f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>'
        for city in ("Münster", "Bonn")
    )
    events = desk(say(text)).ask(tools=(WEATHER,))
    assert calls_of(events) == [(0, "get_weather", '{"city": "Münster"}'), (1, "get_weather", '{"city": "Bonn"}')]
    assert text_of(events) == "Well." and events[-1].reason == "tool_calls"
    assert sum(isinstance(event, ToolCallDelta) for event in events) > 10  # as they are written


BARE = '```json\n{\n  "name": "get_weather",\n  "arguments": {"city": "Bonn"}\n}\n```'


def test_an_answer_that_is_only_a_call_in_json_is_that_call(desk: Callable[..., Desk]) -> None:
    events = desk(say(BARE)).ask(tools=(WEATHER, PING))
    assert calls_of(events) == [(0, "get_weather", '{"city": "Bonn"}')]
    assert text_of(events) == "" and events[-1].reason == "tool_calls"


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": (PING,)},
        {"tools": (WEATHER,), "tool_choice": ToolChoice("none")},
        {"tools": (WEATHER,), "max_tokens": len(BARE) - 12},
        {"tools": (WEATHER, PING), "stop": ("\n```",)},
    ],
)
def test_else_that_json_is_text(desk: Callable[..., Desk], fields: dict[str, Any]) -> None:
    events = desk(say(BARE)).ask(**fields)
    if "stop" in fields:  # it stands behind the whole call, which no stop string ends
        assert calls_of(events) and text_of(events) == ""
    else:
        n_chars = fields.get("max_tokens", len(BARE))
        assert not calls_of(events) and text_of(events) == BARE[:n_chars]


def test_bare_calls_can_be_turned_off_and_do_not_answer_a_format(desk: Callable[..., Desk]) -> None:
    engine = desk(say(BARE), bare_calls=False)
    assert text_of(engine.ask(tools=(WEATHER,))) == BARE
    shape = {"type": "object", "properties": {"name": {"const": "ping"}, "arguments": {"const": {}}}}
    output = OutputFormat("json_schema", {**shape, "required": ["name", "arguments"]})
    bare = '{"name": "ping", "arguments": {}}'
    assert text_of(desk(say(bare)).ask(tools=(PING,), output=output)) == bare


def test_under_auto_an_opened_call_must_be_valid(desk: Callable[..., Desk]) -> None:
    """The model opens a call and then wants to end its turn; it has to finish the call first."""
    events = desk(say("Hm. <tool_call>")).ask(tools=(WEATHER,), parallel_tool_calls=False, max_tokens=1500)
    ((_, name, arguments),) = calls_of(events)
    assert name == "get_weather" and list(json.loads(arguments)) == ["city"]
    assert isinstance(events[-1], Finished) and events[-1].reason == "tool_calls"


def test_thinking_that_is_cut_is_all_reasoning(desk: Callable[..., Desk]) -> None:
    engine = desk(say("thoughts without an end"))
    events = engine.ask(thinking=True, max_tokens=10)
    assert text_of(events) == "" and text_of(events, ReasoningDelta) == "thoughts w"
    assert events[-1].reason == "length" and events[-1].usage.n_reasoning == 10


def test_what_the_model_opens_itself_is_split(desk: Callable[..., Desk]) -> None:
    events = desk(say("<think>\nso\n</think>\n\nHello")).ask()
    assert text_of(events, ReasoningDelta) == "so" and text_of(events) == "Hello"


def test_a_format_holds_behind_the_thoughts(desk: Callable[..., Desk]) -> None:
    schema = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
    output = OutputFormat("json_schema", schema)
    events = desk(say("I {think}\n</think>\n\n")).ask(output=output, thinking=True, max_tokens=1000)
    assert text_of(events, ReasoningDelta) == "I {think}"
    assert isinstance(json.loads(text_of(events))["answer"], int)


def test_an_answer_that_the_limit_ends_is_whole_and_says_so(desk: Callable[..., Desk]) -> None:
    output = OutputFormat("json_schema", {"type": "array", "items": {"type": "string"}, "minItems": 1})
    events = desk(say('["' + "x" * 500)).ask(output=output, max_tokens=60)
    assert isinstance(json.loads(text_of(events)), list)
    assert events[-1].reason == "length" and events[-1].usage.n_generated < 60


def test_what_binds_the_answers_is_planned_once_a_request(desk: Callable[..., Desk], monkeypatch: Any) -> None:
    engine, planned = desk(closing), []
    plan = Grammars.plan
    monkeypatch.setattr(Grammars, "plan", lambda *arguments: planned.append(1) or plan(*arguments))
    request = GenerationRequest("r", messages=(Message("user", "Hi"),), tools=(PING,), n=2, max_tokens=5)
    prepared = engine.model.prepare(request)
    for choice in (0, 1):
        collector = Collector()
        engine.engine.submit(prepared, collector, choice=choice)
        collector.wait()
    assert planned == [1]


def test_the_thinking_budget(desk: Callable[..., Desk]) -> None:
    events = desk(say("one two three four five six")).ask(thinking=True, thinking_budget=7, max_tokens=40)
    assert text_of(events, ReasoningDelta) == "one two" and events[-1].usage.n_reasoning >= 7
    assert len(text_of(events)) > 0 or events[-1].reason == "stop"


def test_a_prefilled_thought_goes_on(desk: Callable[..., Desk]) -> None:
    events = desk(say(" more\n</think>\n\nDone")).ask(prefill_thinking="I know")
    assert text_of(events, ReasoningDelta) == "more" and text_of(events) == "Done"


def test_a_think_tag_in_the_question_opens_nothing(desk: Callable[..., Desk]) -> None:
    events = desk(say("It is a tag")).ask(messages=(Message("user", "what is <think>"),))
    assert text_of(events) == "It is a tag" and text_of(events, ReasoningDelta) == ""


def test_each_choice_is_bound_by_itself(desk: Callable[..., Desk]) -> None:
    engine = desk(closing)
    found = [engine.ask(choice=choice, tools=(WEATHER,), tool_choice=ToolChoice("required")) for choice in (0, 1)]
    for events in found:
        assert calls_of(events) and events[-1].reason == "tool_calls"


def test_ids_differ_from_those_of_the_conversation(desk: Callable[..., Desk]) -> None:
    engine = desk(say('<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'))
    first = next(event for event in engine.ask(tools=(PING,)) if isinstance(event, ToolCallStart))
    assert first.id.startswith("call_") and len(first.id) > 20


def test_what_cannot_be_met_is_refused_before_the_prompt_runs(desk: Callable[..., Desk]) -> None:
    engine = desk(None)
    with pytest.raises(RequestError, match="cannot be enforced"):
        engine.ask(output=OutputFormat("json_schema", {"type": "integer", "minimum": 3, "maximum": 1}, strict=True))
    assert not engine.backend.batches


def test_a_template_whose_calls_no_dialect_reads_asks_for_plain_ones(desk: Callable[..., Desk]) -> None:
    strange = SOURCE.replace("tool_call", "odd_call")
    engine = desk(say('<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'), strange)
    assert engine.model.answers is not None and engine.model.answers.dialect.name == "plain"
    request = GenerationRequest("r", messages=(Message("user", "Hi"),), tools=(PING,))
    prompt = engine.tokenizer.decode(engine.model.prepare(request).tokens)
    assert "<tool_call>" in prompt and '"name": "ping"' in prompt
    assert calls_of(engine.ask(tools=(PING,))) == [(0, "ping", "{}")]


def test_a_regex_ends_the_answer(desk: Callable[..., Desk]) -> None:
    engine = desk(say("a" * 60))
    events = engine.ask(output=OutputFormat("regex", pattern="a{3}"), max_tokens=10)
    assert text_of(events) == "aaa" and not any(isinstance(event, Failed) for event in events)


def test_guesses_change_no_bound_answer(desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch) -> None:
    def run_all(guesses: list[list[float]], allowances: object, n_running: int, n_most: int, *_: object) -> list[int]:
        return [min(len(guess), n_most) for guess in guesses]

    monkeypatch.setattr(lookahead, "plan_lengths", run_all)
    plain, guessing = desk(closing, lookup=False), desk(closing)
    schema = {"type": "object", "properties": {"name": {"enum": ["long-winded-a", "long-winded-b"]}}}
    schema["required"] = ["name"]
    for seed in range(4):
        for fields in (
            {"tools": (WEATHER, PING), "tool_choice": ToolChoice("required")},
            {"tools": (WEATHER, PING), "tool_choice": ToolChoice("required"), "thinking": True, "thinking_budget": 9},
            {"output": OutputFormat("json_schema", schema), "top_logprobs": 2},
        ):
            one, other = (engine.ask(seed=seed, **fields) for engine in (plain, guessing))
            assert calls_of(one) == calls_of(other)
            for kind in (TextDelta, ReasoningDelta):
                assert text_of(one, kind) == text_of(other, kind)
            entries = [[e.logprobs for e in events if isinstance(e, TextDelta)] for events in (one, other)]
            assert entries[0] == entries[1]
            assert (one[-1].reason, one[-1].usage.n_generated) == (other[-1].reason, other[-1].usage.n_generated)
    counters = guessing.engine.counters
    assert counters.draft_tokens_accepted > 100, "names and marks that the grammar leaves no choice of"
    assert counters.draft_tokens_accepted > 0.9 * counters.draft_tokens - 200
