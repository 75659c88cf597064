"""The chat on a terminal: prompt, answer, footer, and again."""

from __future__ import annotations

import time

from phobos.errors import PhobosError
from phobos.repl.commands import BARE_WORDS, offered, parse_command, run_command, unescape
from phobos.repl.desk import Desk
from phobos.repl.exchange import Answer
from phobos.repl.painter import Painter
from phobos.repl.prompt import CommandCompleter, Prompt, history_path, open_history
from phobos.repl.session import AskHooks
from phobos.repl.terminal import answering
from phobos.repl.view import AnswerView

TWICE_S = 2.0  # a second Ctrl-C within this quits
INTERRUPTED = 130


class TerminalFront:
    """Owns the prompt and the view of the answer."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        desk.front = self
        completer = CommandCompleter(lambda: offered(desk), self._models)
        self._prompt = Prompt(completer, open_history(history_path()))
        self._interrupted_s = float("-inf")

    def run(self) -> int:
        """Until the user leaves; the exit code."""
        self._greet()
        while not self._desk.is_over:
            draft, self._desk.draft = self._desk.draft, None
            try:
                line = self._prompt.read(draft.text if draft is not None else "")
            except EOFError:
                return 0
            except KeyboardInterrupt:
                if self._is_second_interrupt():
                    return INTERRUPTED
                continue
            if not line.strip():
                continue
            try:
                self._take(line, draft.index if draft is not None else None)
            except PhobosError as error:
                self._desk.complain(str(error))
            except KeyboardInterrupt:  # in a command; an answer is stopped otherwise
                self._interrupted_s = time.monotonic()
                self._desk.say("stopped")
        return 0

    def _models(self) -> list[str]:
        return self._desk.session.partner.models()

    def _greet(self) -> None:
        info = self._desk.session.partner.info
        detail = f" ({info.detail})" if info.detail else ""
        self._desk.say(f"{info.model}{detail}{f' on {info.where}' if info.where else ''}. /help lists commands.")
        if not info.has_chat:
            self._desk.say("This model has no chat format: it continues what you write.")

    def _is_second_interrupt(self) -> bool:
        """Whether this Ctrl-C at the prompt quits; with text in the line it only empties the line."""
        now_s = time.monotonic()
        again = now_s - self._interrupted_s <= TWICE_S and not self._prompt.typed.strip()
        self._interrupted_s = now_s
        if not again:
            self._desk.say("Ctrl-C again quits")
        return again

    def _take(self, line: str, cut_at: int | None) -> None:
        word = line.strip().lower()
        command = (BARE_WORDS[word], "") if word in BARE_WORDS else parse_command(line)
        if command is not None:
            run_command(self._desk, *command)
            return
        line = unescape(line)
        if cut_at is None:
            self.ask(line)
            return
        transcript = self._desk.session.transcript
        kept = transcript.turns[cut_at:]
        transcript.cut(cut_at)
        self.ask(line)
        if len(transcript.turns) == cut_at:  # no answer came: the old exchange is better than none
            transcript.turns += kept

    def ask(self, text: str) -> Answer:
        """Put a question and show its answer as it grows."""
        session, console = self._desk.session, self._desk.console
        view = AnswerView(console, fold=session.fold_reasoning, progress=session.partner.prompt_progress)
        cursor = Painter(console)
        with answering() as interrupt:
            cursor.hide_cursor(True)
            try:
                hooks = AskHooks(view.draw, view.draw, lambda: interrupt.pressed)
                answer = session.ask(text, hooks)
                view.draw(answer, last=True)
            finally:
                cursor.hide_cursor(False)
        if interrupt.pressed:
            self._interrupted_s = time.monotonic()
        self._desk.keeper.keep(session.transcript.messages)
        self._close(answer)
        return answer

    def _close(self, answer: Answer) -> None:
        """What stands under an answer."""
        if answer.error is not None:
            self._desk.complain(str(answer.error))
        elif answer.stopped and not answer.text:
            self._desk.say("stopped before an answer came: the question was withdrawn")
        else:
            if not answer.text:
                self._desk.say("(an empty answer)")
            self._desk.say(self._desk.session.footer(answer))
        self._desk.console.print()

    def confirm(self, question: str) -> bool:
        """Ask at the prompt."""
        return self._prompt.confirm(question)
