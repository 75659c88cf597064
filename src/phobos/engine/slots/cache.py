"""Book-keeping of the cache slots: which tokens each holds, and where a prompt finds its prefix.

The bytes live in the backend. `Slots` is owned by the engine thread; `plan_reuse` and `is_worth_waiting` decide and
touch nothing. A slot's tokens are those whose rows have run, so a busy slot's prefix can be copied as well as an idle
one's. Rows are bit-exact, so reuse changes no logit.

At least the last token of a prompt always runs again: its logits are wanted. Slots that cannot be cut back are
continued where they stand or from a checkpoint (`checkpoints.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Sequence as Listing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phobos.counters import SlotInfo
from phobos.engine.slots.checkpoints import Checkpoints
from phobos.kernels.backend import IntArray

HOLD_TOKENS = 32  # a prefix another prompt is about to compute is worth waiting for from this many tokens on


@dataclass(frozen=True)
class SlotView:
    """A slot at one moment; `age` rises with every use, so the least is the one not used for longest. `restarts`: the
    lengths of its tokens it can be continued from, None for all."""

    index: int
    tokens: npt.ArrayLike
    is_busy: bool
    age: int
    restarts: tuple[int, ...] | None = None


@dataclass(frozen=True)
class ReusePlan:
    """Run in `slot`, whose first `n_reused` tokens are right once they were copied from `source`, or put back from the
    archive if `is_archived`; else they are."""

    slot: int
    n_reused: int
    source: int | None
    is_archived: bool = False

    @property
    def is_in_place(self) -> bool:
        """Whether the slot goes on with what it holds."""
        return self.n_reused > 0 and self.source is None and not self.is_archived


def count_common(a: npt.ArrayLike, b: npt.ArrayLike) -> int:
    """The length of the common prefix of two runs of tokens."""
    left, right = np.asarray(a), np.asarray(b)
    n = min(len(left), len(right))
    if n == 0:
        return 0
    differs = left[:n] != right[:n]
    first = int(differs.argmax())
    return first if differs[first] else n


def cut_to(n: int, restarts: Iterable[int] | None) -> int:
    """The longest of `restarts` that is no longer than `n`; `n` itself where these are None."""
    return n if restarts is None else max((length for length in restarts if length <= n), default=0)


def plan_reuse(
    tokens: npt.ArrayLike,
    slots: Listing[SlotView],
    *,
    pinned: int | None = None,
    sources: Collection[int] | None = None,
) -> ReusePlan | None:
    """Where a prompt runs, and what of it is there already; None where no slot it may use is idle.

    `sources` are the slots whose contents may be used (None: all). The longest prefix decides. A slot is continued
    in place where that loses nothing of what it holds; else the prefix goes into an empty slot, else in place if
    little is lost (a quarter of the prefix), else into the slot not used for longest. A pinned prompt runs in its
    slot whatever it holds.
    """
    prompt = np.asarray(tokens)
    idle = [slot for slot in slots if not slot.is_busy and pinned in (None, slot.index)]
    if not idle:
        return None
    usable = [slot for slot in slots if sources is None or slot.index in sources]
    common = {
        slot.index: cut_to(min(count_common(prompt, slot.tokens), len(prompt) - 1), slot.restarts) for slot in usable
    }
    longest = max(common.values(), default=0)
    if longest <= 0:
        return ReusePlan(_oldest(idle).index, 0, None)
    in_place = [slot for slot in idle if common.get(slot.index) == longest]
    kept = min(in_place, key=_n_tokens, default=None)
    n_lost = _n_tokens(kept) - longest if kept else 0
    is_free = any(_n_tokens(slot) == 0 for slot in idle)
    if kept and (pinned is not None or n_lost == 0 or (not is_free and 4 * n_lost <= longest) or len(idle) == 1):
        return ReusePlan(kept.index, longest, None)
    target = _oldest(idle)
    if target in in_place:
        return ReusePlan(target.index, longest, None)
    source = next(index for index, n in common.items() if n == longest)
    return ReusePlan(target.index, longest, source)


def is_worth_waiting(
    tokens: npt.ArrayLike,
    n_reused: int,
    running: npt.ArrayLike,
    n_run: int,
    least: int,
    restarts: tuple[int, ...] | None = None,
) -> bool:
    """Whether a prompt should wait for a running prompt (of which `n_run` rows have run) to compute what they share,
    since otherwise it would have to compute it itself: `least` tokens or more than it can reuse now. `restarts`: the
    lengths at which the running prompt's slot can be copied, None for all."""
    prompt = np.asarray(tokens)
    common = cut_to(min(count_common(prompt, running), len(prompt) - 1), restarts)
    return common > n_run and common - n_reused >= least


def _n_tokens(slot: SlotView) -> int:
    return len(np.asarray(slot.tokens))


def _oldest(slots: Iterable[SlotView]) -> SlotView:
    """An empty slot, else the one not used for longest."""
    return min(slots, key=lambda slot: (_n_tokens(slot) > 0, slot.age, slot.index))


class Slots:
    """The slots of one backend: at most `n_ctx` tokens each; `can_cut` as the backend's limits say."""

    def __init__(self, n_slots: int, n_ctx: int, *, can_cut: bool = True) -> None:
        self._tokens: list[IntArray] = [np.empty(0, np.int32) for _ in range(n_slots)]
        self._n_tokens = [0] * n_slots
        self._is_busy = [False] * n_slots
        self._age = [0] * n_slots
        self._last_used_s = [0.0] * n_slots
        self._checkpoints = [Checkpoints() for _ in range(n_slots)]
        self._n_ctx = n_ctx
        self._can_cut = can_cut
        self._clock = 0

    def tokens(self, slot: int) -> IntArray:
        """What the slot holds: a view, good until the slot is written."""
        return self._tokens[slot][: self._n_tokens[slot]]

    def view(self) -> tuple[SlotView, ...]:
        """All slots, as `plan_reuse` takes them."""
        return tuple(
            SlotView(i, self.tokens(i), self._is_busy[i], self._age[i], self._restarts(i))
            for i in range(len(self._tokens))
        )

    def _restarts(self, slot: int) -> tuple[int, ...] | None:
        return None if self._can_cut else (self._n_tokens[slot], *self._checkpoints[slot].lengths)

    @property
    def busy(self) -> frozenset[int]:
        """Those that run something."""
        return frozenset(slot for slot, is_busy in enumerate(self._is_busy) if is_busy)

    @property
    def n_idle(self) -> int:
        """How many slots run nothing."""
        return self._is_busy.count(False)

    def take(self, plan: ReusePlan, prompt: npt.ArrayLike, now_s: float) -> None:
        """The slot runs a sequence from now on and holds the reused tokens only."""
        self._is_busy[plan.slot] = True
        holder = plan.slot if plan.source is None else plan.source
        self._checkpoints[plan.slot].take_over(self._checkpoints[holder], plan.n_reused)
        self._n_tokens[plan.slot] = 0
        self.extend(plan.slot, np.asarray(prompt, np.int32)[: plan.n_reused])
        self._touch(plan.slot, now_s)

    def hold(self, slot: int, now_s: float) -> None:
        """The slot is run for, and keeps what it holds."""
        self._is_busy[slot] = True
        self._touch(slot, now_s)

    def extend(self, slot: int, tokens: Listing[int] | IntArray) -> None:
        """Rows of these tokens have run in the slot."""
        first = self._n_tokens[slot]
        last = first + len(tokens)
        if last > self._n_ctx:
            raise ValueError(f"slot {slot} would hold {last} tokens; its context is {self._n_ctx}")
        if last > len(self._tokens[slot]):
            grown = np.empty(min(max(2 * last, 256), self._n_ctx), np.int32)
            grown[:first] = self.tokens(slot)
            self._tokens[slot] = grown
        self._tokens[slot][first:last] = tokens
        self._n_tokens[slot] = last

    def keep(self, slot: int, state: bytes) -> None:
        """A checkpoint: what the backend holds of the slot where it stands, beside what can be cut back."""
        self._checkpoints[slot].keep(self._n_tokens[slot], state)

    def states(self, slot: int) -> Mapping[int, bytes]:
        """The slot's checkpoints, by the number of tokens they stand for."""
        return self._checkpoints[slot].states

    def put(self, slot: int, tokens: IntArray, states: Mapping[int, bytes]) -> None:
        """An empty idle slot was given contents: these tokens, with checkpoints."""
        self.extend(slot, tokens)
        self._checkpoints[slot].fill(states)

    def state_for(self, plan: ReusePlan) -> bytes | None:
        """What has to be put back into the plan's slot before it goes on; None where the rows alone will do."""
        holder = plan.slot if plan.source is None else plan.source
        if self._can_cut or plan.n_reused in (0, self._n_tokens[holder]):
            return None
        return self._checkpoints[holder].get(plan.n_reused)

    def give_back(self, slot: int, now_s: float) -> None:
        """The sequence has ended; its tokens stay for reuse."""
        self._is_busy[slot] = False
        self._touch(slot, now_s)

    def forget(self, slot: int) -> None:
        """The slot holds nothing any more."""
        self._n_tokens[slot] = 0
        self._checkpoints[slot].clear()

    def describe(self) -> tuple[SlotInfo, ...]:
        """The slots as the dashboard and `/slots` show them."""
        return tuple(
            SlotInfo(i, self._n_tokens[i], self._is_busy[i], self._last_used_s[i]) for i in range(len(self._tokens))
        )

    def _touch(self, slot: int, now_s: float) -> None:
        self._clock += 1
        self._age[slot] = self._clock
        self._last_used_s[slot] = now_s
