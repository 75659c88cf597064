"""`phobos-cli chat`: talk with a model.

`chat` finds the partner (a server, or an engine of its own) and the front (a terminal, or a pipe) and joins them at a
`Desk`. Modules: `partner`, `local`, `remote`, `http_client` (who answers); `session`, `transcript`, `exchange`, `knobs`
(the conversation); `commands`, `desk`; `interactive`, `prompt`, `view`, `blocks`, `painter`, `terminal` (on a
terminal); `piped`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from phobos.errors import PhobosError, UsageError
from phobos.repl.desk import Desk, make_console
from phobos.repl.keeper import Keeper
from phobos.repl.partner import Partner
from phobos.repl.session import Session
from phobos.repl.settings import ChatSettings
from phobos.repl.terminal import keys_kept

__all__ = ["ChatSettings", "chat"]


def chat(settings: ChatSettings) -> int:
    """Talk until the user or the input ends; the exit code. Raises `PhobosError`."""
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    console = make_console(to_stderr=not on_terminal)
    with keys_kept():
        partner = open_partner(settings, lambda text: console.print(text, style="dim"))
    keeper = Keeper(wanted=settings.keeps and on_terminal)
    desk = Desk(Session(settings, partner), console, keeper, lambda name: _change_model(desk, settings, name))
    try:
        if settings.goes_on:
            desk.session.transcript.replace(keeper.resume())
        if settings.think and not partner.info.can_think:
            raise UsageError("this model's chat format has no reasoning: leave --think out")
        if on_terminal:
            from phobos.repl.interactive import TerminalFront

            return TerminalFront(desk).run()
        from phobos.repl.piped import PipeFront

        return PipeFront(desk).run()
    finally:
        desk.session.partner.close()


def open_partner(settings: ChatSettings, notify: Callable[[str], None]) -> Partner:
    """The server that was named, else one that runs here and has the model, else an engine of our own."""
    from phobos.repl.remote import attach, find_server, open_remote

    if settings.attach is not None:
        return open_remote(settings.attach, settings.api_key, notify)
    path: Path | None = None
    if settings.model is not None:
        path = settings.resolve(settings.model)
    if settings.may_attach and (client := find_server(settings.api_key, path)) is not None:
        return attach(client, notify)
    from phobos.repl.local import open_local

    return open_local(settings, path or settings.resolve(None))


def _change_model(desk: Desk, settings: ChatSettings, name: str) -> Partner:
    """Another model in place of this one. The old engine goes first: two may not fit; if the new one cannot be
    loaded, the old one comes back."""
    old = desk.session.partner
    if old.info.where:
        raise UsageError(f"{old.info.where} serves one model: start a separate chat with --no-attach --gguf {name}")
    from phobos.repl.local import LocalPartner, open_local

    path = settings.resolve(name)
    before = old.path if isinstance(old, LocalPartner) else settings.resolve(settings.model)
    old.close()
    try:
        return open_local(settings, path)
    except PhobosError:
        desk.session.partner = open_local(settings, before)
        raise
