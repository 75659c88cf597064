"""Keeps the text that people write from becoming control tokens when a template is rendered.

Templates take strings apart, so what people write cannot be wrapped. Instead every spelling of a control token in it is
broken with one noncharacter after its first character; what the template then renders is split at the spellings that
are still whole, which only the template's own text can have brought, and the noncharacter is dropped from the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from phobos.errors import RequestError
from phobos.gguf.spellings import SpellingFinder

# Code points that Unicode keeps free for a program's own use inside.
_NONCHARACTERS = tuple(chr(point) for point in range(0xFDD0, 0xFDF0))
_ANY_NONCHARACTER = re.compile("[\ufdd0-\ufdef]")
_MARKUP = frozenset("<>|[]｜{}")


class ControlText:
    """The spellings of one vocabulary's control tokens. Immutable.

    Text can also become a control token together with what a template writes beside it, so a text that is, begins or
    ends with a part of a spelling (two characters or more, markup among them) is broken there too.
    """

    def __init__(self, spellings: Iterable[str]) -> None:
        self._finder = SpellingFinder(spellings)
        self._heads: set[str] = set()
        self._tails: set[str] = set()
        for text in self._finder.spellings:
            for n in range(2, len(text)):
                self._heads.add(text[:n])
                self._tails.add(text[-n:])
        self._longest = max(map(len, self._finder.spellings), default=0)
        self._joined = "\n".join(self._finder.spellings)

    def choose_breaker(self, texts: Iterable[str]) -> str:
        """A noncharacter that none of the texts holds."""
        used: set[str] = set()
        for text in texts:
            if not text.isascii():
                used.update(_ANY_NONCHARACTER.findall(text))
        free = next((char for char in _NONCHARACTERS if char not in used), None)
        if free is None:
            raise RequestError(
                "the messages use all of Unicode's noncharacters U+FDD0 to U+FDEF: remove one of them",
                code="invalid_message",
                param="messages",
            )
        return free

    def break_text(self, text: str, breaker: str, keep: frozenset[str] = frozenset()) -> str:
        """The text with every spelling broken, but for those in `keep`."""
        parts: list[str] = []
        done = 0
        for start, end in self._finder.find(text):
            if text[start:end] not in keep:
                parts += (text[done : start + 1], breaker)
                done = start + 1
        broken = "".join((*parts, text[done:])) if parts else text
        return self._break_ends(broken, breaker, keep)

    def _break_ends(self, text: str, breaker: str, keep: frozenset[str]) -> str:
        if len(text) < 2:
            return text
        if len(text) < self._longest and _MARKUP.intersection(text) and text in self._joined and text not in keep:
            return text[0] + breaker + text[1:]
        longest = min(self._longest, len(text))
        head = next((n for n in range(longest, 1, -1) if text[-n:] in self._heads), 0)
        if head and _MARKUP.intersection(text[-head:]):
            text = text[: len(text) - head + 1] + breaker + text[len(text) - head + 1 :]
        tail = next((n for n in range(longest, 1, -1) if text[:n] in self._tails), 0)
        if tail and _MARKUP.intersection(text[:tail]):
            text = text[0] + breaker + text[1:]
        return text

    def break_value(self, value: Any, breaker: str) -> Any:
        """A copy of a JSON value with all its text broken, keys too."""
        if isinstance(value, str):
            return self.break_text(value, breaker)
        if isinstance(value, Mapping):
            return {self.break_value(key, breaker): self.break_value(item, breaker) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.break_value(item, breaker) for item in value]
        return value

    def split(self, rendered: str, breaker: str) -> list[tuple[str, bool]]:
        """Runs of a rendered text, each with whether it is a control token; plain runs come back without breaker."""
        runs: list[tuple[str, bool]] = []
        for text, is_control in self._finder.split(rendered):
            plain = text if is_control else text.replace(breaker, "")
            if plain:
                runs.append((plain, is_control))
        return runs


def texts_of(value: Any) -> Iterable[str]:
    """All text inside a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from texts_of(key)
            yield from texts_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_of(item)
