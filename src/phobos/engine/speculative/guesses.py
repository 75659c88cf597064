"""Guesses at the tokens that follow: what one is, and how far it can be trusted.

A guess costs rows and changes nothing: its rows run beside the row that is due, and the tokens are chosen in order as
ever, for as long as they are those that were guessed. How likely it is right decides how much of it runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

REMEMBERED = 200.0  # guessed tokens of a kind after which older ones count half
BELIEF = 4.0  # guessed tokens that the chance believed at first counts as


@dataclass(frozen=True)
class Guess:
    """Tokens that may follow, and of which kind each is: an index of a `Record`."""

    tokens: tuple[int, ...] = ()
    kinds: tuple[int, ...] = ()

    def cut(self, n_tokens: int) -> Guess:
        """Its first tokens."""
        return Guess(self.tokens[:n_tokens], self.kinds[:n_tokens])


class Record:
    """How often guesses of each kind were right, given that all before them were; `chances` are believed at first."""

    def __init__(self, chances: Iterable[float]) -> None:
        self._right = [BELIEF * chance for chance in chances]
        self._tried = [BELIEF] * len(self._right)

    def chance(self, kind: int) -> float:
        """How likely a guess of this kind is right, if those before it are."""
        return self._right[kind] / self._tried[kind]

    def chances(self, guess: Guess) -> list[float]:
        """For each token of a guess, how likely it and all before it are right."""
        chances, so_far = [], 1.0
        for kind in guess.kinds:
            so_far *= self.chance(kind)
            chances.append(so_far)
        return chances

    def note(self, guess: Guess, n_right: int) -> None:
        """The first `n_right` tokens of a guess were right; the one after them, if there is one, was not."""
        for i, kind in enumerate(guess.kinds[: n_right + 1]):
            self._tried[kind] += 1
            self._right[kind] += i < n_right
            if self._tried[kind] > REMEMBERED:
                self._tried[kind] /= 2
                self._right[kind] /= 2
