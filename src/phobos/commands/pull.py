"""`phobos-cli pull`: fetch a model into the models folder."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from phobos import library, log
from phobos.commands.parsing.candidates import complete_catalog
from phobos.commands.parsing.flags import flag, with_flags
from phobos.commands.parsing.help import PhobosCommand
from phobos.commands.parsing.options import GENERAL_FLAGS, JSON_FLAG
from phobos.errors import ModelNotHereError
from phobos.sizes import format_bytes

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from phobos.hub import PullProgress

PULL_FLAGS = [
    flag("--if-missing", group="Fetching", is_flag=True, help="Do nothing if the model is already here."),
    flag("--quiet", "-q", group="Fetching", is_flag=True, help="Show no progress."),
]


class ProgressBar:
    """One bar on standard error; in a pipe a line a stage, so that a log shows what happened."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._stage = ""

    def __enter__(self) -> ProgressBar:
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
            from rich.progress import TransferSpeedColumn as SpeedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), SpeedColumn())
            self._bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, progress: PullProgress) -> None:
        stage = f"{progress.stage} {progress.name}"
        new = stage != self._stage
        self._stage = stage
        if self._bar is None:
            if new and not self._quiet:
                print(stage, file=sys.stderr, flush=True)
            return
        if new and self._task is not None:
            self._bar.remove_task(self._task)
        if new or self._task is None:
            self._task = self._bar.add_task(stage, total=progress.total)
        self._bar.update(self._task, completed=progress.n_bytes, total=progress.total)


def resolve_or_fetch(name: str | None) -> Path:
    """The file a model's name means. One that could be fetched is offered on a terminal, with its size; elsewhere, and
    where the offer is declined, `ModelNotHereError` says how to fetch it."""
    try:
        return library.resolve_model(name)
    except ModelNotHereError as error:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise
        entry = library.load_catalog().get(error.name)
        size = f" (~{format_bytes(entry.approximate_bytes)})" if entry is not None else ""
        if not click.confirm(f"{error.name} is not on this machine. Fetch it now{size}?", err=True):
            raise
        missing = error.name
    from phobos import hub

    with ProgressBar(quiet=False) as bar:
        hub.pull(missing, bar)
    return library.resolve_model(name)


@click.command("pull", cls=PhobosCommand)
@click.argument("name", metavar="NAME", shell_complete=complete_catalog)
@with_flags(PULL_FLAGS, JSON_FLAG, GENERAL_FLAGS)
def command(name: str, if_missing: bool, quiet: bool, as_json: bool, **general: Any) -> int:
    """Fetch a model: a catalog name, or hf:owner/repo[:QUANT|/file].

    Its path goes to standard output. A download that was cut goes on where it stopped; the file appears under its
    name only once it is whole and its checksum is right.
    """
    log.configure(general["log"])
    if if_missing and _is_here(name):
        return 0
    from phobos import hub
    from phobos.commands.tables import print_json

    with ProgressBar(quiet=quiet) as bar:
        pulled = hub.pull(name, bar)
    if as_json:
        print_json({"name": name, "path": pulled.path, "bytes": pulled.n_bytes, "was_here": pulled.was_here})
    else:
        if not quiet:
            verb = "is already here" if pulled.was_here else "is here"
            print(f"{name} {verb}, {format_bytes(pulled.n_bytes)}", file=sys.stderr)
        print(pulled.path)
    return 0


def _is_here(name: str) -> bool:
    entry = library.load_catalog().get(name.lower())
    if entry is not None:
        return library.catalog_path(entry) is not None
    return name.startswith("hf:") and library.find_hub_model(library.parse_hub_name(name)) is not None
