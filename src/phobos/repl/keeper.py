"""Conversations on a terminal are kept by themselves, so that none is lost with a closed window: a file each in the
user's state folder, readable by the user alone, in the form of `/save`, written again after every exchange.

A file is named by when its conversation began, so names sort by age. Owner: the chat's main thread.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

from phobos.chat.messages import Message
from phobos.errors import FileError, UsageError
from phobos.host.folders import state_dir
from phobos.repl.transcript import from_json, read_file, to_json, write_file


@dataclass(frozen=True)
class Kept:
    """A kept conversation; `changed_s` in seconds since 1970."""

    path: Path
    changed_s: float
    n_messages: int
    first_question: str


class Keeper:
    """Keeps one conversation after the other; keeps none where `wanted` is false or the disk refuses."""

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._path: Path | None = None

    def keep(self, messages: tuple[Message, ...]) -> None:
        """Write the conversation as it is now, if it has begun."""
        if not self._wanted or not any(message.role == "user" for message in messages):
            return
        folder = chats_dir()
        with contextlib.suppress(OSError, FileError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._path is None:
                self._path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**6:06d}.json"
                self._path.touch(mode=0o600)
            write_file(self._path, to_json(messages))
            self._path.chmod(0o600)

    def begin(self) -> None:
        """The next messages are another conversation's."""
        self._path = None

    def resume(self) -> tuple[Message, ...]:
        """The conversation that changed last, which is gone on with. Raises `UsageError` where there is none."""
        kept = list_kept()
        if not kept:
            raise UsageError("there is no conversation to continue yet: start one with `phobos-cli chat`")
        if self._wanted:
            self._path = kept[0].path
        return from_json(read_file(kept[0].path), str(kept[0].path))


def chats_dir() -> Path:
    """The folder of kept conversations."""
    return state_dir() / "chats"


def list_kept() -> list[Kept]:
    """All that can be read, the one that changed last first."""
    found = []
    for path in chats_dir().glob("*.json"):
        with contextlib.suppress(OSError, FileError):
            messages = from_json(read_file(path), str(path))
            questions = [message.content or "" for message in messages if message.role == "user"]
            if questions:
                found.append(Kept(path, path.stat().st_mtime, len(messages), " ".join(questions[0].split())))
    return sorted(found, key=lambda kept: (kept.changed_s, kept.path.name), reverse=True)
