"""Every state at five sizes, against pictures kept as text in `pictures/`.

To accept a changed look, delete the picture's file and run the tests twice; then read what changed in the diff.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from textual.strip import Strip

from dashboard_moments import NOW_S, STATES
from dashboard_stage import Stage, screen_text
from phobos.tui.lines import KeptRows, LineView, segments_of
from phobos.tui.panels.status import StatusPanel

SIZES = ((60, 20), (80, 24), (100, 30), (120, 40), (200, 60))
PICTURES = Path(__file__).parent / "pictures"


def draw(stage: Stage) -> str:
    """The screen in that state at all sizes, one after another."""

    async def run() -> str:
        async with stage.app.run_test(size=SIZES[0]) as pilot:
            stage.write_log()
            stage.play()
            drawn = ""
            for width, height in SIZES:
                await pilot.resize_terminal(width, height)
                await pilot.pause()
                drawn += f"=== {width}x{height}\n{screen_text(stage.app)}"
            return drawn

    return asyncio.run(run())


@pytest.mark.parametrize("state", list(STATES))
def test_state_looks_as_kept(state: str, stage: Callable[..., Stage]) -> None:
    drawn = draw(stage(state))
    kept = PICTURES / f"{state}.txt"
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(drawn, encoding="utf-8")
        pytest.fail(f"there was no picture {kept.name}: one has been written, look at it and run again")
    assert drawn == kept.read_text(encoding="utf-8")


@pytest.mark.parametrize("state", ["loading-cold", "eight-requests", "no-card"])
def test_any_size_is_drawn_within_its_bounds(state: str, stage: Callable[..., Stage]) -> None:
    """Between the kept sizes nothing breaks: the right number of lines, none too wide, the state always named."""
    made = stage(state)

    async def run() -> None:
        async with made.app.run_test(size=(80, 24)) as pilot:
            made.play()
            for width, height in ((20, 6), (59, 19), (70, 29), (99, 36), (110, 45), (140, 34), (170, 50), (80, 24)):
                await pilot.resize_terminal(width, height)
                await pilot.pause()
                lines = screen_text(made.app).splitlines()
                assert len(lines) <= height
                assert max(len(line) for line in lines) <= width
                if width >= 59:
                    assert made.current.state in lines[-1]

    asyncio.run(run())


@pytest.mark.parametrize("env", [{}, {"NO_COLOR": "1"}])
def test_what_is_painted_line_by_line_looks_as_painted_at_once(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch, env: dict[str, str]
) -> None:
    """From one state to the next only rows that differ are made anew; painting all of it must change nothing."""
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    made = stage("eight-requests")

    async def run() -> None:
        async with made.app.run_test(size=(120, 40)) as pilot:
            made.write_log()
            made.play()
            await pilot.pause()
            shown = [cells(made)]
            for later, state in enumerate(("decode", "no-card", "prompt", "idle"), 1):
                made.current = replace(STATES[state](), taken_s=NOW_S + 0.2 * later)
                made.app.tick()
                await pilot.pause()
                shown.append(cells(made))
                for widget in made.app.screen.walk_children(KeptRows):
                    widget.refresh()
                await pilot.pause()
                assert cells(made) == shown[-1]
            assert all(before != after for before, after in pairwise(shown))

    asyncio.run(run())


@pytest.mark.parametrize("state", ["eight-requests", "failed", "loading-cold"])
def test_pieces_of_a_line_are_those_textual_makes(state: str, stage: Callable[..., Stage]) -> None:
    made = stage(state)

    async def run() -> None:
        async with made.app.run_test(size=(120, 40)) as pilot:
            made.write_log()
            made.play()
            await pilot.pause()
            views = [view for view in made.app.screen.walk_children(LineView) if view.region.area]
            drawn = [(line, view.visual_style) for view in views for line in view.draw_lines(*view.size)]
            assert len(drawn) > 9
            for line, style in drawn:
                expected = [segment for segment in line.render_segments(style) if segment.text]
                assert Strip(segments_of(line, style)).simplify() == Strip(expected).simplify()

    asyncio.run(run())


def test_a_row_that_has_not_changed_is_not_made_again(stage: Callable[..., Stage]) -> None:
    made = stage("decode")

    async def run() -> None:
        async with made.app.run_test(size=(120, 40)) as pilot:
            made.play()
            await pilot.pause()
            screen_text(made.app)
            panel = made.app.screen.query_one(StatusPanel)
            before = {widget: widget.render_lines(widget.outer_size.region) for widget in _panels(made)}
            kept = {widget: list(rows) for widget, rows in before.items()}
            made.current = replace(made.current, generated_tokens=made.current.generated_tokens + 1)
            panel.moment = replace(made.app.moment, snapshot=made.current)
            await pilot.pause()
            for widget, rows in kept.items():
                now = widget.render_lines(widget.outer_size.region)
                same = [new is old for new, old in zip(now, rows, strict=True)]
                assert same == ([False] if widget is panel else [True] * len(rows))

    asyncio.run(run())


def cells(made: Stage) -> list[Strip]:
    """The screen with its styles, whatever pieces it is made of."""
    return [strip.simplify() for strip in made.app.screen._compositor.render_strips()]


def _panels(made: Stage) -> list[KeptRows]:
    return [widget for widget in made.app.screen.walk_children(KeptRows) if widget.region.area]
