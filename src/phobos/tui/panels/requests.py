"""REQUESTS: those running and waiting, then the recent ones, newest first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message

from phobos.counters import RequestInfo, Snapshot
from phobos.tui.format import rate_text, seconds_text, share_text, whole_text
from phobos.tui.lines import Lines
from phobos.tui.panels.scrolling import ScrollingPanel
from phobos.tui.plot import METER_STEPS, meter
from phobos.tui.rates import Moment, request_decode_rate, request_first_token_s, request_prompt_rate
from phobos.tui.theme import Palette

_STATE_WIDTH = 16


@dataclass(frozen=True)
class Column:
    """A column of facts: its heading, its width, and its text for a request at a time."""

    heading: str
    width: int
    text: Callable[[RequestInfo, float], str]


# In order of interest: as many as fit are shown.
COLUMNS = (
    Column("prompt", 8, lambda r, _: whole_text(r.n_prompt)),
    Column("out", 7, lambda r, _: whole_text(r.n_generated)),
    Column("tok/s", 7, lambda r, now: rate_text(request_decode_rate(r, now))),
    Column("first", 8, lambda r, _: seconds_text(request_first_token_s(r))),
    Column("reused", 7, lambda r, _: share_text(r.n_cached / r.n_prompt if r.n_prompt and r.started_s else None)),
    Column("prompt/s", 9, lambda r, now: rate_text(request_prompt_rate(r, now))),
    Column("time", 8, lambda r, now: seconds_text((now if r.finished_s is None else r.finished_s) - r.submitted_s)),
    Column("slot", 5, lambda r, _: "–" if r.slot is None else str(r.slot)),
)


class RequestsPanel(ScrollingPanel):
    """A table with a cursor; Enter or a second click on a row asks the screen for its timings."""

    TITLE = "REQUESTS"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "choose", "Timings", show=False)]

    class Chosen(Message):
        """The user asks for one request's timings."""

        def __init__(self, request_id: str) -> None:
            super().__init__()
            self.request_id = request_id

    def __init__(self) -> None:
        super().__init__()
        self.chosen_id: str | None = None
        self._shown: tuple[RequestInfo, ...] = ()

    def draw(self, moment: Moment, width: int, height: int, palette: Palette) -> Lines:
        snapshot = moment.snapshot
        self._shown = all_requests(snapshot)
        if not self._shown:
            self.n_rows = 0
            address = f" at {snapshot.address}" if snapshot.address else ""
            return [Content.styled(f"no requests yet{address}", palette.dim)]
        inner = width - 2 if len(self._shown) > height - 1 else width
        id_width, shown = fit_columns(inner)
        rows = self.window(len(self._shown), height - 1)
        cursor = self._cursor()
        lines = [
            _row(self._shown[i], snapshot.taken_s, id_width, shown, palette, marked=self.has_focus and i == cursor)
            for i in rows
        ]
        return [_heading(id_width, shown, palette), *self.with_bar(lines, width, palette)]

    def action_move(self, n_rows: int) -> None:
        """Move the cursor and keep it in view."""
        if not self._shown:
            return
        at = max(0, min(self._cursor() + n_rows, len(self._shown) - 1))
        self.chosen_id = self._shown[at].request_id
        if at < self.first:
            self.first = at
        elif at >= self.first + self.n_visible:
            self.first = at - self.n_visible + 1
        self.redraw()

    def action_choose(self) -> None:
        if self._shown:
            self.post_message(self.Chosen(self._shown[self._cursor()].request_id))

    def on_click(self, event: events.Click) -> None:
        place = event.get_content_offset(self)
        at = self.first + place.y - 1 if place is not None and place.y >= 1 else -1
        if not 0 <= at < len(self._shown):
            return
        request_id = self._shown[at].request_id
        if request_id == self.chosen_id:
            self.action_choose()
        self.chosen_id = request_id
        self.redraw()

    def on_focus(self) -> None:
        self.redraw()

    def on_blur(self) -> None:
        self.redraw()

    def _cursor(self) -> int:
        """The row of the chosen request; the first one when it has left the list."""
        return next((i for i, request in enumerate(self._shown) if request.request_id == self.chosen_id), 0)


def all_requests(snapshot: Snapshot) -> tuple[RequestInfo, ...]:
    """Live requests, running ones first, then the recent; one that is just passing over is listed once."""
    order = {"decode": 0, "prefill": 1, "queued": 2}
    live = sorted(snapshot.live, key=lambda r: (order.get(r.phase, 3), r.submitted_s))
    ids = {request.request_id for request in snapshot.recent}
    return (*(request for request in live if request.request_id not in ids), *snapshot.recent)


def fit_columns(width: int) -> tuple[int, tuple[Column, ...]]:
    """The width of the name and the columns that fit beside it and the state."""
    room = width - 2 - _STATE_WIDTH - 1 - 10
    shown: list[Column] = []
    for column in COLUMNS:
        if room < column.width:
            break
        shown.append(column)
        room -= column.width
    return 10 + max(0, min(room, 28)), tuple(shown)


def _heading(id_width: int, shown: tuple[Column, ...], palette: Palette) -> Content:
    text = f"  {'request':<{id_width}} {'state':<{_STATE_WIDTH}}" + "".join(f"{c.heading:>{c.width}}" for c in shown)
    return Content.styled(text, palette.dim)


def _row(
    request: RequestInfo,
    now_s: float,
    id_width: int,
    shown: tuple[Column, ...],
    palette: Palette,
    *,
    marked: bool,
) -> Content:
    live = request.phase != "done"
    colour = palette.text if live else palette.dim
    name = f"{request.asker} {request.request_id}" if request.asker else request.request_id
    if len(name) > id_width and request.asker:
        name = f"{request.asker[: id_width // 2]} " + request.request_id
        name = name[: id_width // 2 + 1] + "…" + name[id_width // 2 + 2 - id_width :]
    if len(name) > id_width:
        name = "…" + name[1 - id_width :]  # the end is what tells requests apart
    facts = "".join(f"{column.text(request, now_s):>{column.width}}" for column in shown)
    line = Content.assemble(
        ("● " if live else "  ", phase_colour(request, palette)),
        (f"{name:<{id_width}} ", colour),
        _state(request, palette),
        (facts, colour),
    )
    if not marked:
        return line
    return line.stylize("reverse" if palette.sixteen else f"on {palette.faint}")


def _state(request: RequestInfo, palette: Palette) -> Content:
    """Waiting, the prompt's progress, decoding, or why it ended; `_STATE_WIDTH` cells."""
    colour = phase_colour(request, palette)
    if request.phase == "prefill" and request.n_prompt:
        share = request.n_prompt_done / request.n_prompt
        bar = meter(share, _STATE_WIDTH - 6, palette.ramp(colour, METER_STEPS), palette.faint)
        return Content.assemble(bar, (f"{share_text(share):>5} ", colour))
    words = {"queued": "waiting", "prefill": "prompt", "decode": "decode"}
    word = words.get(request.phase, request.finish_reason or "done")
    return Content.styled(f"{word[:_STATE_WIDTH]:<{_STATE_WIDTH}}", colour)


def phase_colour(request: RequestInfo, palette: Palette) -> str:
    """The colour of a request's phase or end."""
    if request.phase == "done":
        ended_well = request.finish_reason in ("stop", "length", "tool_calls")
        return palette.good if ended_well else palette.warn if request.finish_reason == "cancelled" else palette.error
    return {"prefill": palette.prompt, "decode": palette.decode}.get(request.phase, palette.warn)
