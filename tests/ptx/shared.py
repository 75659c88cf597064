"""Shared memory of the blocks that `ptx_machine.py` runs at once, watched: a word that one warp writes and another
reads or writes with no barrier between is an error, and so is touching what an asynchronous copy has not brought yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any
_SEVERAL = -2  # as the warp that read a word
_OPEN = 1 << 30  # the number of a group that is not closed


@dataclass
class _Copy:
    """Bytes on their way: of which threads, to which places, and each thread's number of the group."""

    threads: np.ndarray
    places: np.ndarray
    data: np.ndarray
    groups: np.ndarray


class SharedMemory:
    """`bytes` are those of all blocks, one after another; a place is an index into them."""

    def __init__(self, n_blocks: int, n_bytes: int, n_threads: int) -> None:
        self.block_bytes = max(16, -(-n_bytes // 16) * 16)
        self.bytes = np.zeros(n_blocks * self.block_bytes, np.uint8)
        n_words = len(self.bytes) // 4
        self._turn = 0  # barriers passed
        self._written, self._read = np.full(n_words, -1), np.full(n_words, -1)  # the turn of the last time
        self._writer, self._reader = np.full(n_words, -1), np.full(n_words, -1)  # its warp
        self._flying = np.zeros(n_words, bool)
        self._copies: list[_Copy] = []
        self._n_groups = np.zeros(n_threads, np.int64)

    def pass_barrier(self) -> None:
        """What came before is there for all of a block."""
        self._turn += 1

    def note_read(self, places: np.ndarray, size: int, warps: np.ndarray) -> None:
        """Warps read `size` bytes each."""
        for word, warp in self._words(places, size, warps):
            foreign = (self._written[word] == self._turn) & (self._writer[word] != warp)
            assert not foreign.any(), "a word is read that another warp wrote with no barrier between"
            several = (self._read[word] == self._turn) & (self._reader[word] != warp)
            self._reader[word] = warp
            several |= self._reader[word] != warp
            self._reader[word[several]] = _SEVERAL
            self._read[word] = self._turn

    def note_write(self, places: np.ndarray, size: int, warps: np.ndarray) -> None:
        """Warps write `size` bytes each."""
        for word, warp in self._words(places, size, warps):
            self._check_write(word, warp)
            self._written[word], self._writer[word] = self._turn, warp
            assert (self._writer[word] == warp).all(), "two warps write a word at once"

    def _words(self, places: np.ndarray, size: int, warps: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        found = [(places // 4 + i, warps) for i in range(-(-size // 4))]
        assert not any(self._flying[word].any() for word, _ in found), "a word is touched that a copy is to bring"
        return found

    def _check_write(self, word: np.ndarray, warp: np.ndarray) -> None:
        written = (self._written[word] == self._turn) & (self._writer[word] != warp)
        read = (self._read[word] == self._turn) & (self._reader[word] != warp)
        assert not (written | read).any(), "a word is written that another warp used with no barrier between"

    # Asynchronous copies

    def begin_copy(self, threads: np.ndarray, places: np.ndarray, data: np.ndarray) -> None:
        """Rows of bytes, one a thread, that arrive some time before their group has been waited for."""
        for word, warp in self._words(places, data.shape[1], threads // 32):
            self._check_write(word, warp)
            self._flying[word] = True
        self._copies.append(_Copy(threads, places, data, np.full(len(threads), _OPEN)))

    def close_group(self, active: np.ndarray) -> None:
        """What threads have begun to copy since they last did this is a group."""
        for copy in self._copies:
            mine = active[copy.threads] & (copy.groups == _OPEN)
            copy.groups[mine] = self._n_groups[copy.threads[mine]]
        self._n_groups[active] += 1

    def wait(self, n_left: int, active: np.ndarray) -> None:
        """All but the latest `n_left` groups of threads arrive."""
        left = []
        for copy in self._copies:
            done = active[copy.threads] & (copy.groups < self._n_groups[copy.threads] - n_left)
            places, data = copy.places[done], copy.data[done]
            self.bytes[places[:, None] + np.arange(data.shape[1])] = data
            for i in range(0, data.shape[1], 4):
                word = (places + i) // 4
                self._flying[word] = False
                self._written[word], self._writer[word] = self._turn, copy.threads[done] // 32
            if not done.all():
                left.append(_Copy(copy.threads[~done], copy.places[~done], copy.data[~done], copy.groups[~done]))
        self._copies = left
