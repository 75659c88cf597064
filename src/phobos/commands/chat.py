"""`phobos-cli chat`: talk with a model."""

from __future__ import annotations

from typing import Any

import click

from phobos import library, log
from phobos.commands import options
from phobos.commands.flags import flag, with_flags
from phobos.commands.help import PhobosCommand
from phobos.errors import UsageError

CHAT_FLAGS = [
    flag("--attach", group="Chat", metavar="URL", without="a server on 127.0.0.1:8080, if one runs",
         help="Talk to a running server instead of loading a model."),
    flag("--no-attach", group="Chat", is_flag=True, help="Load a model here even if a server runs."),
    flag("--system", "-sys", "system", group="Chat", metavar="TEXT", help="Instructions before the conversation."),
    flag("--think/--no-think", group="Chat", default=False, help="Let the model reason first."),
]  # fmt: skip


@click.command("chat", cls=PhobosCommand)
@with_flags(options.MODEL_FLAGS, options.SAMPLING_FLAGS, CHAT_FLAGS, options.GENERAL_FLAGS)
def command(attach: str | None, no_attach: bool, **values: Any) -> int:
    """Talk with a model, line by line; in a pipe, one message a line."""
    log.configure(values["log"] or "off")
    if attach is not None and no_attach:
        raise UsageError("--attach and --no-attach contradict each other: give one of them")
    from phobos import repl

    return repl.chat(values, library)
