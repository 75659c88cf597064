"""Every key, the mouse, the palette and the screens they lead to, by Textual's pilot."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from textual.pilot import Pilot

from dashboard_moments import NOW_S, decode, idle, loading_cold, request
from dashboard_stage import Stage, screen_text
from phobos.counters import Snapshot
from phobos.tui.app import SNAPSHOT_INTERVAL_S
from phobos.tui.panels.log import LogPanel
from phobos.tui.panels.requests import RequestsPanel
from phobos.tui.screens.dashboard import DashboardScreen
from phobos.tui.screens.help import HelpScreen
from phobos.tui.screens.loading import LoadingScreen
from phobos.tui.screens.opening import LENGTH_S, OpeningScreen, SkyView
from phobos.tui.screens.request import RequestScreen
from phobos.tui.theme import NIGHT, NOON, THEMES

OTHER_THEMES = ("nord", "textual-light", "ansi-dark")
MakeStage = Callable[..., Stage]
Act = Callable[[Stage, Pilot[None]], Awaitable[None]]


def play(made: Stage, act: Act, size: tuple[int, int] = (100, 40)) -> None:
    """Run the app, let it take in its history, then act."""

    async def run() -> None:
        async with made.app.run_test(size=size) as pilot:
            made.write_log(40)
            made.play()
            await pilot.pause()
            await act(made, pilot)

    asyncio.run(run())


async def until(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    """Wait for what another thread brings about."""
    for _ in range(200):
        if condition():
            return
        await pilot.pause(0.02)
    pytest.fail("it did not happen within four seconds")


@pytest.mark.parametrize(
    ("state", "keys"),
    [("idle", ["q"]), ("idle", ["escape"]), ("failed", ["q"])]
    + [("decode", keys) for keys in (["ctrl+c"], ["q", "q"], ["q", "enter"], ["q", "escape", "q", "y"])],
)
def test_quit_keys_stop_the_server_once_and_leave(state: str, keys: list[str], stage: MakeStage) -> None:
    async def act(made: Stage, pilot: Pilot[None]) -> None:
        await pilot.press(*keys)
        await until(pilot, lambda: not made.app.is_running)
        assert made.n_quits == 1
        assert made.app.crash is None

    play(stage(state), act)


@pytest.mark.parametrize("keys", [["escape"], ["escape", "escape"], ["q", "escape"], ["q", "n"]])
def test_a_busy_server_is_not_stopped_by_one_key(keys: list[str], stage: MakeStage) -> None:
    async def act(made: Stage, pilot: Pilot[None]) -> None:
        await pilot.press(*keys)
        await pilot.pause()
        assert made.app.is_running and made.n_quits == 0 and not made.app.quit_called
        assert isinstance(made.app.screen, DashboardScreen)

    play(stage("decode"), act)


def test_q_says_what_it_would_cut_short(stage: MakeStage) -> None:
    async def act(made: Stage, pilot: Pilot[None]) -> None:
        await pilot.press("q")
        await pilot.pause()
        shown = screen_text(made.app)
        assert "A request is running. Stop the server?" in shown and "Esc  keep running" in shown

    play(stage("decode"), act)


def test_stopping_is_shown_at_once_while_the_server_drains(stage: MakeStage) -> None:
    made = stage("decode")

    async def act(_: Stage, pilot: Pilot[None]) -> None:
        drained = threading.Event()
        made.app._stop = lambda: drained.wait(10) and None  # the server takes its time; no snapshot is taken meanwhile
        await pilot.press("ctrl+c")
        await pilot.pause()
        assert "STOPPING" in screen_text(made.app)
        drained.set()
        await until(pilot, lambda: not made.app.is_running)

    play(made, act)


def test_c_clears_the_log_and_new_lines_appear(stage: MakeStage) -> None:
    async def act(made: Stage, pilot: Pilot[None]) -> None:
        assert "mapped #39" in screen_text(made.app)
        await pilot.press("c")
        assert "mapped #39" not in screen_text(made.app)
        made.log.add("a new line")
        made.app.tick()
        await pilot.pause()
        shown = screen_text(made.app)
        assert "a new line" in shown
        assert "#38" not in shown

    play(stage("decode"), act)


def test_r_resets_the_peaks(stage: MakeStage) -> None:
    async def act(made: Stage, pilot: Pilot[None]) -> None:
        assert made.app.moment is not None
        assert made.app.moment.decode.peak is not None
        for _ in range(3):  # nothing runs any more, so nothing is measured
            made.current = replace(made.current, taken_s=made.current.taken_s + 5, live=(), state="IDLE")
            made.app.tick()
        await pilot.press("r")
        made.app.tick()
        assert made.app.moment.decode.peak is None

    play(stage("decode"), act)


def test_p_replays_the_opening_and_any_key_skips_it(stage: MakeStage) -> None:
    async def act(made: Stage, pilot: Pilot[None]) -> None:
        await pilot.press("p")
        assert isinstance(made.app.screen, OpeningScreen)
        await pilot.press("escape")
        assert isinstance(made.app.screen, DashboardScreen)
        assert made.n_quits == 0

    play(stage("decode"), act)


def test_opening_plays_at_the_start_and_ends_by_itself(stage: MakeStage) -> None:
    made = stage("loading-cold", animate=True)

    async def act(_: Stage, pilot: Pilot[None]) -> None:
        opening = made.app.screen
        assert isinstance(opening, OpeningScreen)
        await until(pilot, lambda: opening._began_s is not None)
        made.now_s += LENGTH_S * 0.6
        await until(pilot, lambda: opening.query_one(SkyView).along > 0.5)
        assert "⣿" in screen_text(made.app)
        made.now_s += LENGTH_S
        await until(pilot, lambda: isinstance(made.app.screen, LoadingScreen))

    play(made, act)


@pytest.mark.parametrize(("animate", "size"), [(False, (100, 30)), (True, (50, 20)), (True, (100, 14))])
def test_opening_is_left_out_when_unwanted_or_too_large(animate: bool, size: tuple[int, int], stage: MakeStage) -> None:
    async def act(made: Stage, pilot: Pilot[None]) -> None:
        assert isinstance(made.app.screen, LoadingScreen)
        await pilot.press("p")
        assert isinstance(made.app.screen, OpeningScreen) == (size == (100, 30))

    play(stage("loading-cold", animate=animate), act, size)


def test_help_opens_and_closes_without_quitting(stage: MakeStage) -> None:
    async def act(made: Stage, pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        assert isinstance(made.app.screen, HelpScreen)
        assert "reset the peak readings" in screen_text(made.app)
        await pilot.press("escape")
        assert isinstance(made.app.screen, DashboardScreen)
        assert made.n_quits == 0

    play(stage("idle"), act)


def test_arrows_move_through_requests_and_enter_shows_timings(stage: MakeStage) -> None:
    async def act(made: Stage, pilot: Pilot[None]) -> None:
        panel = made.app.screen.query_one(RequestsPanel)
        await pilot.press("down", "down")
        assert panel.chosen_id == made.current.recent[1].request_id  # after the one that is live
        await pilot.press("enter")
        assert isinstance(made.app.screen, RequestScreen)
        shown = screen_text(made.app)
        assert made.current.recent[1].request_id in shown
        assert "first token after" in shown
        assert "4.90 s" in shown
        await pilot.press("q")
        assert isinstance(made.app.screen, DashboardScreen)
        assert made.n_quits == 0

    play(stage("decode"), act)


def test_timings_follow_a_live_request_and_outlast_its_leaving(stage: MakeStage) -> None:
    async def act(made: Stage, pilot: Pilot[None]) -> None:
        await pilot.press("enter")
        made.current = replace(made.current, live=(request(2, "decode", n_generated=99),))
        made.app.tick()
        await pilot.pause()
        assert "99 tokens" in screen_text(made.app)
        made.current = idle()
        made.app.tick()
        await pilot.pause()
        assert "99 tokens" in screen_text(made.app)

    play(stage("decode"), act)


def test_keys_scroll_many_requests_and_the_cursor_keeps_its_request(stage: MakeStage) -> None:
    made = stage("eight-requests")

    async def act(_: Stage, pilot: Pilot[None]) -> None:
        panel = made.app.screen.query_one(RequestsPanel)
        await pilot.press("end")
        last = made.current.recent[-1].request_id
        assert panel.chosen_id == last
        assert last[-9:] in screen_text(made.app)
        await pilot.press("pageup", "up", "home")
        assert panel.first == 0
        await pilot.press("down")
        chosen = panel.chosen_id
        made.current = replace(made.current, live=(request(9, "decode"), *made.current.live))
        made.app.tick()
        assert panel.chosen_id == chosen

    play(made, act, (80, 24))


def test_tab_reaches_the_log_which_follows_only_at_its_end(stage: MakeStage) -> None:
    async def act(made: Stage, pilot: Pilot[None]) -> None:
        await pilot.press("tab")
        log = made.app.screen.query_one(LogPanel)
        assert made.app.screen.focused is log
        await pilot.press("up", "up")
        top = log.first
        made.log.add("while scrolled up")
        made.app.tick()
        await pilot.pause()
        assert log.first == top
        assert "while scrolled up" not in screen_text(made.app)
        await pilot.press("end")
        assert "while scrolled up" in screen_text(made.app)
        made.log.add("at the end again")
        made.app.tick()
        await pilot.pause()
        assert "at the end again" in screen_text(made.app)

    play(stage("decode"), act)


def test_mouse_scrolls_the_log_and_two_clicks_open_a_request(stage: MakeStage) -> None:
    async def act(made: Stage, pilot: Pilot[None]) -> None:
        log = made.app.screen.query_one(LogPanel)
        end = log.first
        await pilot._post_mouse_events([_scroll_up()], LogPanel, offset=(5, 2))
        assert log.first == end - 3
        await pilot.click(RequestsPanel, offset=(5, 3))
        assert made.app.screen.query_one(RequestsPanel).chosen_id == made.current.recent[0].request_id
        await pilot.click(RequestsPanel, offset=(5, 3))
        await pilot.pause()
        assert isinstance(made.app.screen, RequestScreen)

    play(stage("decode"), act)


def _scroll_up() -> type:
    from textual.events import MouseScrollUp

    return MouseScrollUp


def test_t_changes_light_and_dark(stage: MakeStage) -> None:
    async def act(made: Stage, pilot: Pilot[None]) -> None:
        assert made.app.theme == NIGHT
        await pilot.press("t")
        assert made.app.theme == NOON
        await pilot.press("t")
        assert made.app.theme == NIGHT

    play(stage("decode"), act)


def test_palette_offers_the_keys_by_name(stage: MakeStage) -> None:
    async def act(made: Stage, pilot: Pilot[None]) -> None:
        await pilot.press("ctrl+p")
        await pilot.press(*"clear the log")
        await until(pilot, lambda: "Clear the log" in screen_text(made.app))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(made.app.screen, DashboardScreen))
        await until(pilot, lambda: not made.app.screen.query_one(LogPanel).lines)

    play(stage("decode"), act)


def test_themes_of_the_palette_draw_every_panel(stage: MakeStage) -> None:
    async def act(made: Stage, pilot: Pilot[None]) -> None:
        ours = [theme.name for theme in THEMES]
        assert {*ours, *OTHER_THEMES} <= set(made.app.available_themes)
        for name in (*ours, *OTHER_THEMES):
            made.app.theme = name
            await pilot.pause()
            assert "THROUGHPUT" in screen_text(made.app)

    play(stage("decode"), act)


def test_loading_gives_way_to_the_dashboard_with_its_log(stage: MakeStage) -> None:
    made = stage("loading-cold")

    async def act(_: Stage, pilot: Pilot[None]) -> None:
        assert isinstance(made.app.screen, LoadingScreen)
        made.current = idle()
        made.app.tick()
        await pilot.pause()
        assert isinstance(made.app.screen, DashboardScreen)
        assert "mapped #39" in screen_text(made.app)

    play(made, act)


def test_loading_gives_way_only_after_the_opening(stage: MakeStage) -> None:
    made = stage("loading-cold", animate=True)

    async def act(_: Stage, pilot: Pilot[None]) -> None:
        made.current = decode()
        made.app.tick()
        await pilot.pause()
        assert isinstance(made.app.screen, OpeningScreen)
        await pilot.press("space")
        made.app.tick()
        await pilot.pause()
        assert isinstance(made.app.screen, DashboardScreen)

    play(made, act)


def test_progress_moves_the_bar_and_the_moon(stage: MakeStage) -> None:
    made = stage("loading-cold")

    async def act(_: Stage, pilot: Pilot[None]) -> None:
        sky = made.app.screen.query_one(SkyView)
        before = sky.along
        made.current = replace(loading_cold(), load=replace(loading_cold().load, fraction=0.9))
        made.app.tick()
        await pilot.pause()
        assert sky.along > before
        assert "90%" in screen_text(made.app)

    play(made, act)


def test_snapshots_come_at_most_five_times_a_second_and_no_later_than_every_two_seconds(stage: MakeStage) -> None:
    made = stage("idle")
    taken: list[float] = []

    def take() -> Snapshot:
        taken.append(made.now_s)
        return replace(made.current, taken_s=NOW_S + made.now_s)

    async def act(_: Stage, pilot: Pilot[None]) -> None:
        made.app._snapshot_now = take
        made.app._used_s -= 60.0  # as if drawing had taken a minute of processor time: far over the budget
        for _ in range(100):
            made.now_s += SNAPSHOT_INTERVAL_S
            made.app._tick_in_budget()
            made.app._used_s -= 60.0
        slow_gaps = [later - earlier for earlier, later in pairwise(taken)]
        assert len(slow_gaps) >= 7
        assert all(2.0 <= gap < 2.0 + 1.5 * SNAPSHOT_INTERVAL_S for gap in slow_gaps)
        taken.clear()
        for _ in range(100):  # and where drawing costs nothing
            made.now_s += SNAPSHOT_INTERVAL_S
            made.app._used_s = time.thread_time()
            made.app._tick_in_budget()
        gaps = [later - earlier for earlier, later in pairwise(taken[10:])]
        assert min(gaps) >= SNAPSHOT_INTERVAL_S - 1e-9
        assert gaps.count(pytest.approx(SNAPSHOT_INTERVAL_S)) > 60

    play(made, act)


def test_prints_become_log_lines(stage: MakeStage) -> None:
    async def act(made: Stage, pilot: Pilot[None]) -> None:
        print("printed \x1b[2J by a library")
        await until(pilot, lambda: bool(made.log.last(1)) and "printed" in made.log.last(1)[0].text)
        assert "\x1b" not in made.log.last(1)[0].text

    play(stage("decode"), act)


def test_a_panel_that_breaks_ends_the_app_with_its_error(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    made = stage("decode")

    def broken(*_: object) -> None:
        raise ZeroDivisionError("made to fail")

    async def act(_: Stage, pilot: Pilot[None]) -> None:
        monkeypatch.setattr(RequestsPanel, "draw", broken)
        made.current = replace(made.current, taken_s=NOW_S + 1)
        made.app.tick()
        await pilot.pause()

    with pytest.raises(ZeroDivisionError):
        play(made, act)
    assert isinstance(made.app.crash, ZeroDivisionError)
