"""Brings a bound answer to its end when its tokens run out.

How many tokens the end needs is found by walking to it: closing what is open, with the shortest value wherever one is
required. Near that number, tokens of JSON that close something are taken before those that go on, and those that go on
before those that open something new; at it, the walk's own tokens are taken. So the answer is whole, if short, where it
would have been cut off; the finish reason still says that the limit ended it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from phobos.kernels.backend import IntArray

RESERVE = 24  # tokens kept for what a single token may add to the end, beside the names that a schema requires
WINDOW = 12  # the same where only tokens are taken that open nothing
MAX_NAMES = 200  # tokens kept for the names that a schema requires
MAX_WALK = 600  # tokens of the longest end that is looked for
MAX_SKIPPED = 3  # tokens of a known way that another token may stand for


@dataclass(frozen=True)
class TokenClasses:
    """Masks of tokens by their text: only closing brackets; a quotation mark and then only those; any opening one;
    a comma; one digit. `word_order` gives each token of letters its place among them, the longest first, and others
    the vocabulary's size; `signs` are those of one printable character, letters and digits last."""

    brackets: IntArray
    quotes: IntArray
    opening: IntArray
    commas: IntArray
    digits: IntArray
    word_order: IntArray
    signs: tuple[int, ...]


def classify(pieces: list[bytes], mask_of: Callable[[list[int]], IntArray]) -> TokenClasses:
    """The classes of a vocabulary; a pass over all its pieces."""
    brackets, quotes, opening, commas, digits, words, signs = [], [], [], [], [], [], []
    for i, piece in enumerate(pieces):
        if b"{" in piece or b"[" in piece:
            opening.append(i)
        elif piece and not piece.strip(b"}]"):
            brackets.append(i)
        elif piece[:1] == b'"' and not piece[1:].strip(b"}]"):
            quotes.append(i)
        elif piece.strip() == b",":
            commas.append(i)
        elif len(piece) == 1 and piece.isdigit():
            digits.append(i)
        if piece.strip(b" ").isalpha():
            words.append(i)
        if len(piece) == 1 and b" " <= piece <= b"~":
            signs.append(i)
    words.sort(key=lambda i: len(pieces[i]), reverse=True)
    word_order = np.full(len(pieces), len(pieces), np.int32)
    word_order[words] = np.arange(len(words))
    signs.sort(key=lambda i: pieces[i].isalnum())
    return TokenClasses(
        mask_of(brackets),
        mask_of(quotes),
        mask_of(opening),
        mask_of(commas),
        mask_of(digits),
        word_order,
        tuple(signs),
    )


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

    def steer(self, mask: IntArray, classes: TokenClasses, ends: IntArray) -> IntArray:
        """The part of a mask that brings the end nearer; all of it where no part does."""
        parts = [ends, classes.quotes] if self.in_string else [ends, classes.brackets, ~classes.opening]
        return _first_part(mask, parts)


def _first_part(mask: IntArray, parts: Sequence[IntArray]) -> IntArray:
    for part in parts:
        chosen = mask & part
        if chosen.any():
            return chosen
    return mask


def _members(mask: IntArray) -> IntArray:
    """The tokens of a mask, rising; quick where they are few."""
    at = np.flatnonzero(mask)
    rows, bits = np.nonzero(np.unpackbits(mask[at].view(np.uint8), bitorder="little").reshape(-1, 32))
    members: IntArray = (32 * at[rows] + bits).astype(np.int32)
    return members


def _is_text(mask: IntArray) -> bool:
    """Whether most tokens may follow, as they may in a text."""
    return int(np.bitwise_count(mask.view(np.uint32)).sum()) > 16 * mask.size


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


class Words(Protocol):
    """What the walk needs of a model's grammars."""

    @property
    def classes(self) -> TokenClasses: ...
    def encode(self, text: bytes) -> list[int]: ...
    def piece(self, token_id: int) -> bytes: ...
    def compute_mask(self, matcher: Any) -> IntArray: ...


@dataclass(frozen=True)
class Closers:
    """What ends the parts of an answer: `texts`, innermost first; and, `is_json`, the signs of JSON."""

    texts: tuple[str, ...] = ()
    is_json: bool = False


def find_end(
    matcher: Any, state: JsonState, words: Words, closers: Closers, *, most: int = MAX_WALK
) -> list[int] | None:
    """Tokens that end an answer, few if not the fewest; None where `most` were not enough."""
    best: list[int] | None = None
    for by_length in (True, False):
        walk = _Walk(matcher, state, words, closers, by_length)
        path = walk.run(most if best is None else len(best) - 1)
        best = path if path is not None else best
        if best is not None and not walk.wrote_text:  # the other way is the same
            break
    return None if best is None else _join(matcher, words, best)


def _join(matcher: Any, words: Words, path: list[int]) -> list[int]:
    """The tokens which the tokenizer would choose for a way's text, as a model does: often half as many."""
    joined = words.encode(b"".join(words.piece(token) for token in path))
    return joined if len(joined) < len(path) and _ends(matcher, joined) else path


def _ends(matcher: Any, path: list[int]) -> bool:
    """Whether tokens bring the answer to its end."""
    if matcher.validate_tokens(path) < len(path):
        return False
    ahead = matcher.deep_copy()
    return bool(ahead.consume_tokens(path) and ahead.is_accepting())


class _Walk:
    """One way to an end. Where a text has to go on it takes the longest words, or signs it has not taken before: the
    one meets a least length, the other a pattern."""

    def __init__(self, matcher: Any, state: JsonState, words: Words, closers: Closers, by_length: bool) -> None:
        self._matcher = matcher.deep_copy()
        self._state = copy.copy(state)
        self._words = words
        self._is_json = closers.is_json
        self._closers = [words.encode(text.encode()) for text in closers.texts]
        self._by_length = by_length
        self._used: set[int] = set()
        self.wrote_text = False  # whether it chose what `by_length` decides

    def run(self, most: int) -> list[int] | None:
        """The tokens; None where `most` were not enough."""
        path: list[int] = []
        while not self._matcher.is_accepting():
            tokens = self._matcher.compute_ff_tokens() or self._choose()
            if not tokens or len(path) + len(tokens) > most or not self._matcher.consume_tokens(tokens):
                return None
            for token in tokens:
                self._state.push(self._words.piece(token))
            path += tokens
        return path

    def _choose(self) -> list[int]:
        mask = self._words.compute_mask(self._matcher)
        classes = self._words.classes
        if self._is_json and self._state.in_string:
            return self._pick(_first_part(mask, [classes.quotes]))
        for closer in self._closers:
            if self._closes(closer, mask):
                return closer
        parts = [classes.commas, classes.digits]
        if self._is_json:
            parts = [classes.brackets, *parts, classes.quotes, ~classes.opening]
        return self._pick(_first_part(mask, parts))

    def _closes(self, closer: list[int], mask: IntArray) -> bool:
        """Whether a text ends something here, and is not merely part of a text."""
        if self._matcher.validate_tokens(closer) < len(closer):
            return False
        ahead = self._matcher.deep_copy()
        ahead.consume_tokens(closer)
        if ahead.is_accepting():
            return True
        behind = self._words.compute_mask(ahead)
        return bool((behind != mask).any()) and not (_is_text(behind) and _is_text(mask))

    def _pick(self, mask: IntArray) -> list[int]:
        """A token of the mask."""
        classes = self._words.classes
        ids = _members(mask)
        if not ids.size:
            return []
        first = ids[classes.word_order[ids].argmin()]
        long = [int(first)] if classes.word_order[first] < classes.word_order.size else []
        new = [i for i in classes.signs if i not in self._used and mask[i >> 5] >> (i & 31) & 1][:1]
        self.wrote_text |= bool(long)
        chosen: list[int] = (long or new if self._by_length else new or long) or ids[:1].tolist()
        self._used.update(chosen)
        return chosen


class Ending:
    """Sees to it that one answer can end within its tokens. Used by its `Binding`.

    `n_names` is about how many tokens required names take, `n_least` how many tokens the shortest answer has.
    """

    def __init__(self, words: Words, closers: Closers, n_names: int, n_least: int) -> None:
        self._words = words
        self._closers = closers
        self._slack = RESERVE + max(n_names, n_least)
        self._n_names = n_names
        self._path: list[int] | None = None
        self._left_path: list[int] | None = None  # the way that the last token left
        self._next_check: int | None = None  # tokens left at which the end is looked for again

    def accept(self, token: int) -> None:
        """The token was chosen."""
        path = self._path
        if path is not None:
            self._path, self._left_path = (path[1:], None) if path[:1] == [token] else (None, path)

    def steer(
        self, mask: IntArray, matcher: Any, state: JsonState, ends: IntArray, *, n_left: int, n_allowed: int
    ) -> IntArray | int:
        """The part of a mask to choose from with `n_left` of `n_allowed` tokens, or the one token to take."""
        if self._path is None and self._next_check is not None and n_left > self._next_check:
            return mask
        if self._path is None:
            self._path = self._rejoin(matcher)
        if self._path is None:
            self._path = find_end(matcher, state, self._words, self._closers, most=min(MAX_WALK, n_left))
        n_needed = 2 * state.depth + self._n_names if self._path is None else len(self._path)
        is_json = self._closers.is_json
        near = max(n_needed + WINDOW, min(n_needed + self._slack, n_allowed // 2))
        self._next_check = n_left - 1 if n_left <= near else n_left - 1 - (n_left - near) // 6
        if n_left > near:
            self._path = None
            return mask
        is_within = is_json and (state.in_string or (state.depth > 0 and not self._closes_a_section()))
        if self._path and (not is_within or n_left <= n_needed + WINDOW):
            return self._path[0]
        return state.steer(mask, self._words.classes, ends) if is_within else mask

    def _rejoin(self, matcher: Any) -> list[int] | None:
        """What is left of the way that the last token left, where it leads to the end from here as well: most tokens
        only go on with a text, or close it in another way, and a new walk would take some hundred times as long."""
        path, self._left_path = self._left_path, None
        if path is None:
            return None
        for skipped in range(min(MAX_SKIPPED, len(path)) + 1):
            rest = path[skipped:]
            if _ends(matcher, rest):
                return rest
        return None

    def _closes_a_section(self) -> bool:
        """Whether the way to the end goes by the end of a section, where another call could begin instead."""
        path = self._path or []
        ends = (self._words.encode(text.encode()) for text in self._closers.texts)
        return any(path[: len(end)] == end for end in ends)
