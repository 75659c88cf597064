"""`phobos-cli chats`: the conversations that were kept."""

from __future__ import annotations

import time
from typing import Any

import click

from phobos import log
from phobos.commands.parsing.flags import with_flags
from phobos.commands.parsing.help import PhobosCommand
from phobos.commands.parsing.options import GENERAL_FLAGS, JSON_FLAG

SHOWN_LETTERS = 60


@click.command("chats", cls=PhobosCommand)
@with_flags(JSON_FLAG, GENERAL_FLAGS)
def command(as_json: bool, **general: Any) -> int:
    """List kept conversations, the latest first.

    `phobos-cli chat --continue` continues the latest; `/load FILE` within a chat any other.
    """
    log.configure(general["log"])
    from phobos.commands.tables import print_json, print_table
    from phobos.printable import clean
    from phobos.repl.keeper import list_kept

    kept = list_kept()
    if as_json:
        print_json({"chats": kept})
    elif kept:
        rows = [
            (
                time.strftime("%Y-%m-%d %H:%M", time.localtime(chat.changed_s)),
                str(chat.n_messages),
                clean(chat.first_question)[:SHOWN_LETTERS],
                str(chat.path),
            )
            for chat in kept
        ]
        print_table(("CHANGED", "MESSAGES", "FIRST QUESTION", "FILE"), rows, right=(1,))
    else:
        print("no conversations yet: `phobos-cli chat` starts one")
    return 0
