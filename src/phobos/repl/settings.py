"""What a chat is started with: frozen values the command line hands over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from phobos.settings import EngineSettings, SamplingDefaults


@dataclass(frozen=True)
class ChatSettings:
    """How to chat. `resolve` turns a model's name (None: the default) into its file, `engine` a file into settings.

    `attach` is an address, or None to look for a server on this machine; `may_attach` false never looks.
    """

    resolve: Callable[[str | None], Path]
    engine: Callable[[Path], EngineSettings]
    list_models: Callable[[], list[str]] = list
    model: str | None = None
    attach: str | None = None
    may_attach: bool = True
    api_key: str | None = None
    system: str | None = None
    think: bool = False
    goes_on: bool = False  # with the latest kept conversation
    keeps: bool = True
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults)
