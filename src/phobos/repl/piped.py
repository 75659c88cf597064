"""The chat in a pipe: one message a line from standard input, plain answers on standard output, all else on standard
error. The first failure ends it, so that a script notices."""

from __future__ import annotations

import sys

from phobos.errors import UsageError
from phobos.printable import clean
from phobos.repl.commands import parse_command, run_command, unescape
from phobos.repl.desk import Desk
from phobos.repl.exchange import Answer
from phobos.repl.session import AskHooks


class PipeFront:
    """Writes answers as they come, without a mark of its own."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._n_written = 0
        desk.front = self

    def run(self) -> int:
        """Until the input ends; the exit code. Raises what went wrong."""
        while not self._desk.is_over and (line := self._read()) is not None:
            if not line.strip():
                continue
            command = parse_command(line)
            if command is not None:
                if command[0] == "edit":
                    raise UsageError("/edit needs a terminal: send the question again instead")
                run_command(self._desk, *command)
            else:
                self.ask(unescape(line))
        return 0

    def _read(self) -> str | None:
        if sys.stdin.isatty():
            sys.stderr.write("> ")
            sys.stderr.flush()
        data = sys.stdin.buffer.readline()
        if not data:
            return None
        try:
            return data.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise UsageError("standard input is not valid UTF-8") from error

    def ask(self, text: str) -> Answer:
        """Put a question and write its answer, ended by one line break."""
        self._n_written = 0
        answer = self._desk.session.ask(text, AskHooks(self._write, _ignore, lambda: False))
        if answer.text and not answer.text.endswith("\n"):
            sys.stdout.write("\n")
            sys.stdout.flush()
        if answer.error is not None:
            raise answer.error
        return answer

    def _write(self, answer: Answer) -> None:
        new = answer.text[self._n_written :]
        self._n_written = len(answer.text)
        sys.stdout.write(clean(new) if sys.stdout.isatty() else new)
        sys.stdout.flush()

    def confirm(self, question: str) -> bool:
        """Nobody can be asked: no."""
        return False


def _ignore(answer: Answer) -> None:
    """Nothing moves in a pipe."""
