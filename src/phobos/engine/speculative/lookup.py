"""Prompt lookup: guesses what follows from where the text has been before (A. Saxena, "Prompt Lookup Decoding", 2023).

Where the last tokens stand earlier in prompt or answer, what followed them there is guessed again; of several places
the one with the longest match counts, the latest of equals. Whoever edits a file, quotes or fills in a form repeats
himself for long stretches. Costs microseconds a token, and nothing else where nothing matches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from phobos.engine.speculative.guesses import Guess

N_LEAST = 2  # tokens that have to match
LONGEST = 64  # matches are told apart up to this length
PLACES = 12  # latest places of a pair of tokens that are kept

_BOUNDS = (3, 4, 6, 9, 17, 33)  # kinds of guesses: by the length of the match, and of the guess that extends it
CHANCES = (0.3, 0.4, 0.5, 0.65, 0.8, 0.9, 0.95)  # of each kind to be right, believed at first


class Lookup:
    """The places of one sequence's pairs of tokens. Owned by the engine thread."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], list[int]] = {}  # by pair: where what followed it stands, rising
        self._n_seen = 1
        self._source: int | None = None  # where the guess that is being followed was read

    def guess(self, tokens: Sequence[int], n_most: int) -> Guess:
        """Up to `n_most` tokens that may follow `tokens`, which are those of the call before and some more."""
        self._read(tokens)
        found = self._find(tokens) if n_most > 0 and len(tokens) > N_LEAST else None
        if found is None:
            self._source = None
            return Guess()
        place, n_matching = found
        self._source = place - len(tokens)  # stays right as both go on together
        guessed: list[int] = []
        for i in range(place, place + n_most):
            guessed.append(tokens[i] if i < len(tokens) else guessed[i - len(tokens)])
        kinds = tuple(bisect_right(_BOUNDS, n_matching + i) for i in range(n_most))
        return Guess(tuple(guessed), kinds)

    def _read(self, tokens: Sequence[int]) -> None:
        """Note the pairs before the last token: what follows the last pair is not known."""
        for i in range(self._n_seen, len(tokens) - 1):
            places = self._places.setdefault((tokens[i - 1], tokens[i]), [])
            places.append(i + 1)
            if len(places) > PLACES:
                del places[0]
        self._n_seen = max(self._n_seen, len(tokens) - 1)

    def _find(self, tokens: Sequence[int]) -> tuple[int, int] | None:
        """Where what may follow stands, and how many tokens before it match the last ones."""
        places = self._places.get((tokens[-2], tokens[-1]), [])
        followed = [] if self._source is None else [len(tokens) + self._source]
        best: tuple[int, int] | None = None
        for place in (*followed, *reversed(places)):
            n = _count_matching(tokens, place)
            if n >= N_LEAST and (best is None or n > best[1]):
                best = place, n
        return best


def _count_matching(tokens: Sequence[int], place: int) -> int:
    """How many tokens before `place` are those that stand at the end."""
    n, end = 0, len(tokens)
    while n < min(place, LONGEST) and tokens[place - 1 - n] == tokens[end - 1 - n]:
        n += 1
    return n
