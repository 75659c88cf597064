"""Which conversations are in the slots' memory, and how they come and go. Owned by the engine thread.

Rules. All slots together take no more than the backend's `cache_bytes`. A sequence is admitted once what the running
ones are likely to come to hold, itself among them, is within that: what they hold and an answer of the length usual
lately, or what its limit allows if that is less. Whoever does not fit yet waits for others to end, first come first
served. When running ones outgrow the memory, the engine sets the youngest aside: what it holds goes to the archive, and
it goes on later from there. The oldest always goes on, for one whole context always fits.

Idle slots keep their conversations in what running ones do not use yet, and give way, the one not used for longest
first, before a pass that needs their memory. A conversation that gives way goes to the archive, and comes back when a
prompt begins as it did; with a store all of them are written to the disk while nothing runs and at the end, and come
back after a restart.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

import numpy as np
import numpy.typing as npt

from phobos.counters import CacheInfo
from phobos.engine.slots.archive import Archive, Archived
from phobos.engine.slots.cache import HOLD_TOKENS, ReusePlan, Slots, count_common, plan_reuse
from phobos.engine.slots.rows import Rows
from phobos.engine.slots.store import Kept, Store
from phobos.kernels.backend import Backend, cache_bound

log = logging.getLogger(__name__)

EXPECTED_TOKENS = 256  # of an answer, before any has ended
NEWEST = 1 / 16  # weight of the newest answer's length
GROWTH = 32  # positions that whoever runs is likely to need beyond what it holds
SETTLE_S = 1.0  # without anything to do, before conversations are written to the disk


class Residency:
    """See the module. It moves what slots hold; the engine notes which rows ran; `on_clear` hears of emptied slots."""

    def __init__(
        self,
        backend: Backend,
        slots: Slots,
        archive: Archive,
        store: Store | None = None,
        *,
        on_clear: Callable[[int], None] = lambda slot: None,
    ) -> None:
        self._backend = backend
        self._slots = slots
        self._archive = archive
        self._store = store
        self._on_clear = on_clear
        self._bound_bytes = cache_bound(backend)
        self._is_tight = self._bound_bytes < backend.limits.n_slots * backend.slot_bytes(backend.limits.n_ctx)
        self._promised: dict[int, int] = {}  # by busy slot: bytes it is likely to come to take
        self._n_expected = float(EXPECTED_TOKENS)
        self._reached: dict[int, int] = {}  # by busy slot: tokens whose rows have run, also guesses that were wrong
        self._fits: dict[int, int] = {}  # by busy slot: tokens it may come to hold before memory is looked at again
        self._n_forked: dict[int, int] = {}  # by forked slot: places up to the end of its forks
        self._n_evicted = self._n_restored = self._n_tokens_restored = 0

    # Decide

    def plan(
        self, tokens: npt.ArrayLike, *, pinned: int | None = None, sources: Collection[int] | None = None
    ) -> ReusePlan | None:
        """Where a prompt runs and what it finds, in a slot or in the archive; see `plan_reuse`."""
        slots = self._slots.view()
        plan = plan_reuse(tokens, slots, pinned=pinned, sources=sources)
        if plan is None or sources is not None:
            return plan
        found = self._find(tokens)
        if found is None or found[1] < plan.n_reused + HOLD_TOKENS:
            return plan
        empty = plan_reuse(tokens, slots, pinned=pinned, sources=())
        return None if empty is None else ReusePlan(empty.slot, found[1], None, is_archived=True)

    def _find(self, tokens: npt.ArrayLike) -> tuple[Archived | Kept, int] | None:
        """What beside the slots shares the longest beginning with a prompt, in memory rather than in a file."""
        archived = self._archive.find(tokens)
        kept = self._store.find(tokens) if self._store is not None else None
        return max((found for found in (archived, kept) if found is not None), key=lambda found: found[1], default=None)

    def expect(self, n_now: int, n_most: int) -> int:
        """How many tokens a sequence of `n_now` is likely to come to hold, `n_most` at most."""
        return min(n_most, n_now + math.ceil(self._n_expected))

    def note_answer(self, n_tokens: int) -> None:
        """An answer ended after so many tokens."""
        self._n_expected += NEWEST * (n_tokens - self._n_expected)

    def has_room(self, n_likely: int) -> bool:
        """Whether a sequence that is likely to come to hold so many tokens can be admitted now."""
        promised = sum(self._promised.values())
        return not promised or promised + self._backend.slot_bytes(n_likely) <= self._bound_bytes

    def describe(self) -> CacheInfo:
        """For the counters."""
        store = self._store
        return CacheInfo(
            held_bytes=sum(self._held().values()),
            bound_bytes=self._bound_bytes,
            archived_bytes=self._archive.n_bytes,
            archive_bound_bytes=self._archive.bound_bytes,
            n_archived=len(self._archive),
            evicted=self._n_evicted,
            restored=self._n_restored,
            tokens_restored=self._n_tokens_restored,
            n_files=len(store) if store else 0,
            files_bytes=store.n_bytes if store else 0,
            files_written=store.n_written if store else 0,
            files_read=store.n_read if store else 0,
            files_failed=store.n_failed if store else 0,
        )

    def _held(self) -> dict[int, int]:
        """Bytes each slot takes."""
        return {
            slot.index: self._backend.slot_bytes(
                max(len(np.asarray(slot.tokens)), self._n_forked.get(slot.index, 0), self._reached.get(slot.index, 0))
            )
            for slot in self._slots.view()
        }

    # Act

    def admit(self, plan: ReusePlan, prompt: npt.ArrayLike, n_likely: int, now_s: float) -> int:
        """Make the plan's slot hold what can be reused of a prompt, and take it; how many tokens that is."""
        self._fits.clear()
        found = self._find(prompt) if plan.is_archived else None
        if found is not None and isinstance(found[0], Archived):
            self._archive.touch(found[0])
        n_lost = len(self._slots.tokens(plan.slot)) - plan.n_reused
        if not plan.is_in_place or (n_lost >= HOLD_TOKENS and 4 * n_lost > plan.n_reused):
            self._keep(plan.slot)
        if not plan.is_in_place:
            self._clear(plan.slot)
            plan = self._fill(plan, found, prompt)
        state = self._slots.state_for(plan)
        if state is not None:
            self._backend.restore_state(plan.slot, plan.n_reused, state)
        self._slots.take(plan, prompt, now_s)
        self._backend.release(plan.slot, plan.n_reused)
        self._promised[plan.slot] = self._backend.slot_bytes(n_likely)
        return plan.n_reused

    def _fill(self, plan: ReusePlan, found: tuple[Archived | Kept, int] | None, prompt: npt.ArrayLike) -> ReusePlan:
        """Bring a prefix into the plan's empty slot, from another slot or from the archive; what came of it."""
        if plan.source is not None:
            if self._give_way({plan.slot: plan.n_reused}, spared=plan.source):
                self._backend.copy_rows(plan.source, plan.slot, plan.n_reused)
                return plan
            self._evict(plan.source)  # idle, since what runs has room: then the archive may have it
            found = self._find(prompt)
        if found is None:
            return ReusePlan(plan.slot, 0, None)
        entry, n_reused = found
        n_rows = n_reused if self._backend.limits.can_cut else len(entry.tokens)
        if not self._give_way({plan.slot: n_rows}):
            return ReusePlan(plan.slot, 0, None)
        contents = self._store.read(entry) if self._store and isinstance(entry, Kept) else entry
        is_back = isinstance(contents, Archived) and self._put_back(plan.slot, contents, n_rows)
        if not is_back or n_reused >= len(entry.tokens) - 1:  # it is of no use, or goes on in the slot
            self._drop(entry, of_no_use=not is_back)
        if not is_back:
            return ReusePlan(plan.slot, 0, None)
        self._n_restored += 1
        self._n_tokens_restored += n_reused
        return ReusePlan(plan.slot, n_reused, None)

    def fork(self, slot: int, n_places: int) -> bool:
        """Forks of a slot take up `n_places` of it; False, and nothing done, where there is no room for them yet."""
        wanted = max(self._promised.get(slot, 0), self._backend.slot_bytes(n_places))
        if sum(self._promised.values()) - self._promised.get(slot, 0) + wanted > self._bound_bytes:
            return False
        self._fits.clear()
        self._promised[slot] = wanted
        self._n_forked[slot] = max(n_places, self._n_forked.get(slot, 0))
        self._give_way({slot: n_places})
        return True

    def _put_back(self, slot: int, contents: Archived, n_rows: int) -> bool:
        """Make an empty slot hold the first `n_rows` tokens; whether it worked."""
        try:
            self._backend.restore(slot, n_rows, contents.data, len(contents.tokens))
        except ValueError as error:
            log.warning("a kept conversation could not be put back: %s", error)
            self._backend.release(slot)
            return False
        self._slots.put(slot, contents.tokens[:n_rows], contents.states)
        return True

    def _drop(self, entry: Archived | Kept, *, of_no_use: bool) -> None:
        """Forget an entry; a file only if it is of no use, for it outlives what is in memory."""
        if isinstance(entry, Archived):
            self._archive.drop(entry)
        elif self._store is not None and of_no_use:
            self._store.drop(entry)

    # By name

    def read_out(self, slot: int) -> Archived | None:
        """A copy of what an idle slot holds; None for nothing."""
        tokens = self._slots.tokens(slot)
        if len(tokens) == 0:
            return None
        return Archived(tokens.copy(), self._backend.save(slot, len(tokens)), dict(self._slots.states(slot)))

    def read_in(self, slot: int, contents: Archived) -> bool:
        """Make an idle slot hold these contents; whether it could. What it held goes to the archive."""
        if len(contents.tokens) > self._backend.limits.n_ctx:
            return False
        self._fits.clear()
        self._evict(slot)
        n_rows = len(contents.tokens)
        return self._give_way({slot: n_rows}) and self._put_back(slot, contents, n_rows)

    def erase(self, slot: int) -> int:
        """Empty an idle slot; how many tokens it held."""
        n_tokens = len(self._slots.tokens(slot))
        self._clear(slot)
        return n_tokens

    # On disk

    @property
    def rest_s(self) -> float | None:
        """How long to wait, while nothing runs, before `rest` has something to do; None for nothing."""
        return SETTLE_S if self._store is not None and self._store.can_write and self._unsaved() is not None else None

    def rest(self) -> None:
        """Nothing runs: write a conversation that is not on the disk yet."""
        unsaved = self._unsaved() if self._store is not None and self._store.can_write else None
        contents = unsaved() if unsaved is not None else None
        if self._store is not None and contents is not None:
            self._store.write(contents)

    def close(self, *, save: bool) -> None:
        """Write what is not on the disk yet, if it may be trusted, and let the disk go."""
        if self._store is None:
            return
        if save and self._unsaved() is not None:
            log.info("keeping conversations in %s", self._store.folder.path)
        try:
            self._store.wait()
            while save and self._store.can_write and (unsaved := self._unsaved()) is not None:
                contents = unsaved()
                if contents is not None:
                    self._store.write(contents, wait=True)
        except Exception:
            log.exception("conversations could not be kept")
        self._store.close()

    def _unsaved(self) -> Callable[[], Archived | None] | None:
        """What gives the contents of one conversation that is worth writing, the one used last first."""
        if self._store is None:
            return None
        for slot in sorted(self._slots.view(), key=lambda slot: -slot.age):
            if not slot.is_busy and self._store.wants(self._slots.tokens(slot.index)):
                return partial(self.read_out, slot.index)
        for entry in self._archive:
            if self._store.wants(entry.tokens):
                return partial(_itself, entry)
        return None

    def make_room(self, runs: Iterable[Rows]) -> bool:
        """These rows are about to run: idle slots give way to what they will take; False where that is not enough."""
        if not self._is_tight:
            return True
        wanted = {rows.slot: rows.first_position + len(rows.tokens) for rows in runs if rows.fork is None}
        fits = all(n_tokens <= self._fits.get(slot, 0) for slot, n_tokens in wanted.items()) or self._find_room(wanted)
        if fits:
            for slot, n_tokens in wanted.items():
                self._reached[slot] = max(n_tokens, self._reached.get(slot, 0))
        return fits

    def _find_room(self, wanted: Mapping[int, int]) -> bool:
        """Whether running slots can come to hold so many tokens; if there is more room, it is not looked for again
        soon."""
        n_ctx = self._backend.limits.n_ctx
        likely = {slot: min(n_tokens + GROWTH, n_ctx) for slot, n_tokens in wanted.items()}
        for slot, n_tokens in likely.items():
            self._promised[slot] = max(self._promised[slot], self._backend.slot_bytes(n_tokens))
        held = self._held()
        for slot, n_tokens in {**self._fits, **likely}.items():
            held[slot] = max(held[slot], self._backend.slot_bytes(n_tokens))
        if sum(held.values()) <= self._bound_bytes:
            self._fits.update(likely)
            return True
        self._fits.clear()
        return self._give_way(wanted)

    def set_aside(self, slot: int, now_s: float) -> None:
        """The slot's sequence goes on later: what it holds goes to the archive, its memory to others."""
        self.give_back(slot, now_s)
        self._evict(slot)

    def _give_way(self, wanted: Mapping[int, int], spared: int | None = None) -> bool:
        """Evict idle slots until the slots of `wanted` can hold so many tokens; False where that is not enough."""
        held = self._held()
        for index, n_tokens in wanted.items():
            held[index] = max(held[index], self._backend.slot_bytes(n_tokens))
        idle = [slot for slot in self._slots.view() if not slot.is_busy and slot.index not in (*wanted, spared)]
        for slot in sorted(idle, key=lambda slot: slot.age):
            if sum(held.values()) <= self._bound_bytes:
                return True
            if held.pop(slot.index):
                self._evict(slot.index)
        return sum(held.values()) <= self._bound_bytes

    def give_back(self, slot: int, now_s: float) -> None:
        """The slot's sequence has ended; its tokens stay for reuse."""
        self._slots.give_back(slot, now_s)
        for kept in (self._promised, self._fits, self._reached):
            kept.pop(slot, None)
        self._n_forked.pop(slot, None)
        self._backend.release(slot, len(self._slots.tokens(slot)))

    def forget(self, slot: int) -> None:
        """Nothing of an idle slot is wanted any more."""
        self._clear(slot)

    def _evict(self, slot: int) -> None:
        self._keep(slot)
        self._clear(slot)

    def _clear(self, slot: int) -> None:
        self._slots.forget(slot)
        self._backend.release(slot)
        self._on_clear(slot)

    def _keep(self, slot: int) -> None:
        """Archive what a slot holds, unless another slot holds it too."""
        tokens = self._slots.tokens(slot)
        self._n_evicted += bool(len(tokens))
        others = (other.tokens for other in self._slots.view() if other.index != slot)
        if not any(count_common(tokens, other) == len(tokens) for other in others):
            n_tokens = len(tokens)
            self._archive.put(
                tokens,
                self._backend.slot_bytes(n_tokens),
                lambda: self._backend.save(slot, n_tokens),
                self._slots.states(slot),
            )


def _itself(entry: Archived) -> Archived:
    return entry
