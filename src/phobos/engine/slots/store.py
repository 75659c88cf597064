"""A folder of conversations that outlives the server (`--slot-save-path`).

Two kinds of files. Those that clients name (`POST /slots/{id}?action=save`) lie in the folder itself and are theirs to
delete. Those the server keeps on its own lie in `kept/`: written while nothing runs and at an orderly end, found again
by how they begin, read only when a prompt wants them. Together these take at most the store's bound; the one not used
for longest goes first, and one that begins another goes once the longer one is there.

One server at a time has a folder. A file that is damaged, or for another model, cache or version, is never used: the
damaged are deleted, the others left alone. Something longer is whole on the disk before what it replaces goes.

The index is guarded by a lock: the engine's thread finds and reads, the writer's thread writes.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from phobos.engine.slots.archive import Archived
from phobos.engine.slots.cache import HOLD_TOKENS, count_common, cut_to
from phobos.engine.slots.slot_files import WRITTEN_ASIDE, Identity, read_head, read_slot_file, write_slot_file
from phobos.errors import FileError, RequestError, UsageError
from phobos.kernels.backend import IntArray
from phobos.private import make_private_folder, open_private
from phobos.sizes import format_bytes

log = logging.getLogger(__name__)

KEPT_FOLDER = "kept"
SUFFIX = ".slot"
RETRY_S = 60.0  # after a write that failed
MAX_NAME = 200
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]*")


@dataclass(eq=False)
class Kept:
    """One file of the index."""

    path: Path
    tokens: IntArray
    checkpoints: tuple[int, ...]
    n_bytes: int


class Folder:
    """A folder held by this process alone, until `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kept = path / KEPT_FOLDER
        self._lock: IO[bytes] | None = None
        try:
            make_private_folder(self.kept)
            self.kept.chmod(0o700)  # of an earlier version
            self._lock = open(path / ".lock", "wb", opener=open_private)  # noqa: SIM115 (held while we run)
        except OSError as error:
            raise UsageError(
                f"cannot use --slot-save-path {path}: {error.strerror}; name a folder to write to"
            ) from error
        try:
            import fcntl

            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            pass  # the system has no such locks: keeping to one server a folder is up to its owner
        except OSError:
            self._lock.close()
            raise UsageError(
                f"another server uses --slot-save-path {path}: give this one a folder of its own"
            ) from None
        for left in (*path.glob("*" + WRITTEN_ASIDE), *self.kept.glob("*" + WRITTEN_ASIDE)):
            with contextlib.suppress(OSError):
                left.unlink()  # a write that was cut off

    def named(self, name: str) -> Path:
        """The file a client names. `RequestError` for a name that is no plain file name."""
        plain = len(name) <= MAX_NAME and _NAME.fullmatch(name) and not name.endswith((WRITTEN_ASIDE, ".", " "))
        if not plain or name == KEPT_FOLDER:
            raise RequestError(
                "filename must be a plain file name of letters, digits, dots, spaces, - and _", param="filename"
            )
        return self.path / name

    def close(self) -> None:
        """Let others have it."""
        if self._lock is not None:
            self._lock.close()


class Store:
    """See the module."""

    def __init__(self, folder: Folder, identity: Identity, bound_bytes: int, *, can_cut: bool = True) -> None:
        self.folder = folder
        self.identity = identity
        self.bound_bytes = bound_bytes
        self.n_written = self.n_read = self.n_failed = 0
        self._can_cut = can_cut
        self.on_written: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._kept: list[Kept] = []  # guarded; the one used last at the end
        self._failed_s = -RETRY_S
        self._writer: threading.Thread | None = None
        self._index()

    def _index(self) -> None:
        n_foreign = 0
        for path in sorted(self.folder.kept.glob("*" + SUFFIX), key=_used_s):
            try:
                head = read_head(path)
            except FileError as error:
                log.warning("%s: deleted", error)
                self._unlink(path)
                continue
            if head.identity != self.identity:
                n_foreign += 1
                continue
            self._kept.append(Kept(path, head.tokens, tuple(n for n, _ in head.states), head.n_bytes))
        if self._kept:
            log.info("%d kept conversations in %s (%s)", len(self._kept), self.folder.path, format_bytes(self.n_bytes))
        if n_foreign:
            log.info("%d kept conversations are of another model or version: left alone", n_foreign)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def n_bytes(self) -> int:
        """Of all files of the index."""
        with self._lock:
            return sum(kept.n_bytes for kept in self._kept)

    def find(self, tokens: npt.ArrayLike) -> tuple[Kept, int] | None:
        """The file that shares the longest beginning with a prompt, and how many of its tokens can be reused."""
        prompt = np.asarray(tokens, np.int32)
        found, longest = None, 0
        with self._lock:
            for kept in self._kept:
                common = min(count_common(prompt, kept.tokens), len(prompt) - 1)
                n = cut_to(common, None if self._can_cut else (len(kept.tokens), *kept.checkpoints))
                if n > longest:
                    found, longest = kept, n
        return None if found is None else (found, longest)

    def covers(self, tokens: IntArray) -> bool:
        """Whether a file begins with all of these tokens."""
        with self._lock:
            return any(count_common(tokens, kept.tokens) == len(tokens) for kept in self._kept)

    def read(self, kept: Kept) -> Archived | None:
        """A file's contents; None, and the file deleted, where they are not what they were."""
        try:
            contents = read_slot_file(kept.path, self.identity)
            os.utime(kept.path)
        except (FileError, OSError) as error:
            log.warning("%s: deleted", error)
            self.drop(kept)
            return None
        with self._lock:
            if kept in self._kept:
                self._kept.remove(kept)
                self._kept.append(kept)
        self.n_read += 1
        return contents if np.array_equal(contents.tokens, kept.tokens) else None

    # Writing

    @property
    def can_write(self) -> bool:
        """Whether nothing is being written and the disk took what came last."""
        return not (self._writer and self._writer.is_alive()) and time.monotonic() - self._failed_s >= RETRY_S

    def wants(self, tokens: IntArray) -> bool:
        """Whether a conversation is worth writing."""
        return len(tokens) >= HOLD_TOKENS and not self.covers(tokens)

    def write(self, contents: Archived, *, wait: bool = False) -> None:
        """Write a conversation beside the engine, or before this returns."""

        def work() -> None:
            self._write(contents)
            self.on_written()

        if wait:
            self._write(contents)
            return
        self._writer = threading.Thread(target=work, name="slot-writer", daemon=True)
        self._writer.start()

    def _write(self, contents: Archived) -> None:
        digest = hashlib.sha256(repr(self.identity).encode() + contents.tokens.tobytes()).hexdigest()[:32]
        path = self.folder.kept / (digest + SUFFIX)
        try:
            n_bytes = write_slot_file(path, self.identity, contents)
        except OSError as error:
            log.warning("a conversation could not be kept in %s: %s", self.folder.path, error.strerror)
            self.n_failed += 1
            self._failed_s = time.monotonic()
            return
        with self._lock:
            shorter = [k for k in self._kept if count_common(k.tokens, contents.tokens) == len(k.tokens)]
            self._kept.append(Kept(path, contents.tokens, tuple(contents.states), n_bytes))
            self.n_written += 1
        for kept in shorter:
            self.drop(kept)
        while len(self._kept) > 1 and self.n_bytes > self.bound_bytes:
            self.drop(self._kept[0])

    def drop(self, kept: Kept) -> None:
        """Forget a file and delete it."""
        with self._lock:
            if kept in self._kept:
                self._kept.remove(kept)
        if all(kept.path != other.path for other in self._kept):
            self._unlink(kept.path)

    def _unlink(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            path.unlink()

    def wait(self) -> None:
        """Until nothing is being written."""
        if self._writer is not None:
            self._writer.join()

    def close(self) -> None:
        """Wait for what is being written and give the folder up."""
        self.wait()
        self.folder.close()


def _used_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
