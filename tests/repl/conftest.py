"""Fixtures of the chat's tests: the chat in a pseudo-terminal, in tmux, and in the test's own process."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pexpect
import pytest
from rich.console import Console

from command_line import CommandLine
from doubles.chat_scripted import ChatEngine, talk
from doubles.scripted_engine import Script, ScriptedModel
from phobos.counters import Counters
from phobos.errors import PhobosError
from phobos.repl.desk import LOOKS, Desk
from phobos.repl.exchange import Answer
from phobos.repl.keeper import Keeper
from phobos.repl.local import LocalPartner
from phobos.repl.partner import Partner
from phobos.repl.session import AskHooks, Session
from phobos.repl.settings import ChatSettings
from phobos.settings import EngineSettings

TESTS = Path(__file__).resolve().parent.parent
SCRIPT = TESTS / "doubles" / "chat_scripted.py"
ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[=>()][A-Z0-9]?)")
DEADLINE_S = 20
LOAD_S = 300  # a real model may have its kernels compiled first


def chat_environment(folder: Path, **extra: str) -> dict[str, str]:
    """Nothing of the user's own, and a terminal that is not asked where its cursor is."""
    kept = CommandLine(folder / "models").environment()
    for name in ("COLUMNS", "LINES", "NO_COLOR", "SSH_CONNECTION", "DISPLAY", "WAYLAND_DISPLAY"):
        kept.pop(name, None)
    state = {"XDG_STATE_HOME": str(folder / "state"), "TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1"}
    return {**kept, **state, "LC_ALL": "C.UTF-8", **extra}


class PseudoTerminal:
    """A chat under pexpect; `text` is all it has written, without escape sequences."""

    def __init__(
        self, folder: Path, arguments: Sequence[str], program: Sequence[str], columns: int, **extra: str
    ) -> None:
        self._log = io.StringIO()
        self.child: Any = pexpect.spawn(
            sys.executable,
            [*program, "chat", *arguments],
            env=chat_environment(folder, **extra),  # type: ignore[arg-type]
            dimensions=(30, columns),
            encoding="utf-8",
            timeout=DEADLINE_S,
        )
        self.child.logfile_read = self._log

    @property
    def raw(self) -> str:
        return self._log.getvalue()

    @property
    def text(self) -> str:
        return ESCAPES.sub("", self._log.getvalue()).replace("\r", "")

    def forget(self) -> None:
        """Start `text` anew."""
        self._log.seek(0)
        self._log.truncate()

    def wait(self, pattern: str, deadline_s: float = DEADLINE_S) -> str:
        """All that was written since `forget`, once it matches."""
        until = time.monotonic() + deadline_s
        while not re.search(pattern, self.text):
            if time.monotonic() > until:
                pytest.fail(f"never showed {pattern!r}:\n{self.text}")
            try:
                self.child.read_nonblocking(65536, timeout=0.1)
            except pexpect.TIMEOUT:
                continue
            except pexpect.EOF:
                if not re.search(pattern, self.text):
                    pytest.fail(f"ended without {pattern!r}:\n{self.text}")
        return self.text

    def press(self, keys: str) -> None:
        self.child.send(keys)

    def ask(self, line: str, pattern: str = r"context \d+%") -> str:
        """Type a line, send it, and wait for what it brings (an answer's footer, unless told)."""
        self.forget()
        self.press(line + "\r")
        return self.wait(pattern)

    def quit(self, keys: str = "\x04") -> int:
        """Leave with Ctrl-D, or these keys; the exit code."""
        self.press(keys)
        self.child.expect(pexpect.EOF)
        self.child.wait()
        code = self.child.exitstatus
        assert isinstance(code, int)
        return code


StartChat = Callable[..., PseudoTerminal]


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    """A file where a model would be; the scripted engine never opens it."""
    path = tmp_path / "models" / "scripted.gguf"
    path.parent.mkdir()
    path.touch()
    return path


@pytest.fixture
def start_chat(tmp_path: Path, model_file: Path) -> Iterator[StartChat]:
    """Start a chat in a pseudo-terminal: `start_chat("--system", "x", columns=80)`."""
    running: list[PseudoTerminal] = []

    def start(
        *arguments: str, columns: int = 100, program: Sequence[str] = (str(SCRIPT),), **extra: str
    ) -> PseudoTerminal:
        given = (
            arguments
            if {"--gguf", "--attach"} & set(arguments)
            else ("--no-attach", "--gguf", str(model_file), *arguments)
        )
        chat = PseudoTerminal(tmp_path, given, program, columns, **extra)
        running.append(chat)
        chat.wait(r"/help lists commands[\s\S]*> ", deadline_s=LOAD_S)
        return chat

    yield start
    for chat in running:
        chat.child.close(force=True)


class Tmux:
    """A terminal that can be read back: a private server with one pane in which the chat runs."""

    def __init__(self, folder: Path, command: Sequence[str], width: int, height: int) -> None:
        self._socket = str(folder / "tmux.sock")
        environment = {**chat_environment(folder), "PS1": "$ "}
        environment.pop("TERM")
        self._environment = environment
        size = ("-x", str(width), "-y", str(height))
        self("-f", "/dev/null", "new-session", "-d", *size, "sh")
        self("set-option", "-g", "window-size", "manual")
        self("set-option", "-g", "history-limit", "5000")
        self.type("clear; " + " ".join(command) + "; echo rc=$?")
        self.wait("/help lists commands")

    def __call__(self, *arguments: str) -> str:
        run = subprocess.run(
            ["tmux", "-S", self._socket, *arguments], capture_output=True, text=True, check=True, env=self._environment
        )
        return run.stdout

    def type(self, line: str) -> None:
        self("send-keys", "-l", line)
        self("send-keys", "Enter")

    def screen(self, *, history: bool = False) -> str:
        return self("capture-pane", "-p", *(["-S", "-"] if history else []))

    def wait(self, pattern: str, *, history: bool = False) -> str:
        until = time.monotonic() + DEADLINE_S
        while not re.search(pattern, shown := self.screen(history=history)):
            if time.monotonic() > until:
                pytest.fail(f"the terminal never showed {pattern!r}:\n{shown}")
            time.sleep(0.05)
        return shown

    def close(self) -> None:
        subprocess.run(["tmux", "-S", self._socket, "kill-server"], check=False, capture_output=True)


@pytest.fixture
def start_tmux(tmp_path: Path, model_file: Path) -> Iterator[Callable[[int, int], Tmux]]:
    """Start a chat in tmux: `start_tmux(80, 24)`."""
    if shutil.which("tmux") is None:
        pytest.skip("needs tmux to have a terminal that can be read back")
    running: list[Tmux] = []

    def start(width: int, height: int) -> Tmux:
        command = (sys.executable, str(SCRIPT), "chat", "--no-attach", "--gguf", str(model_file))
        running.append(Tmux(tmp_path, command, width, height))
        return running[-1]

    yield start
    for terminal in running:
        terminal.close()


class QuietFront:
    """Answers without showing them; says yes or no as told."""

    def __init__(self, desk: Desk, *, says_yes: bool = True) -> None:
        self._desk = desk
        self.says_yes = says_yes
        self.questions: list[str] = []
        desk.front = self

    def ask(self, text: str) -> Answer:
        return self._desk.session.ask(text, AskHooks(lambda answer: None, lambda answer: None, lambda: False))

    def confirm(self, question: str) -> bool:
        self.questions.append(question)
        return self.says_yes


class Bench:
    """A desk over a scripted engine in this process, and what it says."""

    def __init__(self, script: Script, model: ScriptedModel, settings: ChatSettings) -> None:
        self.engine = ChatEngine(model, Counters())
        self.engine.script = script
        self._out = io.StringIO()
        console = Console(file=self._out, width=100, theme=LOOKS, highlight=False, markup=False, emoji=False)
        partner: Partner = LocalPartner(self.engine, ["other.gguf"])  # type: ignore[arg-type]
        self.desk = Desk(Session(settings, partner), console, Keeper(wanted=False), self._change)
        self.front = QuietFront(self.desk)
        self.opened: list[str] = []

    def _change(self, name: str) -> Partner:
        self.opened.append(name)
        if name == "broken":
            raise PhobosError("it is broken: choose another")
        return self.desk.session.partner

    @property
    def session(self) -> Session:
        return self.desk.session

    @property
    def said(self) -> str:
        """What was said since the last look."""
        text = self._out.getvalue()
        self._out.seek(0)
        self._out.truncate()
        return text


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Make a `Bench`: `bench(script=…, model=…, **settings)`."""
    made: list[Bench] = []

    def make(script: Script = talk, model: ScriptedModel | None = None, **settings: Any) -> Bench:
        chat_settings = ChatSettings(
            resolve=lambda name: tmp_path / (name or "m.gguf"), engine=EngineSettings, **settings
        )
        made.append(Bench(script, model or ScriptedModel(), chat_settings))
        return made[-1]

    yield make
    for one in made:
        one.engine.close()


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The default model's file, or skip."""
    folders = [Path(os.environ["PHOBOS_TEST_MODELS"])] if "PHOBOS_TEST_MODELS" in os.environ else []
    for folder in (*folders, TESTS.parent / "models"):
        path = folder / "SmolLM2-135M-Instruct-Q4_1.gguf"
        if path.exists():
            return path
    pytest.skip("the default model is not here: run `make test`, or `phobos-cli pull smollm2`")
