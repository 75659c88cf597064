"""`phobos-cli completion`: the script that makes a shell complete commands and flags."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from phobos import library
from phobos.commands.flags import with_flags
from phobos.commands.help import PhobosCommand
from phobos.commands.options import GENERAL_FLAGS

PROGRAM, VARIABLE = "phobos-cli", "_PHOBOS_CLI_COMPLETE"


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Models here and in the catalog, or any file."""
    names = [*library.load_catalog(), *(model.name for model in library.list_models())]
    found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


@click.command("completion", cls=PhobosCommand)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="bash|zsh|fish")
@with_flags(GENERAL_FLAGS)
def command(shell: str, **general: Any) -> int:
    """Print a script for shell completion.

    For instance: phobos-cli completion bash >> ~/.bashrc
    """
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(click.get_current_context().find_root().command, {}, PROGRAM, VARIABLE).source())
    return 0
