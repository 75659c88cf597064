"""Rates, peaks and history from made-up snapshots."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard_moments import MACHINE, idle, request
from phobos.counters import Snapshot
from phobos.tui.rates import (
    HISTORY_POINTS,
    RateMeter,
    request_decode_rate,
    request_first_token_s,
    request_prompt_rate,
)


def at(seconds: float, **changes: object) -> Snapshot:
    """An idle server's snapshot `seconds` after the first."""
    return replace(idle(), taken_s=seconds, **changes)  # type: ignore[arg-type]


def test_nothing_measured_is_unknown_not_zero() -> None:
    moment = RateMeter().observe(at(0, machine=None, bytes_read=None))
    assert moment.prompt.value is None
    assert moment.decode.peak is None
    assert moment.load is None
    assert moment.bandwidth_gbs is None
    assert moment.hit_rate is None


def test_rate_is_tokens_over_engine_time_not_wall_time() -> None:
    meter = RateMeter()
    meter.observe(at(0))
    moment = meter.observe(at(0.2, decode_tokens=8, decode_s=0.1))
    assert moment.decode.value == pytest.approx(80)
    assert moment.decode.active
    assert not moment.prompt.active


def test_rate_of_a_long_pass_appears_when_it_ends_and_stays_meanwhile() -> None:
    meter = RateMeter()
    live = (request(1, "prefill"),)
    for i in range(20):
        moment = meter.observe(at(0.2 * i, live=live))
        assert moment.prompt.value is None
        assert moment.prompt.active
    moment = meter.observe(at(4.0, live=live, prompt_tokens_computed=512, prompt_s=4.0))
    assert moment.prompt.value == pytest.approx(128)
    moment = meter.observe(at(8.0, live=live, prompt_tokens_computed=512, prompt_s=4.0))
    assert moment.prompt.value == pytest.approx(128)
    assert moment.prompt.active


def test_peak_is_the_highest_and_can_be_reset() -> None:
    meter = RateMeter()
    counts = ((0, 0.0), (100, 1.0), (120, 2.0), (130, 3.0))
    for i, (tokens, seconds) in enumerate(counts):
        moment = meter.observe(at(2.0 * i, decode_tokens=tokens, decode_s=seconds))
    assert moment.decode.peak == pytest.approx(100)
    meter.reset_peaks()
    moment = meter.observe(at(8.0, decode_tokens=145, decode_s=4.0))
    assert moment.decode.peak == pytest.approx(15)


def test_history_keeps_pace_with_time_through_a_stall_and_keeps_bursts() -> None:
    meter = RateMeter()
    meter.observe(at(0.0))
    meter.observe(at(0.1, decode_tokens=10, decode_s=0.1))
    moment = meter.observe(at(10.0, decode_tokens=10, decode_s=0.1))
    assert len(moment.decode.history) == 21
    assert moment.decode.history[0] == 0.0
    assert moment.decode.history[1] == pytest.approx(100)
    assert set(moment.decode.history[2:]) == {0.0}
    moment = meter.observe(at(1e6, decode_tokens=10, decode_s=0.1))
    assert len(moment.decode.history) == HISTORY_POINTS


def test_load_and_bandwidth_are_over_the_last_second() -> None:
    meter = RateMeter()
    for i in range(11):
        busy = 0.2 * i if i > 5 else 0.2 * min(i, 5)
        machine = replace(MACHINE, cpu_s=2 * busy, n_cpus=2)
        moment = meter.observe(at(0.2 * i, machine=machine, bytes_read=int(4e9 * 0.2 * i)))
    assert moment.load == pytest.approx(1.0)
    assert moment.bandwidth_gbs == pytest.approx(4.0)


def test_hit_rate_is_of_all_prompt_tokens() -> None:
    moment = RateMeter().observe(at(0, prompt_tokens=200, prompt_tokens_reused=150))
    assert moment.hit_rate == pytest.approx(0.75)


@given(
    st.lists(
        st.tuples(st.floats(0, 30), st.integers(0, 5000), st.floats(0, 30), st.integers(0, 500), st.floats(0, 30)),
        max_size=30,
    )
)
def test_any_course_gives_sane_rates(steps: list[tuple[float, int, float, int, float]]) -> None:
    """Whatever the counters do between two snapshots, rates are finite and never below zero."""
    meter, now = RateMeter(), at(0.0)
    for elapsed, prompt, prompt_s, generated, decode_s in steps:
        now = replace(
            now,
            taken_s=now.taken_s + elapsed,
            prompt_tokens_computed=now.prompt_tokens_computed + prompt,
            prompt_s=now.prompt_s + prompt_s,
            decode_tokens=now.decode_tokens + generated,
            decode_s=now.decode_s + decode_s,
        )
        moment = meter.observe(now)
        for rate in (moment.prompt, moment.decode):
            assert rate.value is None or 0 <= rate.value < 1e9
            assert rate.peak is None or rate.value is None or rate.peak >= rate.value
            assert len(rate.history) <= HISTORY_POINTS


def test_request_rates_are_unknown_before_they_can_be_measured() -> None:
    waiting = request(3, "queued")
    assert request_prompt_rate(waiting, 10_000.0) is None
    assert request_decode_rate(waiting, 10_000.0) is None
    assert request_first_token_s(waiting) is None
    one_token = request(3, "decode", n_generated=1)
    assert request_decode_rate(one_token, 10_000.0) is None


def test_request_rates_of_a_finished_request_do_not_depend_on_now() -> None:
    done = request(10, "done", n_generated=201)
    for now in (10_000.0, 20_000.0):
        assert request_decode_rate(done, now) == pytest.approx(200 / 4.0)
        assert request_prompt_rate(done, now) == pytest.approx(800 / 0.85)
    assert request_first_token_s(done) == pytest.approx(0.9)
