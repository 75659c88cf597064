"""Guesses ahead for the running sequences, and as much of them as pays.

They come from a grammar that leaves no choice, from where the text has been before, or from a draft model.

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
from phobos.engine.scoring import PromptReading
from phobos.engine.sequence import Sequence
from phobos.engine.speculative.draft import CHANCES as DRAFT_CHANCES
from phobos.engine.speculative.draft import Drafter
from phobos.engine.speculative.guesses import Guess, Record
from phobos.engine.speculative.lookup import CHANCES as LOOKUP_CHANCES
from phobos.engine.speculative.lookup import Lookup
from phobos.kernels.backend import Backend, BackendLimits
from phobos.kernels.sampling import RowKernels

LONGEST_GUESS = 24
FORCED, FORCED_CHANCE = len(LOOKUP_CHANCES), 0.98  # the kind of tokens that a grammar leaves no choice of
START = 0.3  # passes a reply's guesses may cost before any was right
START_DRAFTING = 2.0  # the same where a draft model was asked for
EARNED = 0.01  # of each pass
MOST = 4.0  # passes an allowance can come to
SLOWEST = 2.0  # times as long a turn may take because of guesses, where several sequences run
SURE = 0.7  # chance from which a looked up token is taken before the draft model is asked
PROMPT_SHARE = 4  # guessed rows are at most one in so many of those that prompts may have


def plan_lengths(
    chances: Listing[Listing[float]],
    allowances: Listing[float],
    n_running: int,
    n_most: int,
    turn_s: Callable[[int], float | None],
    spent_s: float = 0.0,
) -> list[int]:
    """How many tokens of each guess to run, at most `n_most` in all: those that make for the most tokens a second.

    `chances` has for each token of a guess how likely it and all before it are right; `turn_s` tells the seconds of a
    pass by its rows; `spent_s` are seconds the guesses took already.
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
        if n_running > 1 and slower + spent_s / alone_s > SLOWEST:
            break
        if (n_running + promised) / slower > best_rate:
            best, best_rate = n_rows, (n_running + promised) / slower
    taken = [i for _, _, i in offers[:best]]
    return [taken.count(i) for i in range(len(chances))]


@dataclass
class _Followed:
    """A sequence that is guessed for."""

    allowance: float
    lookup: Lookup = field(default_factory=Lookup)
    guess: Guess = field(default_factory=Guess)
    drafts_for_s: float = 0.0  # what the draft model took for the guess
    n_before: tuple[int, int] = (0, 0)  # its counts of guessed tokens before the turn


class Lookahead:
    """See the module. Owned by the engine thread; `is_on` may be changed while nothing runs."""

    def __init__(
        self, costs: PassCosts, limits: BackendLimits, kernels: RowKernels, *, looks_up: bool, draft: Backend | None
    ) -> None:
        self._costs = costs
        self._limits = limits
        self.is_on = True
        self._looks_up = looks_up
        self._record = Record((*LOOKUP_CHANCES, FORCED_CHANCE, *DRAFT_CHANCES))
        self._drafter: Drafter | None = None
        if draft is not None:
            self._drafter = Drafter(draft, kernels, costs, self._record, FORCED + 1)
        self._followed: dict[Sequence | PromptReading, _Followed] = {}

    def plan(self, sequences: Listing[Sequence | PromptReading], n_prompt_rows: int | None) -> list[tuple[int, ...]]:
        """The tokens to guess for each of the running sequences in this turn; `n_prompt_rows` are those that prompts
        may have, None where none wait."""
        limits = self._limits
        n_most = min(limits.max_outputs - limits.n_slots, limits.max_rows - len(sequences)) if self.is_on else 0
        if n_prompt_rows is not None:
            n_most = min(n_most, n_prompt_rows // PROMPT_SHARE)
        start = START if self._drafter is None else START_DRAFTING
        followed = {s: self._followed.get(s) or _Followed(start) for s in sequences}
        self._followed = followed
        for sequence, one in followed.items():
            one.guess = self._guess(sequence, one.lookup, n_most) if isinstance(sequence, Sequence) else Guess()
            one.drafts_for_s = 0.0
        spent_s = self._draft(self._drafter, n_most) if self._drafter is not None and n_prompt_rows is None else 0.0
        lengths = plan_lengths(
            [self._record.chances(one.guess) for one in followed.values()],
            [MOST if one.drafts_for_s else one.allowance for one in followed.values()],
            len(sequences),
            n_most,
            self._costs.estimate,
            spent_s,
        )
        for (sequence, one), n in zip(followed.items(), lengths, strict=True):
            one.guess = one.guess.cut(n)
            one.n_before = (sequence.n_draft, sequence.n_draft_accepted)
        return [one.guess.tokens for one in followed.values()]

    def _guess(self, sequence: Sequence, lookup: Lookup, n_most: int) -> Guess:
        """What may follow, as far as it may: within the answer's limit and its grammar."""
        n_most = _count_possible(sequence, n_most)
        if not self._looks_up or n_most <= 0:
            return Guess()
        constraint = sequence.constraint
        forced = tuple(constraint.foresee())[:n_most] if constraint is not None else ()
        if forced:
            return Guess(forced, (FORCED,) * len(forced))
        guess = lookup.guess(sequence.tokens, n_most)
        return guess if constraint is None or not guess.tokens else guess.cut(constraint.count_allowed(guess.tokens))

    def _draft(self, drafter: Drafter, n_most: int) -> float:
        """Let the draft model guess for those sequences for which nothing better is known; the seconds it took."""
        base_s = self._costs.estimate(len(self._followed))
        if not base_s or n_most <= 0:
            return 0.0
        before_s = drafter.spent_s
        wanted: dict[Sequence, int] = {}
        for sequence, one in self._followed.items():
            is_known = one.guess.tokens and self._record.chance(one.guess.kinds[0]) >= SURE
            if is_known or one.allowance * base_s < drafter.pass_s or not isinstance(sequence, Sequence):
                continue
            wanted[sequence] = _count_possible(sequence, n_most)
        for sequence, guess in drafter.guess(wanted, len(self._followed)).items():
            one = self._followed[sequence]
            one.drafts_for_s = drafter.pass_s * len(guess.tokens)
            constraint = sequence.constraint
            if guess.tokens:
                one.guess = guess if constraint is None else guess.cut(constraint.count_allowed(guess.tokens))
        return drafter.spent_s - before_s

    def release(self, slot: int) -> None:
        """A slot is to hold nothing any more."""
        if self._drafter is not None:
            self._drafter.release(slot)

    def settle(self) -> None:
        """The turn of `plan` has run."""
        followed = self._followed
        n_guessed = sum(len(one.guess.tokens) for one in followed.values())
        base_s, turn_s = self._costs.estimate(len(followed)), self._costs.estimate(len(followed) + n_guessed)
        slower = max(turn_s / base_s - 1, 0.0) if base_s and turn_s else 0.0
        for sequence, one in followed.items():
            one.allowance -= one.drafts_for_s / base_s if base_s else 0.0
            n = sequence.n_draft - one.n_before[0]
            if n:  # else none, or it was called off
                n_right = sequence.n_draft_accepted - one.n_before[1]
                self._record.note(one.guess.cut(n_right) if sequence.finished else one.guess, n_right)
                one.allowance += n_right - slower * n / n_guessed
            one.allowance = min(one.allowance + EARNED, MOST)


def _count_possible(sequence: Sequence, n_most: int) -> int:
    """How many tokens may be guessed: the last one of an answer never runs."""
    return min(n_most, LONGEST_GUESS, sequence.limit - sequence.n_generated - 1)
