"""One request's timings, over the dashboard."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import ModalScreen

from phobos.counters import RequestInfo
from phobos.tui.format import UNKNOWN, rate_text, seconds_text, share_text, whole_text
from phobos.tui.lines import Lines
from phobos.tui.panels.panel import Panel, pair
from phobos.tui.panels.requests import all_requests
from phobos.tui.plot import stacked
from phobos.tui.rates import Moment, request_decode_rate, request_first_token_s, request_prompt_rate
from phobos.tui.screens.live import LiveScreen
from phobos.tui.theme import Palette


class TimingsPanel(Panel):
    """Facts of one request and a bar of where its time went."""

    TITLE = "REQUEST"

    def __init__(self, request_id: str) -> None:
        super().__init__()
        self.request_id = request_id
        self._last: RequestInfo | None = None

    def draw(self, moment: Moment, width: int, height: int, palette: Palette) -> Lines:
        found = (r for r in all_requests(moment.snapshot) if r.request_id == self.request_id)
        self._last = next(found, self._last)  # it may have left the list while it is looked at
        if self._last is None:
            return [Content.styled("this request is no longer listed", palette.dim)]
        return request_lines(self._last, moment.snapshot.taken_s, width, palette)


class RequestScreen(LiveScreen, ModalScreen[None]):
    """Escape, Enter or `q` go back."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q", "app.pop_screen", "Back")]

    def __init__(self, request_id: str) -> None:
        super().__init__()
        self.request_id = request_id

    def compose(self) -> ComposeResult:
        yield self.bound(TimingsPanel(self.request_id))


def request_lines(request: RequestInfo, now_s: float, width: int, palette: Palette) -> Lines:
    """The facts, one a line; what has not happened yet has a dash."""
    end_s = now_s if request.finished_s is None else request.finished_s
    waited = (end_s if request.started_s is None else request.started_s) - request.submitted_s
    prompt = decode = 0.0
    if request.started_s is not None:
        prompt = (end_s if request.first_token_s is None else request.first_token_s) - request.started_s
    if request.first_token_s is not None:
        decode = end_s - request.first_token_s
    whole = waited + prompt + decode
    spans = [("waited", waited, palette.warn), ("prompt", prompt, palette.prompt), ("decode", decode, palette.decode)]
    computed = request.n_prompt - request.n_cached
    drafts = f"{whole_text(request.n_draft_accepted)} of {whole_text(request.n_draft)}" if request.n_draft else UNKNOWN
    facts = [
        ("phase", request.finish_reason or request.phase),
        *([("asked by", request.asker)] if request.asker else []),
        ("slot", UNKNOWN if request.slot is None else str(request.slot)),
        ("prompt", f"{whole_text(request.n_prompt)} tokens"),
        ("  reused", f"{whole_text(request.n_cached)} ({share_text(_share(request.n_cached, request.n_prompt))})"),
        ("  computed", f"{whole_text(min(computed, max(0, request.n_prompt_done - request.n_cached)))}"),
        ("  rate", f"{rate_text(request_prompt_rate(request, now_s))} tok/s"),
        ("first token after", seconds_text(request_first_token_s(request))),
        ("generated", f"{whole_text(request.n_generated)} tokens"),
        ("  rate", f"{rate_text(request_decode_rate(request, now_s))} tok/s"),
        *([("draft tokens accepted", drafts)] if request.n_draft else []),
        ("total", seconds_text(whole)),
    ]
    legend = Content("   ").join(
        Content.assemble(("▆ ", colour), (f"{name} ", palette.dim), (seconds_text(span), palette.text))
        for name, span, colour in spans
    )
    bar = stacked([(_share(span, whole) or 0.0, colour) for _, span, colour in spans], width, palette.faint)
    title = Content.styled(request.request_id, f"bold {palette.text}")
    return [title, Content(), bar, legend, Content(), *(pair(name, value, width, palette) for name, value in facts)]


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
