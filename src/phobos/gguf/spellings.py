"""Finds the spellings of given tokens in a text: leftmost first, the longest of those that begin there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator


class SpellingFinder:
    """Immutable after construction, so it may be shared by threads.

    A vocabulary can have thousands of added tokens, and one regular expression of them all is slow to compile and to
    run. So a small expression finds where the common beginning of a group occurs, and a set decides.
    """

    def __init__(self, spellings: Iterable[str]) -> None:
        self.spellings = frozenset(text for text in spellings if text)
        groups: dict[str, list[str]] = {}
        for text in self.spellings:
            groups.setdefault(text[0], []).append(text)
        self._lengths: dict[str, list[int]] = {
            first: sorted({len(text) for text in group}, reverse=True) for first, group in groups.items()
        }
        stems = map(_common_start, groups.values())
        self._stems = re.compile("|".join(map(re.escape, stems))) if groups else None

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """Start and end of each spelling, without overlaps."""
        if self._stems is None:
            return
        search, lengths, spellings = self._stems.search, self._lengths, self.spellings
        at = 0
        while match := search(text, at):
            at = match.start()
            for length in lengths[text[at]]:
                found = text[at : at + length]
                if found in spellings:
                    yield at, at + len(found)
                    at += len(found)
                    break
            else:
                at += 1

    def split(self, text: str) -> Iterator[tuple[str, bool]]:
        """The whole text in order: pieces, each with whether it is a spelling. No piece is empty."""
        done = 0
        for start, end in self.find(text):
            if start > done:
                yield text[done:start], False
            yield text[start:end], True
            done = end
        if done < len(text):
            yield text[done:], False


def _common_start(texts: list[str]) -> str:
    """The longest beginning that all share; it is the one of the first and the last in order."""
    first, last = min(texts), max(texts)
    length = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:length]
