"""Whose rows run next: pure policy.

Every turn has a row for each running sequence and, beside them, a bounded chunk of prompt rows. Prompts stand in line
for the chunk: who had rows goes to the end, who is new joins behind those already waiting. So each gets rows within as
many turns with prompt rows as there are prompts, whoever comes meanwhile.

`Pace` bounds the chunk, by time where nothing else runs. While sequences run, time spent on their rows earns as much
time for prompt rows, so running streams keep at least half their pace, whatever a row of either kind costs on this
machine and model.

Where slots cannot be cut back (`BackendLimits.can_cut`), a prompt stops once on its way to leave a checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as Listing
from dataclasses import dataclass, replace

from phobos.engine.costs import PassCosts
from phobos.engine.scoring import PromptReading
from phobos.engine.sequence import Sequence

MIN_CHUNK = 16  # fewer prompt rows than this are not worth a pass beside running sequences
FIRST_CHUNK = 128  # prompt rows of a pass of their own before it is known what they cost
SMALLEST_ALONE = 64  # prompt rows that such a pass always may have
LONGEST_PASS_S = 0.8  # about how long it may take: a short prompt that comes meanwhile waits for its end
SMOOTHING = 0.25  # weight of the newest measurement
MEASURE_EVERY = 32  # turns with prompt rows, after which running sequences have one to themselves
TAIL = 8  # tokens before a prompt's end: templates end a prompt with a few that a later one need not have
DEBT_TURNS = 4.0  # a single slow turn holds prompts back for at most about this many turns


@dataclass(frozen=True)
class PromptView:
    """A prompt still to run: `n_left` rows, at most `n_most` of them in one pass. `last_turn` is the turn it last had
    rows in or, if it `is_new`, the last one before it came."""

    key: int
    n_left: int
    last_turn: int
    n_most: int | None = None
    is_new: bool = False

    @property
    def place(self) -> tuple[int, bool]:
        """Where it stands in line: who is new comes before those that have just had rows."""
        return self.last_turn, not self.is_new


@dataclass(frozen=True)
class Chunk:
    """The next `n_rows` rows of a prompt."""

    key: int
    n_rows: int


def plan_chunks(prompts: Iterable[PromptView], n_rows: int, turn: int) -> tuple[Chunk, ...]:
    """Share `n_rows` rows among prompts in the order of their places, ties as given; `turn` is the turn before.

    A prompt that had rows in that turn and would be cut short steps back where others end in this pass, so that their
    first tokens do not wait for its rows. It never steps back twice in a row, and others ahead of it were served.
    """
    chunks: list[Chunk] = []
    ends = False
    for prompt in sorted(prompts, key=lambda p: p.place):
        wanted = prompt.n_left if prompt.n_most is None else min(prompt.n_left, prompt.n_most)
        n = min(wanted, n_rows)
        if n < wanted and ends and prompt.last_turn == turn and not prompt.is_new:
            continue
        if n > 0:
            chunks.append(Chunk(prompt.key, n))
            n_rows -= n
            ends |= n == prompt.n_left
    return tuple(chunks)


def mark_of(sequence: Sequence | PromptReading, can_cut: bool) -> int | None:
    """After how many rows a prompt's state is kept; None where slots can be cut back.

    Shortly before its end: the same prompt again, and a conversation whose reply is rendered otherwise than it was
    written, go on from there.
    """
    if can_cut:
        return None
    n_reusable = len(sequence.reusable)
    return max(0, sequence.n_prefill - TAIL if n_reusable == sequence.n_prefill else n_reusable - 1)


def view_prompts(sequences: Listing[Sequence | PromptReading], n_outputs: int, can_cut: bool) -> list[PromptView]:
    """The running prompts in the order of their places; those whose rows give logits share the `n_outputs` a pass can
    give, and no pass runs over a checkpoint."""
    views = []
    for key, sequence in enumerate(sequences):
        n_left = sequence.n_prefill - sequence.n_rows
        is_new = sequence.admission is not None and sequence.n_rows == sequence.admission.n_cached
        views.append(PromptView(key, n_left, sequence.last_turn, n_left, is_new))
    views.sort(key=lambda view: view.place)
    for i, view in enumerate(views):
        sequence, n_most = sequences[view.key], view.n_left
        if sequence.first_told is not None:
            n_silent = max(0, sequence.first_told - sequence.n_rows)
            n_telling = min(n_outputs, n_most - n_silent)
            n_outputs -= n_telling
            n_most = n_silent + n_telling
        mark = mark_of(sequence, can_cut)
        if mark is not None and sequence.n_rows < mark:
            n_most = min(n_most, mark - sequence.n_rows)
        views[i] = replace(view, n_most=n_most)
    return views


class Pace:
    """Learns what rows cost and says how many prompt rows this turn may have."""

    def __init__(self, max_chunk: int) -> None:
        self._max_chunk = max_chunk
        self.costs = PassCosts()
        self._beside_s: float | None = None  # a prompt row beside running sequences
        self._alone_s: float | None = None  # a prompt row in a turn of its own
        self._credit_s = 0.0
        self._n_mixed = 0

    def budget(self, n_running: int) -> int:
        """Prompt rows for a turn with `n_running` running sequences; 0 lets these run alone."""
        if n_running == 0:
            n_rows = FIRST_CHUNK if self._alone_s is None else math.floor(LONGEST_PASS_S / self._alone_s)
            return min(max(n_rows, SMALLEST_ALONE), self._max_chunk)
        turn_s = self.costs.estimate(n_running)
        if turn_s is None or self._n_mixed >= MEASURE_EVERY:
            return 0  # measure
        row_s = self._beside_s or self._alone_s
        if not row_s:
            return min(MIN_CHUNK, self._max_chunk)
        n_rows = math.floor((self._credit_s + turn_s) / row_s * (1 + 1e-9))
        smallest = min(MIN_CHUNK, self._max_chunk)
        return min(n_rows, self._max_chunk) if n_rows >= smallest else 0

    def observe(self, n_running: int, n_prompt_rows: int, seconds: float, n_drafted: int = 0) -> float:
        """A turn took `seconds`, `n_drafted` of its rows being guesses; returns the part of it that prompts took.

        Beside prompts, what guesses take comes out of what prompts may have.
        """
        if n_running == 0:
            self._alone_s = _blend(self._alone_s, seconds / max(n_prompt_rows, 1))
            self._credit_s = 0.0
            return seconds
        if n_prompt_rows == 0:
            self.costs.note(n_running + n_drafted, seconds)
            self._earn(min(seconds, self.costs.estimate(n_running) or seconds))
            self._n_mixed = 0
            return 0.0
        turn_s = self.costs.estimate(n_running)
        if turn_s is None:
            turn_s = seconds * n_running / (n_running + n_drafted + n_prompt_rows)
        self._n_mixed += 1
        extra_s = max(seconds - turn_s, 0.0)
        row_s = extra_s / (n_prompt_rows + n_drafted)
        self._beside_s = _blend(self._beside_s, row_s)
        self._earn(turn_s)
        self._credit_s = max(self._credit_s - extra_s, -DEBT_TURNS * turn_s)
        return row_s * n_prompt_rows

    def _earn(self, seconds: float) -> None:
        """Time for running sequences earns time for prompts; it is not hoarded beyond the smallest chunk."""
        row_s = self._beside_s or self._alone_s or 0.0
        self._credit_s = min(self._credit_s + seconds, max(seconds, MIN_CHUNK * row_s))


def _blend(old: float | None, new: float) -> float:
    return new if old is None else old + SMOOTHING * (new - old)
