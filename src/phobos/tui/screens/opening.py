"""The opening: Phobos comes round from behind Mars, and the name appears as it passes. Any key skips it."""

from __future__ import annotations

from collections.abc import Callable

from textual import events
from textual.app import ComposeResult
from textual.content import Content
from textual.screen import Screen
from textual.timer import Timer

from phobos.tui.bigtext import big
from phobos.tui.lines import Lines, LineView
from phobos.tui.planet import SPACE, Sky
from phobos.tui.theme import Palette, palette_of

LENGTH_S = 2.5
_FRAMES_PER_S = 15
#: The smallest terminal the picture fits.
MIN_WIDTH, MIN_HEIGHT = 60, 18
_NAME = "PHOBOS"
_LINE = "a language model on your own machine"


class SkyView(LineView):
    """The picture; `along` (0..1) is how far the moon has come, `lettered` how much of the name is there."""

    def __init__(self) -> None:
        super().__init__(id="sky")
        self.along = 0.0
        self.lettered = 0.0
        self._sky: Sky | None = None

    def show(self, along: float, lettered: float = 0.0) -> None:
        """Draw another moment of the passage."""
        if (along, lettered) != (self.along, self.lettered):
            self.along, self.lettered = along, lettered
            self.redraw()

    def draw_lines(self, width: int, height: int) -> Lines:
        if self._sky is None or (self._sky.width, self._sky.height) != (width, height):
            self._sky = Sky(width, height)
        palette = palette_of(self.app.current_theme)
        rows = self._sky.frame(self.along, palette)
        return _with_name(rows, self.lettered, palette)


def _with_name(rows: list[Content], lettered: float, palette: Palette) -> list[Content]:
    """The name over the sky, its letters appearing from the left."""
    name = big(_NAME[: round(lettered * len(_NAME))], spacing=2)
    top = max(1, len(rows) // 6)
    ground = "" if palette.sixteen else f" on {SPACE}"
    for i, text in enumerate(name):
        rows[top + i] = _over(rows[top + i], 4, text, f"bold {_ink(palette, '#ffd9bd')}{ground}")
    if lettered >= 1.0 and len(rows) > top + 5:
        rows[top + 4] = _over(rows[top + 4], 4, _LINE, f"{_ink(palette, '#b89a88')}{ground}")
    return rows


def _ink(palette: Palette, colour: str) -> str:
    return "ansi_default" if palette.sixteen else colour


def _over(row: Content, x: int, text: str, style: str) -> Content:
    """`row` with `text` written from column `x` on, as far as it is wide."""
    text = text[: max(0, len(row.plain) - x)]
    return Content.assemble(row[:x], (text, style), row[x + len(text) :]) if text else row


class OpeningScreen(Screen[None]):
    """`on_done` is called once, at the end or when a key or a click skips the rest; `clock` gives seconds."""

    def __init__(self, on_done: Callable[[], None], clock: Callable[[], float]) -> None:
        super().__init__()
        self._on_done = on_done
        self._clock = clock
        self._began_s: float | None = None
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        yield SkyView()

    def on_mount(self) -> None:
        self._timer = self.set_interval(1 / _FRAMES_PER_S, self._advance)

    def on_key(self, event: events.Key) -> None:
        """Skip, also by the keys that quit elsewhere; only Ctrl-C is not stopped here."""
        event.stop()
        event.prevent_default()
        self._finish()

    def on_click(self) -> None:
        self._finish()

    def _advance(self) -> None:
        """Show what the clock says; frames that came too late are left out."""
        now_s = self._clock()
        if self._began_s is None:
            self._began_s = now_s
        share = (now_s - self._began_s) / LENGTH_S
        if share >= 1.0:
            self._finish()
            return
        eased = share * share * (3 - 2 * share)
        self.query_one(SkyView).show(eased, min(1.0, max(0.0, (share - 0.2) / 0.5)))

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
            self._on_done()
