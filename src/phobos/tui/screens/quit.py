"""The question before a busy server is stopped."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import ModalScreen
from textual.widget import Widget

from phobos.tui.theme import palette_of


class QuitText(Widget):
    """What would be cut short, and the keys."""

    def __init__(self, n_requests: int) -> None:
        super().__init__(id="quit")
        self.border_title = "QUIT"
        self._n_requests = n_requests

    def render(self) -> Content:
        palette = palette_of(self.app.current_theme)
        running = "A request is running." if self._n_requests == 1 else f"{self._n_requests} requests are running."
        key = f"bold {palette.accent}"
        keys = Content.assemble(("q", key), ("  stop the server and quit", palette.text), "   ")
        return Content("\n").join(
            [
                Content.styled(f"{running} Stop the server?", f"bold {palette.text}"),
                Content(),
                keys + Content.assemble(("Esc", key), ("  keep running", palette.text)),
            ]
        )


class QuitScreen(ModalScreen[bool]):
    """`q`, `y` or Enter stop the server; Escape or `n` go back."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,y,enter", "dismiss(True)", "Stop the server and quit"),
        Binding("escape,n", "dismiss(False)", "Keep running"),
    ]

    def __init__(self, n_requests: int) -> None:
        super().__init__()
        self._n_requests = n_requests

    def compose(self) -> ComposeResult:
        yield QuitText(self._n_requests)
