"""Reads text that arrives in pieces, as if it were all there.

Parsers are generators: they yield where they need a character that has not come yet, so they are written straight
down and see the same text however it was cut. A parser raises `Mismatch` at the first character that does not fit.
JSON is checked as it is copied; its text is passed on as it was written, so that numbers keep every digit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")
Parse = Generator[None, None, T]
Add = Callable[[str], None]

MAX_DEPTH = 64
MAX_HELD = 4096  # characters that may be held back before it is clear that they are a call
SPACES = " \t\r\n"


class Mismatch(Exception):  # noqa: N818 - it is an outcome of parsing, not an error
    """The text is not what the parser reads."""


class Reader:
    """The text that has come and how far it was read. `ended`: no more will come. Owned by one scanner."""

    def __init__(self) -> None:
        self._text = ""
        self._base = 0  # the position of the first character kept
        self._at = 0
        self.ended = False

    @property
    def position(self) -> int:
        """Characters read so far."""
        return self._base + self._at

    @property
    def rest(self) -> str:
        """What has come and was not read."""
        return self._text[self._at :]

    def feed(self, text: str, keep_from: int) -> None:
        """More text has come; characters before `keep_from` may be forgotten."""
        drop = max(0, min(keep_from - self._base, self._at))
        self._text = self._text[drop:] + text
        self._base += drop
        self._at -= drop

    def text_from(self, position: int) -> str:
        """The text from a position that is still kept."""
        return self._text[max(0, position - self._base) :]

    def seek(self, position: int) -> None:
        """Go back to a position that is still kept."""
        self._at = position - self._base

    def match(self, pattern: re.Pattern[str]) -> str:
        """What the pattern matches at the place, of the text that has come; it is not read."""
        found = pattern.match(self._text, self._at)
        return found.group() if found else ""

    def advance(self, n_chars: int) -> str:
        """Read characters that have come."""
        taken = self._text[self._at : self._at + n_chars]
        self._at += len(taken)
        return taken

    def peek(self) -> Parse[str]:
        """The next character; nothing at the end."""
        while self._at >= len(self._text):
            if self.ended:
                return ""
            yield
        return self._text[self._at]

    def take(self) -> Parse[str]:
        """Read the next character. Raises `Mismatch` at the end."""
        char = yield from self.peek()
        if not char:
            raise Mismatch
        self._at += 1
        return char

    def spaces(self) -> Parse[str]:
        """Read white space, if any."""
        found = ""
        while (char := (yield from self.peek())) and char in SPACES:
            found += self.advance(1)
        return found

    def comes(self, text: str) -> Parse[bool]:
        """Whether this text comes next; nothing is read."""
        while True:
            rest = self._text[self._at : self._at + len(text)]
            if rest == text:
                return True
            if self.ended or not text.startswith(rest):
                return False
            yield

    def skip(self, text: str, *, cut: bool = False) -> Parse[bool]:
        """Read this text if it comes next; else leave all as it is. `cut`: its beginning will do where nothing more
        comes."""
        found = yield from self.comes(text)
        if not found and cut and self.ended:
            rest = self.rest
            found = bool(rest) and text.startswith(rest)
        if found:
            self.advance(len(text))
        return found

    def literal(self, text: str) -> Parse[None]:
        """Read exactly this text; nothing is read where it does not come."""
        if not (yield from self.skip(text)):
            raise Mismatch

    def loose(self, text: str) -> Parse[None]:
        """Read this text, with any white space, or none, where it has some and at its ends."""
        yield from self.spaces()
        for word in text.split():
            yield from self.literal(word)
            yield from self.spaces()

    def until(self, ends: tuple[str, ...], add: Add, *, limit: int | None = None) -> Parse[str]:
        """Pass text on as it comes, up to the first of `ends`, which is read too and returned. Of those that begin at
        one place the first given counts. Raises `Mismatch` where the text ends first or is longer than `limit`."""
        n_read = 0
        while True:
            rest = self.rest
            place, found = min(((i, end) for end in ends if (i := rest.find(end)) >= 0), default=(-1, ""), key=_first)
            if found and (self.ended or not _earlier_may_come(rest, place, ends)):
                n = place
            else:
                n, found = len(rest) - (0 if self.ended else n_suspect(rest, ends)), ""
            n_read += n
            if limit is not None and n_read > limit:
                raise Mismatch
            if n:
                add(self.advance(n))
            if found:
                self.advance(len(found))
                return found
            if self.ended:
                raise Mismatch
            yield


def _first(place: tuple[int, str]) -> int:
    return place[0]


def _earlier_may_come(rest: str, place: int, ends: tuple[str, ...]) -> bool:
    """Whether an end that begins before `place` is still incomplete."""
    n = n_suspect(rest, ends)
    return n > 0 and len(rest) - n < place


def n_suspect(text: str, markers: tuple[str, ...]) -> int:
    """The length of the longest end of the text that begins a marker and is not all of it."""
    longest = 0
    for marker in markers:
        for n in range(min(len(marker) - 1, len(text)), longest, -1):
            if marker.startswith(text[len(text) - n :]):
                longest = n
                break
    return longest


_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_HEX = frozenset("0123456789abcdefABCDEF")


def copy_string(reader: Reader, add: Add) -> Parse[None]:
    """Copy a JSON string with its quotes."""
    yield from reader.literal('"')
    add('"')
    while True:
        char = yield from reader.peek()
        if run := reader.match(_PLAIN):
            add(reader.advance(len(run)))
            continue
        if char == '"':
            add(reader.advance(1))
            return
        if char != "\\":
            raise Mismatch
        escape = reader.advance(1) + (yield from reader.take())
        if escape[1] == "u":
            for _ in range(4):
                digit = yield from reader.take()
                if digit not in _HEX:
                    raise Mismatch
                escape += digit
        elif escape[1] not in '"\\/bfnrt':
            raise Mismatch
        add(escape)


def copy_value(reader: Reader, add: Add, depth: int = 0) -> Parse[None]:
    """Copy a JSON value, checked as it is read."""
    char = yield from reader.peek()
    if char == '"':
        yield from copy_string(reader, add)
    elif char in ("{", "[") and depth < MAX_DEPTH:
        add(reader.advance(1))
        yield from copy_members(reader, add, "}" if char == "{" else "]", depth + 1)
    elif char and char in "-0123456789":
        number = ""
        while (char := (yield from reader.peek())) and char in "+-.0123456789eE":
            number += reader.advance(1)
        if not _NUMBER.fullmatch(number):
            raise Mismatch
        add(number)
    else:
        word = {"t": "true", "f": "false", "n": "null"}.get(char)
        if word is None:
            raise Mismatch
        yield from reader.literal(word)
        add(word)


def copy_members(reader: Reader, add: Add, close: str, depth: int) -> Parse[None]:
    """Copy the rest of an object or array whose bracket has been read."""

    def copy_spaces() -> Parse[None]:
        if spaces := (yield from reader.spaces()):
            add(spaces)

    yield from copy_spaces()
    if (yield from reader.peek()) == close:
        add(reader.advance(1))
        return
    while True:
        if close == "}":
            yield from copy_string(reader, add)
            yield from copy_spaces()
            yield from reader.literal(":")
            add(":")
            yield from copy_spaces()
        yield from copy_value(reader, add, depth)
        yield from copy_spaces()
        char = yield from reader.peek()
        if char not in (",", close):
            raise Mismatch
        add(reader.advance(1))
        if char == close:
            return
        yield from copy_spaces()


def read_string(reader: Reader) -> Parse[str]:
    """The value of a JSON string of moderate length."""
    parts: list[str] = []

    def add(piece: str) -> None:
        parts.append(piece)
        if sum(map(len, parts)) > MAX_HELD:
            raise Mismatch

    yield from copy_string(reader, add)
    value: str = json.loads("".join(parts))
    return value


def read_value(reader: Reader) -> Parse[str]:
    """The text of a JSON value of moderate length."""
    parts: list[str] = []

    def add(piece: str) -> None:
        parts.append(piece)
        if sum(map(len, parts)) > MAX_HELD:
            raise Mismatch

    yield from copy_value(reader, add)
    return "".join(parts)


def quote(text: str) -> str:
    """The inside of a JSON string that stands for this text."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
