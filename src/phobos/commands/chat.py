"""`phobos-cli chat`: talk with a model."""

from __future__ import annotations

import os
from typing import Any

import click

from phobos import library, log
from phobos.commands.parsing import options
from phobos.commands.parsing.flags import flag, names_of, with_flags
from phobos.commands.parsing.help import PhobosCommand
from phobos.commands.pull import resolve_or_fetch
from phobos.errors import UsageError

CHAT_FLAGS = [
    flag("--attach", group="Chat", metavar="URL", without="a server on 127.0.0.1:8080, if one runs",
         help="Talk to a running server instead of loading a model."),
    flag("--no-attach", group="Chat", is_flag=True, help="Load a model here even if a server runs."),
    flag("--system", "-sys", "system", group="Chat", metavar="TEXT", help="System prompt."),
    flag("--continue", "goes_on", group="Chat", is_flag=True, help="Continue the latest conversation."),
    flag("--history/--no-history", "history", group="Chat", default=True,
         help="Keep conversations, so that they can be continued (see `phobos-cli chats`)."),
    flag("--think/--no-think", group="Chat", default=False, help="Let the model reason first."),
]  # fmt: skip


@click.command("chat", cls=PhobosCommand)
@with_flags(options.MODEL_FLAGS, options.SAMPLING_FLAGS, CHAT_FLAGS, options.GENERAL_FLAGS)
def command(attach: str | None, no_attach: bool, **values: Any) -> int:
    """Talk with a model, line by line; in a pipe, one message a line."""
    log.configure(values["log"] or "off")
    if attach is not None and no_attach:
        raise UsageError("--attach and --no-attach contradict each other: give one of them")
    engine_flags = _typed_engine_flags()
    if attach is not None and engine_flags:
        raise UsageError(f"{engine_flags[0]} is for a model loaded here, --attach for one that runs: leave one out")
    from phobos import repl

    settings = repl.ChatSettings(
        resolve=resolve_or_fetch,
        engine=lambda path: options.read_engine(values, path),
        list_models=lambda: [model.name for model in library.list_models()],
        model=values["gguf"],
        attach=attach,
        may_attach=not no_attach and not engine_flags,
        api_key=_first_key(),
        system=values["system"],
        think=values["think"],
        goes_on=values["goes_on"],
        keeps=values["history"],
        sampling=options.read_sampling(values),
    )
    return repl.chat(settings)


def _typed_engine_flags() -> list[str]:
    """The flags on the command line that only an engine of one's own can honour."""
    ctx = click.get_current_context()
    typed = click.core.ParameterSource.COMMANDLINE
    names = names_of(options.ENGINE_FLAGS)
    flags = [parameter for parameter in ctx.command.params if parameter.name in names]
    return [flag.opts[0] for flag in flags if ctx.get_parameter_source(str(flag.name)) is typed]


def _first_key() -> str | None:
    """The key for a server: the first of those `PHOBOS_API_KEY` names."""
    return next(iter(os.environ.get("PHOBOS_API_KEY", "").split()), None)
