"""Help: the keys."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import ModalScreen
from textual.widget import Widget

from phobos.tui.theme import palette_of

KEYS = (
    ("q", "quit; asks first while requests run"),
    ("Ctrl-C", "stop the server and quit"),
    ("c", "clear the log"),
    ("r", "reset the peak readings"),
    ("p", "replay the opening animation"),
    ("t", "light or dark"),
    ("Tab", "from REQUESTS to LOG and back"),
    ("↑ ↓ PgUp PgDn Home End", "scroll, or move to a request"),
    ("Enter", "timings of the request"),
    ("Ctrl-P", "command palette"),
    ("?", "this help"),
)


class HelpText(Widget):
    """The table of keys."""

    def __init__(self) -> None:
        super().__init__(id="help")
        self.border_title = "HELP"
        self.border_subtitle = "Esc closes"

    def render(self) -> Content:
        palette = palette_of(self.app.current_theme)
        key = f"bold {palette.accent}"
        rows = [Content.assemble((f"{keys:>23}", key), (f"  {does}", palette.text)) for keys, does in KEYS]
        note = Content.styled("Unknown values are left out, never shown as zero.", palette.dim)
        return Content("\n").join([*rows, Content(), note])


class HelpScreen(ModalScreen[None]):
    """Escape, `q`, Enter or `?` go back."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter,question_mark", "app.pop_screen", "Back")]

    def compose(self) -> ComposeResult:
        yield HelpText()
