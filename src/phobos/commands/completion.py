"""`phobos-cli completion`: the script that makes a shell complete commands and flags."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import get_completion_class

from phobos.commands.parsing.flags import with_flags
from phobos.commands.parsing.help import PhobosCommand
from phobos.commands.parsing.options import GENERAL_FLAGS

PROGRAM, VARIABLE = "phobos-cli", "_PHOBOS_CLI_COMPLETE"


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
