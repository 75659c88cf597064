"""The prompt: editing, history, completion. Everything of prompt_toolkit is in here.

Enter sends; Alt-Enter starts a new line; a pasted block arrives whole, its line breaks kept. History is a file in the
user's state folder, readable by the user alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.shortcuts import CompleteStyle

from phobos.host.folders import state_dir
from phobos.private import make_private_folder
from phobos.repl.commands import Command
from phobos.repl.knobs import KNOBS

SIGN = "> "


def history_path() -> Path:
    """Where what was typed is kept."""
    return state_dir() / "chat_history"


def open_history(path: Path) -> History:
    """The history file, made private; kept in memory where it cannot be written."""
    try:
        make_private_folder(path.parent)
        path.touch(mode=0o600)
        with path.open("ab"):
            return FileHistory(path)
    except OSError:
        return InMemoryHistory()


class CommandCompleter(Completer):
    """Commands at the start of the line, then what the command takes."""

    def __init__(self, commands: Callable[[], dict[str, Command]], models: Callable[[], list[str]]) -> None:
        self._commands = commands
        self._models = models
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """What may stand at the cursor."""
        before = document.text_before_cursor
        if not before.startswith("/") or "\n" in before:
            return
        name, blank, argument = before[1:].partition(" ")
        if not blank:
            for command in self._commands().values():
                if command.name.startswith(name):
                    yield Completion(
                        f"/{command.name}",
                        start_position=-len(before),
                        display=f"/{command.name} {command.argument}".rstrip(),
                        display_meta=command.summary,
                    )
            return
        found = self._commands().get(name)
        if found is None:
            return
        if found.completes == "path":
            yield from self._paths.get_completions(Document(argument, len(argument)), complete_event)
        elif found.completes == "knob":
            yield from self._words([*KNOBS], argument)
        elif found.completes == "model":
            yield from self._words(self._models(), argument)
            yield from self._paths.get_completions(Document(argument, len(argument)), complete_event)
        else:
            yield from self._words([*found.completes], argument)

    def _words(self, words: list[str], typed: str) -> Iterable[Completion]:
        return (Completion(w, start_position=-len(typed)) for w in words if w.startswith(typed) and " " not in typed)


def _make_bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("escape", "enter")
    def start_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @Condition
    def is_at_folder() -> bool:
        buffer = get_app().current_buffer
        if buffer.complete_state is None or buffer.complete_state.current_completion is None:
            return False
        _, _, argument = buffer.text.partition(" ")
        return bool(argument) and not argument.endswith("/") and Path(argument).expanduser().is_dir()

    @bindings.add("enter", filter=is_at_folder)
    def enter_folder(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        buffer.complete_state = None
        buffer.insert_text("/")
        buffer.start_completion(select_first=False)

    @bindings.add("enter", filter=~is_at_folder)
    def send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    return bindings


class Prompt:
    """Reads what the user types. Raises `EOFError` for Ctrl-D, `KeyboardInterrupt` for Ctrl-C."""

    def __init__(self, completer: Completer, history: History) -> None:
        plain = ColorDepth.DEPTH_1_BIT if os.environ.get("NO_COLOR") else None
        self._session: PromptSession[str] = PromptSession(
            history=history,
            completer=completer,
            complete_while_typing=Condition(lambda: get_app().current_buffer.text.startswith("/")),
            complete_style=CompleteStyle.COLUMN,
            multiline=True,
            key_bindings=_make_bindings(),
            prompt_continuation=lambda width, line, wrapped: "" if wrapped else " " * width,
            enable_open_in_editor=True,
            tempfile_suffix=".md",
            color_depth=plain,
            reserve_space_for_menu=6,
        )

    @property
    def typed(self) -> str:
        """What stands in the line: after a Ctrl-C, what was given up."""
        return self._session.default_buffer.text

    def read(self, draft: str = "") -> str:
        """One message or command, as typed."""
        return self._session.prompt(FormattedText([("ansicyan bold", SIGN)]), default=draft)

    def confirm(self, question: str) -> bool:
        """Yes or no, where anything but a yes is a no."""
        session: PromptSession[str] = PromptSession(history=InMemoryHistory())
        try:
            return session.prompt(f"{question} [y/N] ").strip().lower() in ("y", "yes")
        except (EOFError, KeyboardInterrupt):
            return False
