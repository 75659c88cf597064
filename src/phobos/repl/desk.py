"""What slash commands act on: the session, and the ways to speak to the user. One for a terminal, one for a pipe.

`say` is for the program's own words, which are never the answer; in a pipe they go to standard error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console, RenderableType
from rich.text import Text
from rich.theme import Theme

from phobos.repl.exchange import Answer
from phobos.repl.keeper import Keeper
from phobos.repl.partner import Partner
from phobos.repl.session import Session

# Colours of the terminal's own palette, and no backgrounds: readable on light and on dark.
LOOKS = Theme({"markdown.code": "bold cyan", "markdown.block_quote": "italic", "markdown.table.border": "dim"})


@dataclass(frozen=True)
class Draft:
    """A question on its way back to the prompt; the turns from `index` on go once it is sent."""

    text: str
    index: int


class Front(Protocol):
    """The side that faces the user."""

    def ask(self, text: str) -> Answer:
        """Put a question and show the answer."""

    def confirm(self, question: str) -> bool:
        """Yes or no."""


class Desk:
    """See the module. Owner: the main thread."""

    def __init__(
        self, session: Session, console: Console, keeper: Keeper, open_model: Callable[[str], Partner]
    ) -> None:
        self.session = session
        self.console = console
        self.keeper = keeper
        self.open_model = open_model
        self.front: Front | None = None
        self.draft: Draft | None = None
        self.is_over = False

    def say(self, text: str, style: str = "dim") -> None:
        """A sentence to the user."""
        self.console.print(Text(text, style=style), soft_wrap=not self.console.is_terminal)

    def complain(self, text: str) -> None:
        """A sentence about what went wrong."""
        self.say(text, style="red")

    def show(self, renderable: RenderableType) -> None:
        """Something larger."""
        self.console.print(renderable, highlight=False)

    def ask(self, text: str) -> None:
        """Put a question."""
        if self.front is not None:
            self.front.ask(text)

    def confirm(self, question: str) -> bool:
        """Yes or no; no where nobody can answer."""
        return self.front is not None and self.front.confirm(question)


def make_console(*, to_stderr: bool = False) -> Console:
    """A console that follows the terminal's real size: what COLUMNS says is old after a resize."""
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    stream = sys.stderr if to_stderr else sys.stdout
    return Console(file=stream, theme=LOOKS, highlight=False, markup=False, emoji=False, _environ=environment)
