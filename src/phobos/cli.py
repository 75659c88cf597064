"""`phobos-cli`: finds the command, runs it, and turns every failure into one sentence and an exit code.

A first word that is no command is a prompt, so the root group puts the hidden command `ask` before it; flags may
stand before a command as well as after it. What users of other programs type (`serve`, `run`, `list`, …) becomes what
it is here in `commands/parsing/verbs.py`. Commands are imported when they are called (all of them for `--help`),
and whatever is heavy only within their bodies. Exit codes: 0 done, 1 failed, 2 usage, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence

import click

from phobos import log
from phobos.commands.parsing import refusals, verbs
from phobos.errors import PhobosError, UsageError
from phobos.printable import printable

PROGRAM = "phobos-cli"
COMMANDS = (
    "chat", "chats", "pull", "models", "ps", "stop", "log", "inspect", "plan", "doctor", "bench", "warm", "completion",
)  # fmt: skip
ASK = "ask"


class Root(click.Group):
    """The commands by name, each loaded from its own module."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order the help shows them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; `ask` is the one without a name of its own."""
        if cmd_name not in COMMANDS and cmd_name != ASK:
            return None
        found = importlib.import_module(f"phobos.commands.{cmd_name}").command
        assert isinstance(found, click.Command)
        return found

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the command first, wherever it stood; without one, `ask`."""
        args = verbs.translate(args)
        if args == ["--help"] or args == ["-h"]:
            return super().parse_args(ctx, args)
        talks = args[:1] == ["run"]
        args = verbs.model_first(args[1:]) if talks else args
        return super().parse_args(ctx, self._with_command_first(ctx, args, "chat" if talks else ASK))

    def _with_command_first(self, ctx: click.Context, args: list[str], wordless: str) -> list[str]:
        """`wordless` is the command where neither words nor a pipe bring a prompt."""
        if args and args[0] in COMMANDS:
            return args
        if wordless != ASK and not sys.stdin.isatty():
            wordless = ASK
        ask = self.get_command(ctx, ASK)
        assert ask is not None
        parser = ask.make_parser(click.Context(ask, info_name=ASK, resilient_parsing=True))
        parser.allow_interspersed_args = False
        known = [name for option in ask.params for name in option.opts]
        if (foreign := refusals.find_foreign_flag(args, known)) is not None:
            raise UsageError(foreign)
        try:
            found, _, _ = parser.parse_args(list(args))
        except click.UsageError:
            return [ASK, *args]
        given = found.get("words")
        words = list(given) if isinstance(given, list | tuple) else []
        start = len(args) - len(words)
        if not words:
            return [wordless, *args]
        if start and args[start - 1] == "--":
            return [ASK, *args]
        if words[0] in COMMANDS:
            return [words[0], *args[:start], *args[start + 1 :]]
        verbs.refuse_misspelt(words, COMMANDS)
        return [ASK, *args]

    def invoke(self, ctx: click.Context) -> object:
        """Run the command."""
        from phobos.commands.parsing.flags import check_environment

        check_environment(ctx)
        return super().invoke(ctx)

    def get_help(self, ctx: click.Context) -> str:
        """What the program does, its commands, and the flags of `ask`."""
        from phobos.commands.parsing.help import render_help

        ask = self.get_command(ctx, ASK)
        assert ask is not None
        commands = [*verbs.VERBS.items(), *((name, self._summary(ctx, name)) for name in COMMANDS)]
        return render_help(ask, ctx, commands=commands, path=PROGRAM)

    def _summary(self, ctx: click.Context, name: str) -> str:
        found = self.get_command(ctx, name)
        return found.get_short_help_str(limit=100) if found is not None else ""


root = Root(name=PROGRAM, context_settings={"help_option_names": ["-h", "--help"]}, add_help_option=True)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; the console script exits with it."""
    _open_missing_streams()
    _take_any_character()
    given = list(sys.argv[1:] if args is None else args)
    debug = "--debug" in given or bool(os.environ.get("PHOBOS_DEBUG"))
    try:
        if not given and sys.stdin is not None and sys.stdin.isatty():
            given = ["--help"]
        result = root.main(given, prog_name=PROGRAM, standalone_mode=False, obj=tuple(given))
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 130
    except BrokenPipeError:
        _silence_stdout()
        return 1
    except Exception as error:
        if debug:
            traceback.print_exc()
        text, code = explain(error)
        if log.flush():  # else nobody reads standard error, and the end would wait for ever
            with contextlib.suppress(OSError, ValueError):
                print(f"{PROGRAM}: {printable(text)}", file=sys.stderr)
        return code


def explain(error: Exception) -> tuple[str, int]:
    """The sentence for an error that ended the program, and the exit code."""
    if isinstance(error, click.NoSuchOption):
        return refusals.explain_flag(error), 2
    if isinstance(error, click.ClickException):
        return refusals.explain_usage(error), 2
    if isinstance(error, PhobosError):
        return str(error), error.exit_code
    if isinstance(error, MemoryError):
        return "out of memory: choose a smaller model or a smaller --ctx-size (`phobos-cli plan` tells what fits)", 1
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}{f': {error.filename}' if error.filename else ''}", 1
    kind = type(error).__name__
    return f"this should not have happened ({kind}: {error}): run it again with --debug and report what it prints", 1


def _take_any_character() -> None:
    """What a terminal's or a pipe's encoding has no character for is written as `?` or escaped: it ends no answer."""
    for stream, errors in ((sys.stdout, "replace"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def _open_missing_streams() -> None:
    """A standard stream that was closed by whoever started us becomes the null device: else the next file that is
    opened would take its descriptor, and receive what is printed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8", closefd=False))


def _silence_stdout() -> None:
    """The reader is gone: keep the interpreter from complaining when it flushes at exit."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
