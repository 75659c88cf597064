"""What `phobos-cli` does without a command: serve where an address is given, else answer the prompt once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from phobos import log
from phobos.commands.parsing import options
from phobos.commands.parsing.candidates import complete_model
from phobos.commands.parsing.flags import with_flags
from phobos.commands.parsing.help import PhobosCommand
from phobos.commands.parsing.verbs import DEFAULT_ADDRESS, VERBS
from phobos.commands.pull import resolve_or_fetch
from phobos.errors import FileError, UsageError


class AskCommand(PhobosCommand):
    """Shows the root's help as its own: to the user it is the program itself."""

    usage_ways = ("--gguf MODEL --listen 127.0.0.1:8080", '--gguf MODEL "PROMPT"', "COMMAND [FLAGS]")

    def get_help(self, ctx: click.Context) -> str:
        """The root's help page."""
        return (ctx.parent or ctx).command.get_help(ctx.parent or ctx)


def complete_command(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The commands, as long as no word stands before; behind `serve` the models."""
    if ctx.params.get("serve"):
        return complete_model(ctx, param, incomplete)
    root = ctx.find_root().command
    names = root.list_commands(ctx) if isinstance(root, click.Group) and not ctx.params.get("words") else []
    return [CompletionItem(name) for name in (*names, *VERBS) if name.startswith(incomplete)]


@click.command("ask", cls=AskCommand)
@click.argument("words", nargs=-1, metavar="PROMPT", shell_complete=complete_command)
@with_flags(
    options.MODEL_FLAGS,
    options.SAMPLING_FLAGS,
    options.ANSWER_FLAGS,
    options.SERVE_FLAGS,
    options.LIMIT_FLAGS,
    options.DISPLAY_FLAGS,
    options.GENERAL_FLAGS,
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=lambda c, p, v: print_version(c, v)
)
def command(words: tuple[str, ...], **values: Any) -> int:
    """Run a language model from a GGUF file: serve it to OpenAI clients, or ask it once."""
    log.configure(values["log"])
    listen = options.read_listen(values) or (DEFAULT_ADDRESS if values["serve"] else None)
    asked = bool(words) or values["file"] is not None
    if listen is not None and asked and _typed("listen", "host", "port", "serve"):
        raise UsageError("a prompt is answered once and --listen serves: give one of them")
    if values["detach"] and (listen is None or asked):
        raise UsageError("--detach keeps a server running: name the address with --listen")
    if values["detach"]:
        from phobos.commands.detach import start_detached

        return start_detached(click.get_current_context().find_root().obj)
    if listen is not None and not asked:
        return _serve(values, listen)
    return _answer(values, words)


def _typed(*names: str) -> bool:
    ctx = click.get_current_context()
    return any(ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE for name in names)


def _serve(values: dict[str, Any], listen: str) -> int:
    settings = options.read_serve(values, listen)
    engine = options.read_engine(values, resolve_or_fetch(values["gguf"]))
    from phobos import serving

    display = serving.Display(tui=values["tui"], animation=values["animation"], theme=values["theme"])
    return serving.serve(engine, settings, display)


def _answer(values: dict[str, Any], words: tuple[str, ...]) -> int:
    prompt = read_prompt(words, values["file"])
    engine = options.read_engine(values, resolve_or_fetch(values["gguf"]))
    from phobos import oneshot

    question = oneshot.Question(
        prompt=prompt,
        system=values["system"],
        raw=values["raw"],
        think=values["think"],
        n_candidates=values["show"],
        schema=oneshot.read_schema(values["schema"]) if values["schema"] is not None else None,
        stop=tuple(values["stop"]),
        as_json=values["as_json"],
    )
    return oneshot.answer(engine, question)


def read_prompt(words: tuple[str, ...], file: Path | None) -> str:
    """The prompt from words, `--file`, `-` or a pipe; a lone `-` among words stands for what the pipe brings."""
    parts: list[str] = []
    if file is not None:
        parts.append(_read_text_file(file))
    if words:
        parts += [" ".join(w for w in words if w != "-")] if any(w != "-" for w in words) else []
        parts += [_read_text_pipe()] if "-" in words else []
    elif file is None:
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageError("nothing to do: give a prompt, --listen ADDRESS to serve, or `chat` to talk (see --help)")
        parts.append(_read_pipe())
    prompt = "\n\n".join(part for part in parts if part)
    if not prompt.strip():
        raise UsageError("the prompt is empty: give some words, a file or a pipe with text")
    return prompt


def _read_text_pipe() -> str:
    """What the pipe brings where a `-` asks for it: without it the model would answer about nothing."""
    text = _read_pipe()
    if not text.strip():
        raise UsageError("standard input is empty, and `-` stands for what it brings: pipe some text in")
    return text


def _read_pipe() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UsageError("standard input is not valid UTF-8") from error


def _read_text_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not valid UTF-8") from error
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error


def print_version(ctx: click.Context, wanted: bool) -> None:
    """`--version`: what is needed to understand a report."""
    if not wanted or ctx.resilient_parsing:
        return
    from phobos import doctor

    click.echo(doctor.version_text())
    ctx.exit()
