"""The engine's thread, on a scripted backend."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from doubles.scripted_backend import BOS, END, Collector
from phobos.chat.events import Failed, Finished, PromptLogprobs, Started, TextDelta
from phobos.chat.messages import OutputFormat, SamplingParams, ToolSpec
from phobos.errors import ContextLengthError, RequestError, UnavailableError

MakeBench = Callable[..., Any]


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.002)


def repeat(letter: int) -> Callable[[tuple[int, ...]], int]:
    return lambda tokens: letter


# Answers


def test_events_come_in_order_and_the_account_is_right(make_bench: MakeBench) -> None:
    bench = make_bench(script=repeat(5))
    collector, _ = bench.submit(bench.request("abc", max_tokens=4))
    reply = collector.wait()
    assert isinstance(collector.events[0], Started) and isinstance(collector.events[-1], Finished)
    assert all(isinstance(e, TextDelta) for e in collector.events[1:-1])
    assert reply.text == "dddd"
    usage = reply.last.usage
    assert (usage.n_prompt, usage.n_cached, usage.n_generated, reply.last.reason) == (4, 0, 4, "length")


def test_the_same_request_twice_has_equal_prompt_tokens(make_bench: MakeBench) -> None:
    bench = make_bench()
    first, second = bench.ask("abcdef", max_tokens=5), bench.ask("abcdef", max_tokens=5)
    assert first.text == second.text
    assert first.last.usage.n_prompt == second.last.usage.n_prompt == 7
    assert (first.last.usage.n_cached, second.last.usage.n_cached) == (0, 6)


def test_a_prompt_runs_in_chunks(make_bench: MakeBench) -> None:
    bench = make_bench(n_ctx=64, chunk_rows=7)
    bench.ask("a" * 40, max_tokens=1)
    assert [len(batch.tokens) for batch in bench.backend.batches] == [7, 7, 7, 7, 7, 6]
    assert [len(batch.outputs) for batch in bench.backend.batches] == [0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("n_prompt", [62, 63])
def test_filling_the_context_ends_by_length(make_bench: MakeBench, n_prompt: int) -> None:
    bench = make_bench(script=repeat(5))
    reply = bench.ask("a" * (n_prompt - 1), max_tokens=100_000_000)
    assert (len(reply.text), reply.last.reason) == (64 - n_prompt, "length")


@pytest.mark.parametrize("n_prompt", [64, 65, 500])
def test_a_prompt_that_leaves_no_room_is_refused(make_bench: MakeBench, n_prompt: int) -> None:
    bench = make_bench()
    with pytest.raises(ContextLengthError) as error:
        bench.model.prepare(bench.request("a" * (n_prompt - 1)))
    assert error.value.details == {"n_prompt_tokens": n_prompt, "n_ctx": 64}
    assert error.value.param == "prompt"
    with pytest.raises(ContextLengthError):
        bench.engine.submit(bench.model.prepare(bench.request("a" * (n_prompt - 1)), any_length=True), Collector())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 3}, "n"),
        ({"cache_slot": 2}, "cache_slot"),
        ({"cache_slot": -1}, "cache_slot"),
        ({"top_logprobs": 33}, "top_logprobs"),
        ({"sampling": SamplingParams(logit_bias={28: 1.0})}, "logit_bias"),
        ({"prompt": ()}, "prompt"),
        ({"prompt": (1, 28)}, "prompt"),
        ({"suffix": "x"}, "suffix"),
        ({"thinking": True}, "enable_thinking"),
        ({"thinking": True, "reasoning_effort": "high"}, "reasoning_effort"),
        ({"prompt": None}, "messages"),
        ({"output": OutputFormat("json_object")}, "response_format"),
        ({"tools": (ToolSpec("f", "", {}),)}, "tools"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(make_bench: MakeBench, fields: dict[str, Any], param: str) -> None:
    bench = make_bench()
    with pytest.raises(RequestError) as error:
        bench.model.prepare(bench.request(fields.pop("prompt", "a"), **fields))
    assert error.value.param == param


def test_log_probabilities_are_of_the_raw_distribution(make_bench: MakeBench) -> None:
    bench = make_bench(n_ctx=512)
    plain = bench.ask("abc", max_tokens=20, top_logprobs=3, sampling=SamplingParams(temperature=0.0))
    assert all(entry.top[0].token_id == entry.token_id for entry in plain.entries)
    assert all(entry.top[0].logprob == entry.logprob for entry in plain.entries)
    biased = SamplingParams(temperature=0.0, logit_bias={7: 100.0})
    entries = bench.ask("abc", max_tokens=5, top_logprobs=28, sampling=biased).entries
    assert {entry.token_id for entry in entries} == {7}
    for entry in entries:
        assert entry.logprob == next(top.logprob for top in entry.top if top.token_id == 7)


def test_biases_of_texts_and_of_the_tokens_that_end_a_turn(make_bench: MakeBench) -> None:
    bench = make_bench(n_ctx=128)
    wanted = SamplingParams(temperature=0.0, text_bias={"ab": 100.0}, logit_bias={3: 50.0, END: 200.0})
    assert bench.ask("abc", max_tokens=4, sampling=wanted).text == ""
    never = replace(wanted, ignore_eos=True)
    assert bench.ask("abc", max_tokens=4, sampling=never).text == "aaaa"
    assert bench.ask("abc", max_tokens=4, sampling=replace(never, logit_bias={2: -50.0})).text != "aaaa"
    with pytest.raises(RequestError) as error:
        bench.model.prepare(bench.request("a", sampling=never, output=OutputFormat("json_object")))
    assert error.value.param in ("ignore_eos", "response_format")


def test_a_prompt_of_ids_and_texts(make_bench: MakeBench) -> None:
    bench = make_bench()
    assert bench.model.prepare(bench.request(("ab", 5, "c", 6))).tokens == (BOS, 2, 3, 5, 4, 6)
    assert bench.model.prepare(bench.request((5, "ab"))).tokens == (5, 2, 3)
    with pytest.raises(RequestError):
        bench.model.prepare(bench.request(("ab", 28)))


def test_prompt_log_probabilities_are_those_of_the_rows_before(make_bench: MakeBench) -> None:
    bench = make_bench(n_ctx=512, n_slots=3)
    prompt = (BOS, *np.random.default_rng(3).integers(2, 28, 90).tolist())
    bench.ask(prompt, max_tokens=1)
    collector, _ = bench.submit(bench.request(prompt, max_tokens=3, echo=True, top_logprobs=2))
    other, _ = bench.submit(bench.request(prompt[:50], max_tokens=3, echo=True, top_logprobs=2))
    reply = collector.wait()
    assert reply.last.usage.n_cached == 0
    (told,) = [e for e in collector.events if isinstance(e, PromptLogprobs)]
    assert [entry.token_id for entry in told.tokens] == list(prompt)
    for i in (1, 2, 40, 89, 90):
        best = bench.ask(prompt[:i], max_tokens=1, top_logprobs=2).entries
        if best:  # not the end token
            assert [(t.token_id, t.logprob) for t in told.tokens[i].top] == [
                (t.token_id, t.logprob) for t in best[0].top
            ]
    other.wait()
    (shorter,) = [e for e in other.events if isinstance(e, PromptLogprobs)]
    assert [e.logprob for e in shorter.tokens[1:]] == [e.logprob for e in told.tokens[1:50]]


# Seeds


@pytest.mark.parametrize("seed", [42, 1715852364, 2**32 - 1, 0, 2**70, -7])
def test_equal_seeds_give_equal_text_alone_and_beside_others(make_bench: MakeBench, seed: int) -> None:
    bench = make_bench(n_slots=3, n_ctx=128)
    alone = bench.ask("seed", seed=seed, max_tokens=30)
    assert alone.started.seed == seed
    others = [bench.submit(bench.request("other" * n, seed=n, max_tokens=50))[0] for n in (1, 2)]
    assert bench.ask("seed", seed=seed, max_tokens=30).text == alone.text
    for other in others:
        other.wait()
    assert bench.ask("seed", seed=seed, max_tokens=30).text == alone.text


def test_different_seeds_differ_and_choices_too(make_bench: MakeBench) -> None:
    bench = make_bench(n_ctx=128)
    texts = {bench.ask("seed", seed=seed, max_tokens=30).text for seed in (0, 1, 2**32 - 1, 2**32, 2**64, 2**64 + 1)}
    assert len(texts) == 6
    request = bench.request("seed", max_tokens=30, n=2)
    assert len({bench.submit(request, choice)[0].wait().text for choice in (0, 1)}) == 2


def test_choices_of_one_request_share_a_seed_and_come_again_by_it(make_bench: MakeBench) -> None:
    bench = make_bench(n_ctx=64)
    random = SamplingParams(temperature=1.0)
    prepared = bench.model.prepare(bench.request("seed", sampling=random, max_tokens=30, n=2))
    collectors = [Collector(), Collector()]
    for choice, collector in enumerate(collectors):
        bench.engine.submit(prepared, collector, choice=choice)
    replies = [collector.wait() for collector in collectors]
    (seed,) = {reply.started.seed for reply in replies}
    again = bench.request("seed", sampling=replace(random, seed=seed), max_tokens=30, n=2)
    assert [bench.submit(again, choice)[0].wait().text for choice in (0, 1)] == [reply.text for reply in replies]


@pytest.mark.parametrize("seed", [None, -1])
def test_no_seed_is_random_and_told(make_bench: MakeBench, seed: int | None) -> None:
    bench = make_bench(n_ctx=128)
    replies = [bench.ask("seed", sampling=SamplingParams(seed=seed, temperature=1.0), max_tokens=30) for _ in range(3)]
    assert len({reply.started.seed for reply in replies}) == 3
    again = bench.ask("seed", sampling=SamplingParams(seed=replies[0].started.seed, temperature=1.0), max_tokens=30)
    assert again.text == replies[0].text


def test_penalties_follow_the_answer(make_bench: MakeBench) -> None:
    bench = make_bench(n_ctx=64)
    greedy = {"temperature": 0.0, "logit_bias": {0: -1e6, 1: -1e6}}
    strong = SamplingParams(presence_penalty=1000.0, **greedy)
    text = bench.ask("a", max_tokens=26, sampling=strong).text
    assert len(set(text)) == 26
    repeated = SamplingParams(repetition_penalty=1e9, **greedy)
    assert "a" not in bench.ask("a", max_tokens=5, sampling=repeated).text[:5]


# Slots


def test_n_choices_process_the_prompt_once(make_bench: MakeBench) -> None:
    for options in ({}, {"prefix_cache": False}):
        bench = make_bench(n_slots=3, **options)
        request = bench.request("abcdefghij", n=3, max_tokens=4, cache_prompt=False)
        bench.backend.gate.clear()
        collectors = [bench.submit(request, choice)[0] for choice in range(3)]
        bench.backend.gate.set()
        replies = [collector.wait() for collector in collectors]
        assert [reply.last.usage.n_cached for reply in replies] == [0, 10, 10]
        assert bench.counters.prompt_tokens_computed == 11 + 1 + 1


def test_a_shared_beginning_is_computed_once_for_many(make_bench: MakeBench) -> None:
    bench = make_bench(n_slots=4, n_ctx=256, chunk_rows=16)
    bench.backend.gate.clear()
    collectors = [bench.submit(bench.request("s" * 100 + letter * 5, max_tokens=3))[0] for letter in "abcd"]
    bench.backend.gate.set()
    for collector in collectors:
        collector.wait()
    assert bench.counters.prompt_tokens_computed <= 106 + 3 * 6
    assert bench.counters.prompt_tokens == 4 * 106


def test_a_follow_up_reuses_what_the_model_wrote(make_bench: MakeBench) -> None:
    bench = make_bench(n_ctx=128)
    reply = bench.ask("abc", max_tokens=20, sampling=SamplingParams(temperature=0.0, logit_bias={1: -1000.0}))
    follow_up = bench.ask("abc" + reply.text + "xyz", max_tokens=1)
    assert follow_up.last.usage.n_cached == 1 + 3 + 19  # the last token chosen never ran
    changed = bench.ask("abd" + reply.text, max_tokens=1)
    assert changed.last.usage.n_cached == 3


def test_opting_out_of_reuse(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.ask("abcdef", max_tokens=2)
    assert bench.ask("abcdef", max_tokens=2, cache_prompt=False).last.usage.n_cached == 0
    assert bench.ask("abcdef", max_tokens=2).last.usage.n_cached == 6


def test_without_the_prefix_cache_every_session_is_empty_and_given_back(make_bench: MakeBench) -> None:
    bench = make_bench(prefix_cache=False)
    texts = {bench.ask("abcdef", max_tokens=9).text for _ in range(3)}
    assert len(texts) == 1
    assert bench.counters.prompt_tokens_reused == 0
    wait_until(lambda: len(bench.backend.released) == 3)
    assert all(slot.n_tokens == 0 for slot in bench.counters.slots)


def test_a_pinned_request_runs_in_its_slot_and_lets_others_pass(make_bench: MakeBench) -> None:
    bench = make_bench(n_slots=2)
    assert bench.ask("abc", max_tokens=2, cache_slot=1).started.slot == 1
    bench.backend.gate.clear()
    running, _ = bench.submit(bench.request("xyz", max_tokens=5, cache_slot=1))
    pinned, _ = bench.submit(bench.request("abc", max_tokens=2, cache_slot=1))
    free, _ = bench.submit(bench.request("abd", max_tokens=2))
    bench.backend.gate.set()
    order = [c.wait().started.slot for c in (running, pinned, free)]
    assert order == [1, 1, 0]


def test_more_than_the_slots_wait_in_order(make_bench: MakeBench) -> None:
    bench = make_bench(n_slots=1)
    started: list[str] = []
    collectors = []
    bench.backend.gate.clear()
    for letter in "abcd":
        collector = Collector()
        request = bench.request(letter, max_tokens=2)

        def sink(event: Any, letter: str = letter, collector: Collector = collector) -> None:
            if isinstance(event, Started):
                started.append(letter)
            collector(event)

        bench.engine.submit(bench.model.prepare(request), sink)
        collectors.append(collector)
    bench.backend.gate.set()
    for collector in collectors:
        collector.wait()
    assert started == list("abcd")


def test_a_short_request_is_not_held_up_by_a_long_prompt(make_bench: MakeBench) -> None:
    bench = make_bench(n_ctx=4096, chunk_rows=64, max_rows=128)
    bench.backend.row_s = 0.0002
    long, _ = bench.submit(bench.request("a" * 4000, max_tokens=1))
    long.wait_for(Started)
    short = bench.ask("b", max_tokens=3)
    assert not any(isinstance(e, Finished) for e in long.events)
    assert short.last.timings.prompt_s < 0.2
    assert long.wait().last.usage.n_prompt == 4001


# Cancels


def test_a_cancel_ends_a_running_answer_within_a_turn(make_bench: MakeBench) -> None:
    bench = make_bench(n_ctx=4096, script=repeat(5))
    collector, ticket = bench.submit(bench.request("a"))
    collector.wait_for(TextDelta, 3)
    ticket.cancel()
    n_events, n_passes = len(collector.events), len(bench.backend.batches)
    wait_until(lambda: not bench.counters.slots[collector.events[0].slot].busy)
    assert len(bench.backend.batches) <= n_passes + 1
    assert len(collector.events) == n_events
    assert bench.counters.requests_cancelled == 1
    ticket.cancel()
    assert bench.counters.recent[0].finish_reason == "cancelled"


def test_a_cancel_interrupts_a_prompt_between_chunks(make_bench: MakeBench) -> None:
    bench = make_bench(n_ctx=4096, chunk_rows=10)
    bench.backend.pass_s = 0.002
    collector, ticket = bench.submit(bench.request("a" * 4000))
    collector.wait_for(Started)
    ticket.cancel()
    wait_until(lambda: bench.counters.requests_cancelled == 1)
    assert len(bench.backend.batches) < 100
    held = bench.counters.slots[0].n_tokens
    assert 0 <= held < 1000
    again = bench.ask("a" * 60, max_tokens=1)
    assert again.last.usage.n_cached == min(held, 60)  # what ran is still good


def test_a_waiting_request_that_is_cancelled_never_starts(make_bench: MakeBench) -> None:
    bench = make_bench(n_slots=1, n_ctx=512)
    bench.backend.pass_s = 0.001
    running, ticket = bench.submit(bench.request("a", max_tokens=100))
    waiting, waiting_ticket = bench.submit(bench.request("b", max_tokens=1))
    last, _ = bench.submit(bench.request("c", max_tokens=1))
    running.wait_for(Started)
    waiting_ticket.cancel()
    ticket.cancel()
    last.wait()
    assert waiting.events == []
    assert (bench.counters.requests_cancelled, bench.counters.requests_admitted) == (2, 2)


def test_the_leader_of_choices_may_leave(make_bench: MakeBench) -> None:
    bench = make_bench(n_slots=3, n_ctx=512, chunk_rows=4)
    bench.backend.gate.clear()
    request = bench.request("abcdefgh" * 20, n=3, max_tokens=3)
    submitted = [bench.submit(request, choice) for choice in range(3)]
    submitted[0][0].wait_for(Started)
    submitted[0][1].cancel()
    bench.backend.gate.set()
    texts = [collector.wait().text for collector, _ in submitted[1:]]
    assert texts == [bench.submit(request, choice)[0].wait().text for choice in (1, 2)]


def test_a_sink_may_cancel_and_one_that_fails_ends_only_its_own(make_bench: MakeBench) -> None:
    bench = make_bench(n_ctx=512, n_slots=3, script=repeat(5))
    seen: list[Any] = []

    def cancelling(event: Any) -> None:
        seen.append(event)
        if isinstance(event, TextDelta):
            tickets[0].cancel()

    def failing(event: Any) -> None:
        raise ZeroDivisionError

    bench.backend.gate.clear()
    requests = [bench.request("abc"), bench.request("abd"), bench.request("abe", max_tokens=20)]
    good = Collector()
    tickets = [
        bench.engine.submit(bench.model.prepare(request), sink)
        for request, sink in zip(requests, (cancelling, failing, good), strict=True)
    ]
    bench.backend.gate.set()
    assert good.wait().text == "d" * 20
    wait_until(lambda: bench.counters.requests_cancelled == 2)
    assert sum(isinstance(e, TextDelta) for e in seen) == 1
    assert bench.engine.alive


# Failures and the end


def test_an_error_of_the_backend_fails_everybody_and_ends_the_engine(make_bench: MakeBench) -> None:
    bench = make_bench(n_slots=2)
    bench.backend.fails_at = 4
    collectors = [bench.submit(bench.request(letter, max_tokens=30))[0] for letter in "abc"]
    for collector in collectors:
        last = collector.wait().last
        assert isinstance(last, Failed) and isinstance(last.error, UnavailableError)
        assert "told to fail" not in str(last.error)
    wait_until(lambda: not bench.engine.alive)
    assert isinstance(bench.engine.failure, UnavailableError)
    assert (bench.counters.state, bench.counters.requests_failed) == ("FAILED", 3)
    assert bench.counters.failure == str(bench.engine.failure)
    with pytest.raises(UnavailableError):
        bench.submit(bench.request("a"))
    wait_until(lambda: bench.backend.is_closed)


def test_a_row_without_a_usable_logit_fails_its_sequence_only(make_bench: MakeBench) -> None:
    bench = make_bench(n_slots=2, script=repeat(5))
    forbidden = SamplingParams(logit_bias=dict.fromkeys(range(28), -float("inf")))
    reply = bench.ask("a", sampling=forbidden)
    assert isinstance(reply.last, Failed)
    assert bench.engine.alive
    assert bench.ask("a", max_tokens=3).text == "ddd"
    assert (bench.counters.requests_failed, bench.counters.requests_completed) == (1, 1)


def test_closing_lets_running_answers_end_within_the_drain(make_bench: MakeBench) -> None:
    bench = make_bench(n_slots=1, n_ctx=512)
    bench.backend.pass_s = 0.002
    running, _ = bench.submit(bench.request("a", max_tokens=20))
    waiting, _ = bench.submit(bench.request("b", max_tokens=20))
    running.wait_for(Started)
    bench.engine.close(10.0)
    assert isinstance(running.wait().last, Finished)
    assert isinstance(waiting.wait().last, Failed)
    assert not bench.engine.alive and bench.backend.is_closed
    with pytest.raises(UnavailableError):
        bench.submit(bench.request("a"))


def test_a_second_close_ends_at_once(make_bench: MakeBench) -> None:
    bench = make_bench(n_ctx=4096, script=repeat(5))
    bench.backend.pass_s = 0.002
    running, _ = bench.submit(bench.request("a"))
    running.wait_for(Started)
    first = threading.Thread(target=bench.engine.close, args=(60.0,))
    first.start()
    wait_until(lambda: not bench.engine.alive)
    bench.engine.close(0.0)
    first.join(5)
    assert not first.is_alive()
    assert isinstance(running.wait().last, Failed)


def test_an_idle_engine_uses_no_processor_time(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.ask("abc", max_tokens=3)
    wait_until(lambda: bench.counters.state == "IDLE")
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.01


# Counters


def test_counters_follow_their_rules(make_bench: MakeBench) -> None:
    bench = make_bench(n_slots=2, script=repeat(5))
    bench.ask("abc", max_tokens=4)
    bench.ask("abcd", max_tokens=2)
    bench.backend.gate.clear()
    live, _ = bench.submit(bench.request("x", max_tokens=2))
    live.wait_for(Started)
    (info,) = bench.counters.snapshot().live
    assert (info.phase, info.slot, info.n_prompt) == ("prefill", live.events[0].slot, 2)
    bench.backend.gate.set()
    live.wait()
    wait_until(lambda: not bench.counters.live)
    now = bench.counters.snapshot()
    assert (now.requests_admitted, now.requests_completed, now.requests_failed, now.requests_cancelled) == (3, 3, 0, 0)
    assert (now.prompt_tokens, now.prompt_tokens_reused, now.generated_tokens) == (4 + 5 + 2, 4 + 1, 8)
    assert now.prompt_tokens_computed == now.prompt_tokens - now.prompt_tokens_reused
    assert now.passes == len(bench.backend.batches)
    assert now.bytes_read == bench.backend.bytes_read
    assert now.prompt_s > 0 and now.decode_s > 0
    assert [info.finish_reason for info in now.recent] == ["length"] * 3
    assert now.recent[0].phase == "done"
