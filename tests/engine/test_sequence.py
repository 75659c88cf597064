"""One request's state, fed tokens by hand."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles.scripted_backend import BOS, END, Collector, ScriptedTokenizer
from phobos.chat.dialects.scanner import Consumed, Content
from phobos.chat.events import (
    Finished,
    PromptLogprobs,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
)
from phobos.chat.messages import GenerationRequest, SamplingParams
from phobos.engine.sampler import Logprobs, Sampler, resolve_sampling
from phobos.engine.sequence import Admission, Sequence
from phobos.kernels.sampling import RowKernels

LETTERS = ScriptedTokenizer(
    [*"ABCDEFGHIJ", "lo wor", "Hel", "ld", b"\xf0", b"\x9f\x98", b"\x80", "é", "<t>", "</t>", " "]
)


class AngleScanner:
    """Text between `<t>` and `</t>` is reasoning; `!x` becomes a call; held back while it may be a marker."""

    shown_ids: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self.in_reasoning = False
        self._held = ""

    def push(self, text: str) -> Iterable[Content | Consumed]:
        self._held += text
        while self._held:
            marker = "</t>" if self.in_reasoning else "<t>"
            at = self._held.find(marker)
            if at < 0:
                keep = next((n for n in range(len(marker) - 1, 0, -1) if self._held.endswith(marker[:n])), 0)
                ready, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
                yield from self._emit(ready)
                return
            yield from self._emit(self._held[:at])
            yield Consumed(len(marker))
            self._held = self._held[at + len(marker) :]
            self.in_reasoning = not self.in_reasoning

    def flush(self) -> Iterable[Content | Consumed]:
        ready, self._held = self._held, ""
        yield from self._emit(ready)

    def _emit(self, text: str) -> Iterable[Content | Consumed]:
        if text and self.in_reasoning:
            yield Consumed(len(text), (ReasoningDelta(text),))
        elif text:
            yield Content(text)


class CallScanner(AngleScanner):
    """What is between the markers is a call."""

    def _emit(self, text: str) -> Iterable[Content | Consumed]:
        if text and self.in_reasoning:
            yield Consumed(len(text), (ToolCallStart(0, "c1", "f"), ToolCallDelta(0, text)))
        elif text:
            yield Content(text)


def make_sequence(
    tokens: Iterable[int] = (BOS, 2), n_ctx: int = 64, scanner: Any = None, n_cached: int = 0, **fields: Any
) -> Sequence:
    request = GenerationRequest("r", prompt=tuple(tokens), **{"sampling": SamplingParams(seed=1), **fields})
    sampler = Sampler(resolve_sampling(request.sampling), tokens, 0, RowKernels(LETTERS.n_vocab))
    sequence = Sequence(request, tuple(tokens), LETTERS, sampler, n_ctx=n_ctx, scanner=scanner)
    sequence.admit(Admission(0, n_cached, 1.0))
    sequence.n_rows = sequence.n_prompt
    return sequence


def feed(sequence: Sequence, pieces: Iterable[str | bytes | int]) -> Collector:
    """Push tokens until the sequence ends."""
    collector = Collector()
    for piece in pieces:
        token = piece if isinstance(piece, int) else LETTERS.id_of(piece)
        logprobs = Logprobs(-0.5, (token, 2), (-0.5, -1.5)) if sequence.wants_logprobs else None
        for event in sequence.push(token, logprobs, now_s=2.0):
            collector(event)
        if sequence.finished is not None:
            break
    return collector


def test_an_end_token_ends_the_answer_and_is_counted() -> None:
    reply = feed(make_sequence(), ["A", "B", END, "C"]).fold()
    assert reply.text == "AB"
    assert (reply.last.reason, reply.last.usage.n_generated, reply.last.stop_text) == ("stop", 3, None)


@pytest.mark.parametrize("told", [None, 1])
def test_a_stop_string_over_many_tokens_leaves_nothing_of_itself(told: int | None) -> None:
    collector = feed(make_sequence(stop=("DEFGHIJ",), top_logprobs=told), "ABCDEFGHIJ")
    deltas = [e.text for e in collector.events if isinstance(e, TextDelta)]
    assert deltas == ["A", "B", "C"]
    assert (collector.fold().last.reason, collector.fold().last.stop_text) == ("stop", "DEFGHIJ")
    assert collector.fold().last.usage.n_generated == 10


def test_a_stop_string_met_at_once() -> None:
    reply = feed(make_sequence(stop=("A",)), "ABC").fold()
    assert (reply.text, reply.last.reason, reply.last.usage.n_generated) == ("", "stop", 1)


def test_a_stop_string_that_begins_inside_a_token_cuts_its_entry() -> None:
    reply = feed(make_sequence(stop=("world",), top_logprobs=2), ["Hel", "lo wor", "ld"]).fold()
    assert reply.text == "".join(e.text for e in reply.entries) == "Hello "
    assert reply.entries[-1].data == b"lo "


def test_characters_are_never_cut_and_entries_keep_their_bytes() -> None:
    collector = feed(make_sequence(top_logprobs=0), ["A", b"\xf0", b"\x9f\x98", b"\x80", "B", END])
    assert [e.text for e in collector.events if isinstance(e, TextDelta)] == ["A", "\U0001f600", "B"]
    entries = collector.fold().entries
    assert [e.text for e in entries] == ["A", "", "", "\U0001f600", "B"]
    assert b"".join(e.data for e in entries).decode() == "A\U0001f600B"


def test_an_unfinished_character_at_the_limit_is_told_as_such() -> None:
    reply = feed(make_sequence(max_tokens=2, top_logprobs=0), ["A", b"\xf0"]).fold()
    assert reply.text == "".join(e.text for e in reply.entries) == "A\ufffd"
    assert [e.data for e in reply.entries] == [b"A", b"\xf0"]
    assert reply.last.reason == "length"


def test_what_was_held_back_comes_out_at_the_end() -> None:
    reply = feed(make_sequence(stop=("ABX", "é!"), max_tokens=3), ["A", "B", "é"]).fold()
    assert (reply.text, reply.last.reason) == ("ABé", "length")


def test_a_stop_string_next_to_an_emoji() -> None:
    pieces: list[str | bytes | int] = [b"\xf0", b"\x9f\x98", b"\x80", "A", "B", "C"]
    reply = feed(make_sequence(stop=("\U0001f600AB",)), pieces).fold()
    assert (reply.text, reply.last.reason) == ("", "stop")


@pytest.mark.parametrize(("wanted", "n_ctx", "limit"), [(None, 10, 8), (5, 10, 5), (100_000_000, 10, 8), (1, 3, 1)])
def test_the_limit_is_clamped_to_the_room(wanted: int | None, n_ctx: int, limit: int) -> None:
    reply = feed(make_sequence(max_tokens=wanted, n_ctx=n_ctx), "A" * 50).fold()
    assert (len(reply.text), reply.last.reason) == (limit, "length")


def test_leading_stop_strings_are_ignored_when_asked() -> None:
    reply = feed(make_sequence(stop=("A",), ignore_leading_stop=True), ["A", " ", "A", "B", "A"]).fold()
    assert (reply.text, reply.last.stop_text) == (" B", "A")


def test_started_tells_seed_and_wait() -> None:
    request = GenerationRequest("r", prompt="A", sampling=SamplingParams(seed=7))
    sampler = Sampler(resolve_sampling(request.sampling), [2], 0, RowKernels(LETTERS.n_vocab))
    sequence = Sequence(request, [2, 3], LETTERS, sampler, n_ctx=9, submitted_s=4.0, queue_wait_s=0.5)
    assert sequence.admit(Admission(3, 1, 6.0)) == [Started(3, 2, 1, 7, 2.5)]


def test_usage_and_timings() -> None:
    sequence = make_sequence((BOS, 2, 3, 4), n_cached=3)
    sequence.push(2, None, 1.5)
    last = sequence.push(END, None, 4.0)[-1]
    assert isinstance(last, Finished)
    assert (last.usage.n_prompt, last.usage.n_cached, last.usage.n_generated) == (4, 3, 2)
    assert (last.timings.prompt_s, last.timings.decode_s, last.timings.n_prompt_computed) == (0.5, 2.5, 1)


def test_prompt_logprobs_have_texts_that_join_to_the_prompt() -> None:
    tokens = (BOS, LETTERS.id_of("A"), LETTERS.id_of(b"\xf0"), LETTERS.id_of(b"\x9f\x98"), LETTERS.id_of(b"\x80"))
    sequence = make_sequence(tokens, echo=True, top_logprobs=1)
    sequence.push_prompt_logprobs([Logprobs(-1.0, (2,), (-0.1,)), Logprobs(-2.0)])
    sequence.push_prompt_logprobs([Logprobs(-3.0), Logprobs(-4.0)])
    (event,) = sequence.end_prompt(1.0)
    assert isinstance(event, PromptLogprobs)
    assert "".join(e.text for e in event.tokens) == "A\U0001f600"
    assert math.isnan(event.tokens[0].logprob)
    assert [e.logprob for e in event.tokens[1:]] == [-1.0, -2.0, -3.0, -4.0]
    assert [e.token_id for e in event.tokens] == list(tokens)
    assert event.tokens[1].top[0].text == "A"


def test_a_limit_of_no_tokens_ends_with_the_prompt() -> None:
    last = make_sequence(max_tokens=0).end_prompt(1.0)[-1]
    assert isinstance(last, Finished) and last.reason == "length"


def test_reasoning_is_no_content_and_has_no_entries() -> None:
    collector = feed(make_sequence(scanner=AngleScanner(), top_logprobs=0), ["<t>", "A", "B", "</t>", "C", END])
    reply = collector.fold()
    assert [e.text for e in collector.events if isinstance(e, ReasoningDelta)] == ["A", "B"]
    assert reply.text == "".join(e.text for e in reply.entries) == "C"
    assert reply.last.usage.n_reasoning == 3  # what was chosen while the block was open


def test_stop_strings_are_looked_for_in_content_only() -> None:
    reply = feed(make_sequence(scanner=AngleScanner(), stop=("B",)), ["<t>", "A", "B", "</t>", "C", "B", "D"]).fold()
    assert (reply.text, reply.last.stop_text) == ("C", "B")


def test_a_marker_cut_over_tokens_is_not_seen() -> None:
    pieces = ScriptedTokenizer(["x<", "t", ">y</", "t>z"])
    request = GenerationRequest("r", prompt="x", top_logprobs=0)
    sampler = Sampler(resolve_sampling(SamplingParams()), [2], 0, RowKernels(pieces.n_vocab))
    sequence = Sequence(request, [2], pieces, sampler, n_ctx=20, scanner=AngleScanner())
    events = [e for token in (2, 3, 4, 5, END) for e in sequence.push(token, Logprobs(-1.0))]
    content = [e for e in events if isinstance(e, TextDelta)]
    assert "".join(e.text for e in content) == "xz"
    assert [entry.text for e in content for entry in e.logprobs] == ["x", "z"]
    assert [e.text for e in events if isinstance(e, ReasoningDelta)] == ["y"]


def test_content_held_back_comes_before_what_interrupts_it() -> None:
    sequence = make_sequence(scanner=CallScanner(), stop=("AB",))
    collector = feed(sequence, ["A", "<t>", "B", "</t>", END])
    kinds = [type(e).__name__ for e in collector.events]
    assert kinds == ["TextDelta", "ToolCallStart", "ToolCallDelta", "Finished"]
    assert collector.fold().last.reason == "tool_calls"


def test_a_call_cut_by_the_limit_ends_by_length() -> None:
    collector = feed(make_sequence(scanner=CallScanner(), max_tokens=2), ["<t>", "B"])
    assert collector.fold().last.reason == "length"


@given(
    st.lists(st.sampled_from(["A", "B", "é", b"\xf0", b"\x9f\x98", b"\x80", "lo wor", "Hel"]), max_size=14),
    st.lists(st.sampled_from(["AB", "o w", "lo", "\U0001f600", "é", "BAé"]), max_size=3),
    st.booleans(),
)
def test_text_and_entries_agree_whatever_is_asked(pieces: list[str | bytes], stop: list[str], told: bool) -> None:
    everything: list[str | bytes | int] = [*pieces, END]
    plain = feed(make_sequence(stop=tuple(stop)), everything).fold()
    other = feed(make_sequence(stop=tuple(stop), top_logprobs=1 if told else None), everything).fold()
    assert other.text == plain.text
    assert other.last.usage == plain.last.usage and other.last.stop_text == plain.last.stop_text
    assert not any(s in plain.text for s in stop)
    if told:
        assert "".join(e.text for e in other.entries) == other.text
