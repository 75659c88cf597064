"""Conversations that gave way to others, kept whole in plain memory and found again by how they begin.

Entries are what `Backend.save` gave of a slot, with its tokens and checkpoints. Together they take no more than the
archive's bound; the one not used for longest goes first. An entry that begins another one says nothing new and goes as
soon as the longer one is there. Belongs to the engine thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from phobos.engine.slots.cache import HOLD_TOKENS, count_common, cut_to
from phobos.kernels.backend import IntArray
from phobos.settings import EngineSettings

ARCHIVE_SHARE = 0.25  # of the memory that is free beside weights and cache, unless the settings say more or less
MOST_BYTES = 4 << 30  # taken so


def choose_archive_bytes(settings: EngineSettings, free_bytes: int | None) -> int:
    """What the archive may take: as the settings say, else a share of `free_bytes`; nothing where prefixes are not to
    be reused or the system does not tell what is free."""
    if not settings.prefix_cache:
        return 0
    if settings.archive_bytes is not None:
        return settings.archive_bytes
    return 0 if free_bytes is None else max(0, min(MOST_BYTES, int(free_bytes * ARCHIVE_SHARE)))


@dataclass(eq=False)
class Archived:
    """One conversation: its tokens, its slot's contents after all of them, and the checkpoints on the way."""

    tokens: IntArray
    data: bytes
    states: Mapping[int, bytes] = field(default_factory=dict)

    @property
    def n_bytes(self) -> int:
        """Memory it takes."""
        return len(self.data) + self.tokens.nbytes + sum(len(state) for state in self.states.values())


class Archive:
    """See the module. `bound_bytes` 0 keeps nothing; `can_cut` as the backend's limits say."""

    def __init__(self, bound_bytes: int, *, can_cut: bool = True) -> None:
        self.bound_bytes = bound_bytes
        self.n_bytes = 0
        self._can_cut = can_cut
        self._entries: dict[int, Archived] = {}  # by identity, the one used last at the end
        self._by_start: dict[bytes, list[Archived]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Archived]:
        return iter(self._entries.values())

    def find(self, tokens: npt.ArrayLike) -> tuple[Archived, int] | None:
        """The entry that shares the longest beginning with a prompt, and how many of its tokens can be reused."""
        prompt = np.asarray(tokens, np.int32)
        found, longest = None, 0
        for entry in self._by_start.get(_start(prompt), ()):
            common = min(count_common(prompt, entry.tokens), len(prompt) - 1)
            restarts = None if self._can_cut else (len(entry.tokens), *entry.states)
            if cut_to(common, restarts) > longest:
                found, longest = entry, cut_to(common, restarts)
        return None if found is None else (found, longest)

    def covers(self, tokens: npt.ArrayLike) -> bool:
        """Whether an entry begins with all of these tokens."""
        wanted = np.asarray(tokens, np.int32)
        return any(
            count_common(wanted, entry.tokens) == len(wanted) for entry in self._by_start.get(_start(wanted), ())
        )

    def put(self, tokens: IntArray, n_bytes: int, save: Callable[[], bytes], states: Mapping[int, bytes]) -> bool:
        """Keep a conversation of at most `n_bytes`; its contents come from `save`, once there is room for them.
        False where it is too short to be worth it, too large, or there already."""
        n_bytes += tokens.nbytes + sum(len(state) for state in states.values())
        if len(tokens) < HOLD_TOKENS or n_bytes > self.bound_bytes or self.covers(tokens):
            return False
        for entry in list(self._by_start.get(_start(tokens), ())):
            if count_common(tokens, entry.tokens) == len(entry.tokens):
                self.drop(entry)
        while self.n_bytes + n_bytes > self.bound_bytes:
            self.drop(next(iter(self._entries.values())))
        entry = Archived(tokens.copy(), save(), dict(states))
        self._entries[id(entry)] = entry
        self._by_start.setdefault(_start(tokens), []).append(entry)
        self.n_bytes += entry.n_bytes
        return True

    def touch(self, entry: Archived) -> None:
        """It was used."""
        if id(entry) in self._entries:
            self._entries[id(entry)] = self._entries.pop(id(entry))

    def drop(self, entry: Archived) -> None:
        """Forget it."""
        if self._entries.pop(id(entry), None) is None:
            return
        start = _start(entry.tokens)
        self._by_start[start].remove(entry)
        if not self._by_start[start]:
            del self._by_start[start]
        self.n_bytes -= entry.n_bytes


def _start(tokens: IntArray) -> bytes:
    return tokens[:HOLD_TOKENS].tobytes()
