"""Stop strings: found in text that arrives in pieces, and nothing of one ever delivered.

Owns the text that might be the beginning of a stop string. The text arrives as cells, each a token's share of it; a
cell with log-probabilities is delivered whole, or cut where a stop string begins. The outcome does not depend on how
the text was cut into cells: the first stop string to be complete wins, of those complete at once the longest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from phobos.chat.events import TokenLogprob


@dataclass(frozen=True)
class Cell:
    """A piece of text, and the token it came from where log-probabilities are wanted."""

    text: str
    entry: TokenLogprob | None = None

    def cut(self, n_chars: int) -> Cell:
        """The first characters only; the entry then tells of these alone."""
        text = self.text[:n_chars]
        return Cell(text, self.entry and truncate_entry(self.entry, text))


def truncate_entry(entry: TokenLogprob, text: str) -> TokenLogprob:
    """The entry of a token of which the client receives only `text`."""
    if entry.text == text:
        return entry
    data = text.encode()
    top = tuple(replace(t, text=text, data=data) if t.token_id == entry.token_id else t for t in entry.top)
    return replace(entry, text=text, data=data, top=top)


class StopMatcher:
    """Holds text back while it may begin a stop string.

    With `ignore_leading`, stop strings before the first character that is no white space are dropped and do not
    stop. Once `matched` is set, everything after it is nothing.
    """

    def __init__(self, stops: Iterable[str], *, ignore_leading: bool = False) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._leading = ignore_leading
        self._held: list[Cell] = []
        self._text = ""
        self.matched: str | None = None

    def push(self, cell: Cell) -> list[Cell]:
        """Take the next cell; return those that are safe to deliver."""
        if self.matched is not None:
            return []
        if not self._stops:
            return [cell]
        self._held.append(cell)
        self._text += cell.text
        while (match := self._find()) is not None:
            end, start, stop = match
            if self._leading and not self._text[:start].strip():
                self._remove(start, end)
                continue
            self.matched = stop
            released = self._take(start)
            self._held, self._text = [], ""
            return released
        return self._take_whole(len(self._text) - self._n_suspect())

    def flush(self) -> list[Cell]:
        """The text has ended, or something else comes in between: what was held is no stop string."""
        released, self._held, self._text = self._held, [], ""
        self._note(released)
        return released

    def _find(self) -> tuple[int, int, str] | None:
        """(end, start, stop string) of the match that is complete first."""
        found = []
        for stop in self._stops:
            start = self._text.find(stop)
            if start >= 0:
                found.append((start + len(stop), start, stop))
        return min(found, default=None)

    def _n_suspect(self) -> int:
        """The length of the longest end of the text that begins a stop string."""
        text = self._text
        longest = 0
        for stop in self._stops:
            for n in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:n]):
                    longest = n
                    break
        return longest

    def _remove(self, start: int, end: int) -> None:
        """Drop characters out of the held text."""
        kept, place = [], 0
        for cell in self._held:
            low, high = max(start - place, 0), max(end - place, 0)
            text = cell.text[:low] + cell.text[high:]
            place += len(cell.text)
            if text == cell.text:
                kept.append(cell)
            elif text:
                kept.append(Cell(text, cell.entry and truncate_entry(cell.entry, text)))
        self._held = kept
        self._text = self._text[:start] + self._text[end:]

    def _take(self, n_chars: int) -> list[Cell]:
        """Take exactly `n_chars` characters off the front, cutting the last cell."""
        released = []
        while n_chars > 0:
            cell = self._held.pop(0)
            if len(cell.text) > n_chars:
                self._held.insert(0, Cell(cell.text[n_chars:]))
                cell = cell.cut(n_chars)
            released.append(cell)
            self._text = self._text[len(cell.text) :]
            n_chars -= len(cell.text)
        self._note(released)
        return released

    def _take_whole(self, n_chars: int) -> list[Cell]:
        """Take up to `n_chars` characters off the front: cells with an entry whole, others cut where need be.

        Cells without text belong to the character that comes after them and wait for it.
        """
        end, place = 0, 0
        for i, cell in enumerate(self._held):
            if place + len(cell.text) > n_chars:
                if cell.entry is None and n_chars > place:
                    return self._take(n_chars)
                break
            place += len(cell.text)
            if cell.text:
                end = i + 1
        released, self._held = self._held[:end], self._held[end:]
        self._text = self._text[place:] if end else self._text
        self._note(released)
        return released

    def _note(self, released: list[Cell]) -> None:
        """White space may stand before stop strings that are ignored; anything else ends that."""
        if self._leading and any(cell.text.strip() for cell in released):
            self._leading = False
