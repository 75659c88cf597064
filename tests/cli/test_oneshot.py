"""One question, one answer: what goes to standard output, what does not, and what ends it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from doubles.scripted_engine import ScriptedEngine, ScriptedModel, finished, parrot, say
from phobos import oneshot
from phobos.chat.events import Event, Failed, ReasoningDelta, TextDelta, TokenLogprob, ToolCallDelta, ToolCallStart
from phobos.chat.messages import GenerationRequest
from phobos.errors import PhobosError, RequestError, UnavailableError, UsageError
from phobos.oneshot import Question
from phobos.settings import EngineSettings, SamplingDefaults

SETTINGS = EngineSettings(Path("m.gguf"))
Capture = pytest.CaptureFixture[str]
Start = Callable[..., ScriptedEngine]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Make `start_engine` give a scripted engine."""
    engines: list[ScriptedEngine] = []

    def use(script: Any = parrot, **model: Any) -> ScriptedEngine:
        engine = ScriptedEngine(replace(ScriptedModel(), **model), script)
        engines.append(engine)
        monkeypatch.setattr(engine, "close", lambda drain_s=0.0: None)
        monkeypatch.setattr(oneshot, "start_engine", lambda settings, counters, report: engine)
        return engine

    yield use
    for engine in engines:
        ScriptedEngine.close(engine)


def test_only_the_answer_is_on_standard_output(start: Start, capsys: Capture) -> None:
    start(say("The sky ", "is blue.", pause_s=0.01))
    assert oneshot.answer(SETTINGS, Question("colour?")) == 0
    assert capsys.readouterr() == ("The sky is blue.\n", "")


def test_a_model_without_reasoning_says_so_and_answers(start: Start, capsys: Capture) -> None:
    engine = start(say("Blue."), supports_thinking=False)
    assert oneshot.answer(SETTINGS, Question("colour?", think=True)) == 0
    out, err = capsys.readouterr()
    assert out == "Blue.\n" and "no reasoning" in err and not engine.submitted[0].thinking


def test_reasoning_and_candidates_go_to_standard_error(start: Start, capsys: Capture) -> None:
    no = TokenLogprob(8, "No", b"No", math.log(0.25))
    yes = TokenLogprob(7, "Yes", b"Yes", math.log(0.75))
    first = replace(yes, top=(yes, no))

    def script(request: GenerationRequest, tokens: tuple[int, ...], choice: int) -> Iterator[Event | float]:
        yield ReasoningDelta("hm")
        yield TextDelta("Yes", (first,))
        yield TextDelta(", it is.\n", (no,))
        yield finished(tokens, 3)

    engine = start(script)
    assert oneshot.answer(SETTINGS, Question("is it?", think=True, n_candidates=2)) == 0
    out, err = capsys.readouterr()
    assert out == "Yes, it is.\n"
    assert err.startswith("hm")
    assert ">  1  75.000%       7 'Yes'\n   2  25.000%       8 'No'\n" in err
    assert engine.submitted[0].top_logprobs == 2 and engine.submitted[0].thinking


def test_raw_continues_exactly_in_a_pipe(start: Start, capsys: Capture) -> None:
    engine = start(say(" blue"))
    assert oneshot.answer(SETTINGS, Question("The sky is", raw=True)) == 0
    assert capsys.readouterr().out == " blue"
    assert (engine.submitted[0].prompt, engine.submitted[0].messages) == ("The sky is", ())


def test_a_model_without_chat_format_continues_the_text(start: Start, capsys: Capture) -> None:
    engine = start(say(" blue"), template=None)
    assert oneshot.answer(SETTINGS, Question("The sky is")) == 0
    assert engine.submitted[0].prompt == "The sky is"
    assert "has no chat format" in capsys.readouterr().err


def test_the_request_carries_what_was_asked(start: Start) -> None:
    engine = start()
    settings = replace(SETTINGS, sampling=SamplingDefaults(max_tokens=5))
    oneshot.answer(settings, Question("x", system="be kind", schema={"type": "object"}, stop=("END",)))
    (request,) = engine.submitted
    assert [(m.role, m.content) for m in request.messages] == [("system", "be kind"), ("user", "x")]
    assert (request.output.kind, request.output.schema) == ("json_schema", {"type": "object"})
    assert (request.stop, request.max_tokens) == (("END",), 5)


def test_json_is_one_whole_object(start: Start, capsys: Capture) -> None:
    def script(request: GenerationRequest, tokens: tuple[int, ...], choice: int) -> Iterator[Event | float]:
        yield ReasoningDelta("hm ")
        yield TextDelta("Grüße")
        yield ToolCallStart(0, "call_1", "f")
        yield ToolCallDelta(0, '{"a":')
        yield ToolCallDelta(0, "1}")
        yield finished(tokens, 4, "tool_calls")

    start(script)
    assert oneshot.answer(SETTINGS, Question("hi", as_json=True)) == 0
    out, err = capsys.readouterr()
    reply = json.loads(out)
    (choice,) = reply["choices"]
    assert "Grüße" in out and err == ""
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Grüße" and choice["message"]["reasoning_content"] == "hm "
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a":1}'}
    usage = reply["usage"]
    assert (
        usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] and usage["completion_tokens"] == 4
    )
    assert reply["model"] == "GGUF, scripted" and reply["x_phobos"]["seed"] == 1234


@pytest.mark.parametrize("error", [RequestError("the prompt is bad: mend it"), UnavailableError("broken")])
def test_a_failure_is_raised(start: Start, error: PhobosError, capsys: Capture) -> None:
    def script(request: GenerationRequest, tokens: tuple[int, ...], choice: int) -> Iterator[Event | float]:
        yield TextDelta("half ")
        yield Failed(error)

    start(script)
    with pytest.raises(type(error), match=str(error)):
        oneshot.answer(SETTINGS, Question("hi"))
    assert capsys.readouterr().out == "half "


def test_an_engine_that_dies_silently_is_noticed(start: Start) -> None:
    engine = start(say("never", pause_s=60.0))
    engine.alive, engine.failure = False, UnavailableError("the engine fell over")
    with pytest.raises(UnavailableError, match="fell over"):
        oneshot.answer(SETTINGS, Question("hi"))


def test_an_interrupt_cancels(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = start(say("a", "b", pause_s=30.0))

    def interrupt(*args: object) -> Event:
        raise KeyboardInterrupt

    monkeypatch.setattr(oneshot, "_next_event", interrupt)
    with pytest.raises(KeyboardInterrupt):
        oneshot.answer(SETTINGS, Question("hi"))
    assert len(engine.submitted) == 1
    from doubles.scripted_engine import eventually

    assert eventually(lambda: engine.cancelled == 1)


def test_raw_and_system_contradict(start: Start) -> None:
    with pytest.raises(UsageError, match="leave one out"):
        oneshot.answer(SETTINGS, Question("hi", raw=True, system="x"))


@pytest.mark.parametrize(
    ("text", "sentence"), [("{", "is not valid JSON"), ("[1]", "must be an object"), (None, "cannot read the schema")]
)
def test_wrong_schemas(tmp_path: Path, text: str | None, sentence: str) -> None:
    path = tmp_path / "s.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=sentence):
        oneshot.read_schema(path)
