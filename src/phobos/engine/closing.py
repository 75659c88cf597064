"""Brings JSON to its end when its tokens run out.

Near the limit of an answer that must be JSON, the tokens that close something are taken before those that go on, and
those that go on before those that open something new. So the answer is whole, if short, where it would have been cut
off; the finish reason still says that the limit ended it. What is near is judged by what is open and by the names that
the schema requires.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from phobos.kernels.backend import IntArray

RESERVE = 24  # tokens kept for the end of a value, beside what is open and required
MAX_NAMES = 200  # tokens kept for the names that a schema requires


@dataclass(frozen=True)
class TokenClasses:
    """Masks of tokens by their text: only closing brackets; a quotation mark and then only those; any opening one."""

    brackets: IntArray
    quotes: IntArray
    opening: IntArray


def classify(pieces: list[bytes], mask_of: Callable[[list[int]], IntArray]) -> TokenClasses:
    """The classes of a vocabulary; a pass over all its pieces."""
    brackets, quotes, opening = [], [], []
    for i, piece in enumerate(pieces):
        if b"{" in piece or b"[" in piece:
            opening.append(i)
        elif piece and not piece.strip(b"}]"):
            brackets.append(i)
        elif piece[:1] == b'"' and not piece[1:].strip(b"}]"):
            quotes.append(i)
    return TokenClasses(mask_of(brackets), mask_of(quotes), mask_of(opening))


class JsonState:
    """Where in a JSON text the answer stands: how many brackets are open, and whether a string is."""

    def __init__(self) -> None:
        self.depth = 0
        self.in_string = False
        self._escaped = False

    def push(self, data: bytes) -> None:
        """The next bytes of the text."""
        for byte in data:
            if self._escaped:
                self._escaped = False
            elif self.in_string:
                self._escaped = byte == 0x5C
                self.in_string = byte != 0x22
            elif byte == 0x22:
                self.in_string = True
            elif byte in b"{[":
                self.depth += 1
            elif byte in b"}]":
                self.depth -= 1

    def is_near(self, n_left: int, n_allowed: int, n_names: int) -> bool:
        """Whether the end should be made for, with `n_left` tokens of the `n_allowed`."""
        reserve = RESERVE + 2 * self.depth + n_names
        return n_left <= min(reserve, n_allowed // 2)

    def steer(self, mask: IntArray, classes: TokenClasses, ends: IntArray) -> IntArray:
        """The part of a mask that brings the end nearer; all of it where no part does."""
        parts = [ends, classes.quotes] if self.in_string else [ends, classes.brackets, ~classes.opening]
        for part in parts:
            chosen = mask & part
            if chosen.any():
                return chosen
        return mask


def count_names(schema: Any) -> int:
    """About how many tokens the names take that a schema requires."""
    n_chars = 0
    level = [schema]
    while level:
        inner: list[Any] = []
        for item in level:
            if isinstance(item, Mapping):
                required = item.get("required")
                if isinstance(required, list):
                    n_chars += len(json.dumps(required, default=str)) + 4 * len(required)
                inner += item.values()
            elif isinstance(item, list):
                inner += item
        level = [item for item in inner if isinstance(item, Mapping | list)]
    return min(n_chars // 2, MAX_NAMES)
