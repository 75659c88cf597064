"""The slash commands over a scripted engine in the test's own process, and what a session makes of answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from doubles.scripted_engine import ScriptedModel, endless, finished, say
from phobos.chat.events import Event, Failed, ReasoningDelta, TextDelta, ToolCallDelta, ToolCallStart
from phobos.chat.messages import GenerationRequest
from phobos.errors import FileError, PhobosError, UnavailableError, UsageError
from phobos.repl import commands, terminal
from phobos.repl.commands import COMMANDS, offered, parse_command, run_command, unescape
from phobos.repl.exchange import Answer
from phobos.repl.session import AskHooks
from phobos.settings import SamplingDefaults

from .conftest import Bench

MakeBench = Callable[..., Bench]


def run(desk: Bench, line: str) -> str:
    """Run a command line; what it said."""
    found = parse_command(line)
    assert found is not None
    run_command(desk.desk, *found)
    return desk.said


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("/help", ("help", "")),
        ("  /set temp 0.2 ", ("set", "temp 0.2")),
        ("/system two\nlines", ("system", "two\nlines")),
        ("/etc/passwd", None),
        ("// a comment", None),
        ("/", None),
        ("say /help", None),
        ("/Users are people", None),
        ("/Help", ("help", "")),
        ("/exit", ("quit", "")),
        ("/BYE", ("quit", "")),
        ("/?", ("help", "")),
    ],
)
def test_what_is_a_command(line: str, found: tuple[str, str] | None) -> None:
    assert parse_command(line) == found


def test_help_lists_every_command_that_works_here(bench: MakeBench) -> None:
    desk = bench()
    said = run(desk, "/help")
    for command in COMMANDS:
        assert (f"/{command.name}" in said) == (command.name in offered(desk.desk))
    wanted = "help system set think retry edit undo clear save load export copy model stats tokens decide quit"
    assert [command.name for command in COMMANDS] == wanted.split()


def test_two_slashes_begin_a_message_with_one() -> None:
    assert parse_command("//foo bar") is None
    assert (unescape("//foo bar"), unescape("a // b"), unescape("/etc")) == ("/foo bar", "a // b", "/etc")


def test_an_unknown_command(bench: MakeBench) -> None:
    with pytest.raises(UsageError, match="did you mean /retry"):
        run(bench(), "/rety")
    with pytest.raises(UsageError, match="/help lists"):
        run(bench(), "/xyzxyz")


def test_what_is_set_goes_into_the_request(bench: MakeBench) -> None:
    desk = bench(sampling=SamplingDefaults(temperature=0.5), system="old")
    run(desk, "/set top-k 7")
    run(desk, "/set n_predict=9")
    assert "0.5" in run(desk, "/set")
    run(desk, "/set temp default")
    run(desk, "/system be kind")
    assert "be kind" in run(desk, "/system")
    run(desk, "/think on")
    desk.desk.ask("hi")
    (request,) = desk.engine.submitted
    assert (request.sampling.top_k, request.sampling.temperature, request.max_tokens) == (7, None, 9)
    assert [(m.role, m.content) for m in request.messages] == [("system", "be kind"), ("user", "hi")]
    assert request.thinking
    run(desk, "/system off")
    assert desk.session.transcript.system is None
    with pytest.raises(UsageError, match="usage: /set temp VALUE"):
        run(desk, "/set temp")


def test_a_model_without_reasoning_or_chat_format(bench: MakeBench) -> None:
    desk = bench(model=replace(ScriptedModel(), supports_thinking=False, template=None), think=True)
    assert not desk.session.thinking
    with pytest.raises(UsageError, match="has no reasoning"):
        run(desk, "/think")
    desk.desk.ask("The sky")
    desk.desk.ask("is")
    first, second = desk.engine.submitted
    assert first.prompt == "The sky" and first.messages == ()
    assert str(second.prompt).startswith("The sky\nAnswer") and str(second.prompt).endswith("\nis")


def test_an_answer_joins_the_conversation_with_its_reasoning(bench: MakeBench) -> None:
    def script(request: GenerationRequest, tokens: tuple[int, ...], choice: int) -> Iterator[Event | float]:
        yield ReasoningDelta("hm ")
        yield ReasoningDelta("so")
        yield TextDelta("Yes.")
        yield ToolCallStart(0, "c", "look")
        yield ToolCallDelta(0, '{"a": 1}')
        yield finished(tokens, 4)

    desk = bench(script)
    desk.desk.ask("is it?")
    answer = desk.session.transcript.last_answer
    assert answer is not None
    assert (answer.content, answer.reasoning) == ('Yes.\n\nlook {"a": 1}', "hm so")
    assert "hm so" in run(desk, "/think show")
    assert run(desk, "/think keep") and not desk.session.fold_reasoning
    with pytest.raises(UsageError, match="is not understood"):
        run(desk, "/think hard")


def test_a_failed_question_is_taken_back_and_a_half_answer_kept(bench: MakeBench) -> None:
    def script(request: GenerationRequest, tokens: tuple[int, ...], choice: int) -> Iterator[Event | float]:
        if "half" in (request.messages[-1].content or ""):
            yield TextDelta("a half ")
        yield Failed(UnavailableError("it broke: again"))

    desk = bench(script)
    desk.desk.ask("nothing")
    assert desk.session.transcript.turns == []
    desk.desk.ask("half")
    assert [m.content for m in desk.session.transcript.turns] == ["half", "a half "]
    desk.session.transcript.turns.clear()
    desk.desk.ask("refuse this")  # the template's own refusal comes before the engine
    assert desk.session.transcript.turns == []


def test_a_failed_retry_keeps_the_old_answer(bench: MakeBench) -> None:
    desk = bench(say("good"))
    with pytest.raises(UsageError, match="nothing to retry"):
        run(desk, "/retry")
    desk.desk.ask("q")
    desk.engine.script = say("better")
    run(desk, "/retry")
    assert [m.content for m in desk.session.transcript.turns] == ["q", "better"]

    def fail(request: GenerationRequest, tokens: tuple[int, ...], choice: int) -> Iterator[Event | float]:
        yield Failed(UnavailableError("no"))

    desk.engine.script = fail
    run(desk, "/retry")
    assert [m.content for m in desk.session.transcript.turns] == ["q", "better"]
    run(desk, "/set seed 3")
    assert "will be the same" in run(desk, "/retry")


def test_stopping_cancels_the_request(bench: MakeBench) -> None:
    desk = bench(endless())
    seen: list[Answer] = []

    def stopped() -> bool:
        return bool(seen) and len(seen[-1].text) > 20

    answer = desk.session.ask("go", AskHooks(seen.append, lambda answer: None, stopped))
    assert answer.stopped and answer.finished is None
    assert desk.session.transcript.turns[-1].content == answer.text
    assert "stopped" in desk.session.footer(answer)
    from doubles.scripted_engine import eventually

    assert eventually(lambda: desk.engine.cancelled == 1)


def test_an_engine_that_dies_ends_the_wait(bench: MakeBench) -> None:
    desk = bench(say("never", pause_s=60.0))
    desk.engine.alive, desk.engine.failure = False, UnavailableError("it fell over: start again")
    answer = desk.session.ask("go", AskHooks(lambda a: None, lambda a: None, lambda: False))
    assert str(answer.error) == "it fell over: start again"


def test_saving_asks_before_it_replaces(bench: MakeBench, tmp_path: Path) -> None:
    desk = bench()
    path = tmp_path / "a b.json"
    with pytest.raises(UsageError, match="nothing to save"):
        run(desk, f"/save {path}")
    desk.desk.ask("hi")
    with pytest.raises(UsageError, match="usage: /save"):
        run(desk, "/save")
    run(desk, f'/save "{path}"')
    run(desk, "/save")
    assert desk.front.questions == []
    other = tmp_path / "other.json"
    other.write_text("mine")
    desk.front.says_yes = False
    with pytest.raises(FileError, match="was left as it is"):
        run(desk, f"/save {other}")
    with pytest.raises(FileError, match="was left as it is"):
        run(desk, f"/export {other}")
    desk.front.says_yes = True
    run(desk, f"/export {other}")
    assert other.read_text().startswith("# Conversation with scripted")
    run(desk, "/clear")
    run(desk, f"/load {path}")
    assert [m["role"] for m in json.loads(path.read_text())] == [m.role for m in desk.session.transcript.messages]


def test_copying(bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []
    monkeypatch.setattr(commands, "copy_text", lambda text, terminal: copied.append(text) or "a test")
    desk = bench(say("see\n```\ncode\n```\nend"))
    with pytest.raises(UsageError, match="no answer to copy"):
        run(desk, "/copy")
    desk.desk.ask("hi")
    run(desk, "/copy")
    assert "copied 4 letters by a test" in run(desk, "/copy code")
    assert copied == ["see\n```\ncode\n```\nend", "code"]
    desk.engine.script = say("plain")
    desk.desk.ask("hi")
    with pytest.raises(UsageError, match="has no code"):
        run(desk, "/copy code")


def test_over_ssh_the_terminal_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    import base64
    import io

    monkeypatch.setenv("SSH_CONNECTION", "1 2 3 4")
    out = io.StringIO()
    assert terminal.copy_text("Grüße", out) == "the terminal"
    assert out.getvalue() == f"\x1b]52;c;{base64.b64encode('Grüße'.encode()).decode()}\x07"


def test_tokens_and_stats(bench: MakeBench) -> None:
    desk = bench()
    with pytest.raises(UsageError, match="is empty"):
        run(desk, "/tokens")
    said = run(desk, "/tokens aé")
    assert "a 97" in said and "3 tokens" in said
    desk.desk.ask("hello")
    n_prompt = len(desk.engine.model.prepare(desk.session.build_request()).tokens)
    assert f"the conversation has {n_prompt} tokens of 4096" in run(desk, "/tokens")
    said = run(desk, "/stats")
    assert "scripted (scripted, F32)" in said and "in this chat" in said and "tok/s" in said


def test_changing_the_model(bench: MakeBench) -> None:
    desk = bench()
    said = run(desk, "/model")
    assert "scripted" in said and "other.gguf" in said
    run(desk, "/model other.gguf")
    assert desk.opened == ["other.gguf"]
    with pytest.raises(PhobosError, match="it is broken"):
        run(desk, "/model broken")


def test_footer_tells_when_the_context_is_full(bench: MakeBench) -> None:
    def script(request: GenerationRequest, tokens: tuple[int, ...], choice: int) -> Iterator[Event | float]:
        yield TextDelta("x")
        yield finished(tokens, 1 if request.max_tokens else 4096 - len(tokens), "length", n_cached=5)

    desk = bench(script)
    full = desk.front.ask("go")
    assert "cut off: the context is full" in desk.session.footer(full)
    run(desk, "/set n-predict 1")
    desk.session.transcript.turns.clear()
    assert "cut off by the limit" in desk.session.footer(desk.front.ask("go"))


def test_footer_and_stats_tell_how_many_guesses_were_right(bench: MakeBench) -> None:
    def script(request: GenerationRequest, tokens: tuple[int, ...], choice: int) -> Iterator[Event | float]:
        yield TextDelta("x")
        end = finished(tokens, 9)
        yield end if "plainly" in str(request.messages) else replace(end, timings=replace(end.timings, **guesses))

    guesses = {"n_draft": 8, "n_draft_accepted": 6}
    desk = bench(script)
    assert "guess" not in desk.session.footer(desk.front.ask("say it plainly"))
    assert not any(name == "guessing" for name, _ in desk.session.describe_stats())
    desk.session.transcript.turns.clear()
    for _ in range(2):
        assert " tok/s · 6/8 guessed · " in desk.session.footer(desk.front.ask("again"))
    assert ("guessing", "75% of 16 tokens right") in desk.session.describe_stats()


def test_deciding_reads_and_writes_nothing(bench: MakeBench) -> None:
    desk = bench()
    desk.desk.ask("my package never came")
    before = desk.session.transcript.messages
    said = run(desk, "/decide which desk? refunds | shipping | refunds |")
    shares = [float(found) for found in re.findall(r"(\d+\.\d+)%", said)]
    assert len(shares) == 2 and abs(sum(shares) - 100) < 0.1
    assert "refunds" in said and "shipping" in said and "confidence" in said
    assert desk.session.transcript.messages == before
    assert sum(isinstance(request, GenerationRequest) for request in desk.engine.submitted) == 1
    for line in ("/decide", "/decide one", "/decide really? | |"):
        with pytest.raises(UsageError, match="two or more labels"):
            run(desk, line)


def test_leaving(bench: MakeBench) -> None:
    desk = bench()
    run(desk, "/quit")
    assert desk.desk.is_over
