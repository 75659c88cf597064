"""What a shell is offered where a model is wanted: names here, names of the catalog, files."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from phobos import library


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Models here and in the catalog, or any file."""
    names = [*library.load_catalog(), *(model.name for model in library.list_models())]
    found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


def complete_catalog(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Models of the catalog, with what they are."""
    entries = library.load_catalog().values()
    return [CompletionItem(e.name, help=e.summary) for e in entries if e.name.startswith(incomplete)]


def complete_local(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Models that are here."""
    return [CompletionItem(m.name) for m in library.list_models() if m.name.startswith(incomplete)]
