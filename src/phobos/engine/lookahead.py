"""Guesses ahead for the running sequences, and as much of them as pays.

Owns what is known of each sequence's guesses. A turn may run guessed rows where the tokens a second they promise, over
all sequences, are more than without them, as judged by what passes of so many rows took and by how often guesses were
right. Beside others, guesses at most double a turn; while prompts wait, guessed rows take at most a quarter of theirs.

A sequence has an allowance, in passes: guesses spend it, right ones earn it back, and it grows by a hundredth of each
pass. So guesses that are never right cost a reply no more than that and the little it starts with.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Listing
from dataclasses import dataclass, field

from phobos.engine.costs import PassCosts
from phobos.engine.guesses import Guess, Record
from phobos.engine.lookup import CHANCES, Lookup
from phobos.engine.scoring import Scoring
from phobos.engine.sequence import Sequence
from phobos.kernels.backend import BackendLimits

LONGEST_GUESS = 24
FORCED, FORCED_CHANCE = len(CHANCES), 0.98  # the kind of tokens that a grammar leaves no choice of
START = 0.5  # passes a reply's guesses may cost before any was right
EARNED = 0.01  # of each pass
MOST = 4.0  # passes an allowance can come to
SLOWEST = 2.0  # times as long a turn may take because of guesses, where several sequences run
PROMPT_SHARE = 4  # guessed rows are at most one in so many of those that prompts may have


def plan_lengths(
    chances: Listing[Listing[float]],
    allowances: Listing[float],
    n_running: int,
    n_most: int,
    turn_s: Callable[[int], float | None],
) -> list[int]:
    """How many tokens of each guess to run, at most `n_most` in all: those that make for the most tokens a second.

    `chances` has for each token of a guess how likely it and all before it are right; `turn_s` tells the seconds of a
    pass by its rows.
    """
    alone_s = turn_s(n_running)
    if not alone_s:
        return [0] * len(chances)

    def slowdown(n_rows: int) -> float:
        return (turn_s(n_running + n_rows) or alone_s) / alone_s

    offers = []
    for i, (guess, allowance) in enumerate(zip(chances, allowances, strict=True)):
        for n, chance in enumerate(guess[:n_most], 1):
            if slowdown(n) - 1 > allowance:
                break
            offers.append((-chance, n, i))
    best, best_rate, promised = 0, float(n_running), 0.0
    offers = sorted(offers)[:n_most]
    for n_rows, (chance, _, _) in enumerate(offers, 1):
        promised -= chance
        slower = slowdown(n_rows)
        if n_running > 1 and slower > SLOWEST:
            break
        if (n_running + promised) / slower > best_rate:
            best, best_rate = n_rows, (n_running + promised) / slower
    taken = [i for _, _, i in offers[:best]]
    return [taken.count(i) for i in range(len(chances))]


@dataclass
class _Followed:
    """A sequence that is guessed for."""

    lookup: Lookup = field(default_factory=Lookup)
    allowance: float = START
    guess: Guess = field(default_factory=Guess)
    n_before: tuple[int, int] = (0, 0)  # its counts of guessed tokens before the turn


class Lookahead:
    """See the module. Owned by the engine thread."""

    def __init__(self, costs: PassCosts, limits: BackendLimits, *, looks_up: bool) -> None:
        self._costs = costs
        self._limits = limits
        self._looks_up = looks_up
        self._record = Record((*CHANCES, FORCED_CHANCE))
        self._followed: dict[Sequence | Scoring, _Followed] = {}

    def plan(self, sequences: Listing[Sequence | Scoring], n_prompt_rows: int | None) -> list[tuple[int, ...]]:
        """The tokens to guess for each of the running sequences in this turn; `n_prompt_rows` are those that prompts
        may have, None where none wait."""
        limits = self._limits
        n_most = min(limits.max_outputs - limits.n_slots, limits.max_rows - len(sequences))
        if n_prompt_rows is not None:
            n_most = min(n_most, n_prompt_rows // PROMPT_SHARE)
        followed = {s: self._followed.get(s) or _Followed() for s in sequences}
        self._followed = followed
        for sequence, one in followed.items():
            one.guess = self._guess(sequence, one.lookup, n_most) if isinstance(sequence, Sequence) else Guess()
        lengths = plan_lengths(
            [self._record.chances(one.guess) for one in followed.values()],
            [one.allowance for one in followed.values()],
            len(sequences),
            n_most,
            self._costs.estimate,
        )
        for (sequence, one), n in zip(followed.items(), lengths, strict=True):
            one.guess = one.guess.cut(n)
            one.n_before = (sequence.n_draft, sequence.n_draft_accepted)
        return [one.guess.tokens for one in followed.values()]

    def _guess(self, sequence: Sequence, lookup: Lookup, n_most: int) -> Guess:
        """What may follow, as far as it may: within the answer's limit and its grammar."""
        n_most = min(n_most, LONGEST_GUESS, sequence.limit - sequence.n_generated - 1)
        if not self._looks_up or n_most <= 0:
            return Guess()
        constraint = sequence.constraint
        forced = tuple(constraint.foresee())[:n_most] if constraint is not None else ()
        if forced:
            return Guess(forced, (FORCED,) * len(forced))
        guess = lookup.guess(sequence.tokens, n_most)
        return guess if constraint is None or not guess.tokens else guess.cut(constraint.count_allowed(guess.tokens))

    def settle(self) -> None:
        """The turn of `plan` has run."""
        followed = self._followed
        n_guessed = sum(len(one.guess.tokens) for one in followed.values())
        base_s, turn_s = self._costs.estimate(len(followed)), self._costs.estimate(len(followed) + n_guessed)
        slower = max(turn_s / base_s - 1, 0.0) if base_s and turn_s else 0.0
        for sequence, one in followed.items():
            n = sequence.n_draft - one.n_before[0]
            if n:  # else none, or it was called off
                n_right = sequence.n_draft_accepted - one.n_before[1]
                self._record.note(one.guess.cut(n_right) if sequence.finished else one.guess, n_right)
                one.allowance += n_right - slower * n / n_guessed
            one.allowance = min(one.allowance + EARNED, MOST)
