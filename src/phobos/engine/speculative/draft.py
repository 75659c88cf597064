"""A small model that guesses for a large one (Y. Leviathan et al., "Fast Inference from Transformers via Speculative
Decoding", 2023), read with the same tokenizer.

It draws with the sequence's own sampler and numbers, which makes it right more often than its likeliest token would be
where an answer is drawn at random; how sure it was of a token is the kind of the guess. Its backend has a slot for each
slot of the large model. What a slot lacks of its sequence's text is run in bounded pieces, beside the running answers,
before it guesses; what it holds too much is overwritten.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from phobos.archs import build_program
from phobos.counters import LoadProgress
from phobos.engine.costs import PassCosts
from phobos.engine.sequence import Sequence
from phobos.engine.slots.cache import count_common
from phobos.engine.slots.rows import Rows, build_batch
from phobos.engine.speculative.guesses import Guess, Record
from phobos.errors import UsageError
from phobos.gguf.reader import GGUF, open_gguf
from phobos.kernels.backend import Backend, BackendLimits, FloatArray, Progress
from phobos.kernels.sampling import RowKernels
from phobos.settings import EngineSettings

CHANCES = (0.3, 0.4, 0.55, 0.7, 0.85, 0.93, 0.97)  # of each kind to be right, believed at first
_BOUNDS = (0.3, 0.5, 0.7, 0.85, 0.95, 0.99)  # kinds of guesses: by the probability the draft model gave the token
N_AT_ONCE = 16  # rows that may be lacking when a guess begins; more are run before, in a turn of their own
WORTH_COPYING = 16  # tokens more than a slot holds, that make it worth to copy them from another
SMOOTHING = 0.25


def check_draft(path: Path, main: GGUF) -> None:
    """`UsageError` where the model at `path` reads other tokens than that of `main`, for which it should guess."""
    with open_gguf(path) as gguf:
        for key in (f"tokenizer.ggml.{name}" for name in ("model", "tokens", "merges", "bos_token_id", "eos_token_id")):
            if gguf.metadata.get(key) != main.metadata.get(key):
                raise UsageError(
                    f"{path.name} has another tokenizer than the model it should guess for ({key} differs): choose a "
                    "small model of the same family, or leave out --draft"
                )


def open_draft(settings: EngineSettings, path: Path, limits: BackendLimits, progress: Progress) -> Backend:
    """Load the draft model at `path`, with the slots of the model it guesses for, whose limits are given.

    `UsageError` where it cannot.
    """
    from phobos.kernels.placing.opening import open_backend

    if not limits.can_cut:
        raise UsageError("what this model holds cannot be cut back, so that none can guess for it: leave out --draft")
    with open_gguf(path) as gguf:
        n_ctx_train = gguf.get_int(f"{gguf.architecture}.context_length", limits.n_ctx)
        n_ctx = min(limits.n_ctx, n_ctx_train)
        own = replace(settings, model_path=path, n_ctx=n_ctx, n_slots=limits.n_slots, cache_bytes=None)

        def report(step: LoadProgress) -> None:
            progress(replace(step, stage=step.stage if step.stage != "ready" else "packing weights", detail=path.name))

        backend, _ = open_backend(build_program(gguf), gguf, own, report)
    if not backend.limits.can_cut or backend.limits.n_vocab < limits.n_vocab:
        backend.close()
        raise UsageError(f"{path.name} cannot guess for another model: choose a small model of the same family")
    return backend


@dataclass
class _Slot:
    """What a slot of the draft model holds, and for whom; `n_same` of its tokens are known to be the sequence's."""

    tokens: list[int] = field(default_factory=list)
    sequence: Sequence | None = None
    n_same: int = 0


@dataclass
class _Draft:
    """A guess in the making: the rows that are due for it, and how likely all of it is right."""

    slot: _Slot
    index: int
    due: list[int]
    n_most: int
    tokens: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    chance: float = 1.0


class Drafter:
    """See the module. Owned by the engine thread. `costs` are those of the large model's passes; the kinds of its
    guesses begin with `first_kind` of `record`."""

    def __init__(
        self, backend: Backend, kernels: RowKernels, costs: PassCosts, record: Record, first_kind: int
    ) -> None:
        self._backend = backend
        self._kernels = kernels
        self._main_costs = costs
        self._costs = PassCosts()
        self._record = record
        self._first_kind = first_kind
        self._slots = [_Slot() for _ in range(backend.limits.n_slots)]
        self._row_s: float | None = None  # of a row of text that was lacking
        self.spent_s = 0.0  # in all passes so far

    def release(self, slot: int) -> None:
        """Forget a slot's contents and give its memory back."""
        self._slots[slot] = _Slot()
        self._backend.release(slot)

    @property
    def pass_s(self) -> float:
        """Seconds of a pass for one guessed token; 0 while not known."""
        return self._costs.estimate(1) or 0.0

    def guess(self, wanted: Mapping[Sequence, int], n_running: int) -> dict[Sequence, Guess]:
        """Guesses for these sequences, of at most so many tokens each, while that pays; `n_running` run in all."""
        spare_s = self._main_costs.estimate(n_running) or 0.0
        drafts = {sequence: self._begin(sequence, n) for sequence, n in wanted.items()}
        late = [draft for draft in drafts.values() if draft is not None and len(draft.due) > N_AT_ONCE]
        for draft in late:
            spare_s -= self._catch_up(draft, spare_s / len(late))
        ready = [draft for draft in drafts.values() if draft is not None and len(draft.due) <= N_AT_ONCE]
        active, began_s = ready, self.spent_s
        while active and (n_running == 1 or self.spent_s - began_s + self.pass_s <= spare_s):
            self._run(active)
            spent_s = self.spent_s - began_s
            active = [draft for draft in active if self._pays(draft, ready, len(active), n_running, spent_s)]
        return {s: Guess(tuple(d.tokens), tuple(d.kinds)) for s, d in drafts.items() if d is not None}

    def _begin(self, sequence: Sequence, n_most: int) -> _Draft | None:
        """Cut the sequence's slot to what is right; None where nothing can be guessed."""
        n_most = min(n_most, self._backend.limits.n_ctx - len(sequence.tokens))
        if sequence.admission is None or n_most <= 0:
            return None
        index, tokens = sequence.admission.slot, sequence.tokens
        slot = self._slots[index]
        if slot.sequence is not sequence:
            slot.sequence, slot.n_same = sequence, count_common(slot.tokens, tokens)
            self._copy_prefix(index, tokens)
        n = slot.n_same
        for held, token in zip(islice(slot.tokens, n, None), islice(tokens, n, len(tokens) - 1), strict=False):
            if held != token:
                break
            n += 1
        slot.n_same = min(n, len(tokens) - 1)
        del slot.tokens[slot.n_same :]
        return _Draft(slot, index, tokens[slot.n_same :], n_most)

    def _copy_prefix(self, index: int, tokens: list[int]) -> None:
        """Take over what another slot holds more of a new sequence's text."""
        slot = self._slots[index]
        lengths = [count_common(other.tokens, tokens) for other in self._slots]
        longest = max(range(len(lengths)), key=lengths.__getitem__)
        if lengths[longest] >= slot.n_same + WORTH_COPYING:
            self._backend.copy_rows(longest, index, lengths[longest])
            slot.tokens, slot.n_same = tokens[: lengths[longest]], lengths[longest]

    def _catch_up(self, draft: _Draft, seconds: float) -> float:
        """Run some of the rows that are due, for about so long; returns how long it took."""
        n = N_AT_ONCE if self._row_s is None else max(N_AT_ONCE, int(seconds / self._row_s))
        rows = draft.due[: min(n, len(draft.due) - 1, self._backend.limits.max_rows)]
        took_s, _ = self._pass([Rows(draft.index, len(draft.slot.tokens), rows, 0)])
        row_s = took_s / len(rows)
        self._row_s = row_s if self._row_s is None else self._row_s + SMOOTHING * (row_s - self._row_s)
        draft.slot.tokens += rows
        return took_s

    def _run(self, drafts: list[_Draft]) -> None:
        """A pass for the next token of each draft."""
        took_s, logits = self._pass([Rows(draft.index, len(draft.slot.tokens), draft.due, 1) for draft in drafts])
        n_rows = sum(len(draft.due) for draft in drafts)
        self._costs.note(n_rows, took_s)
        for draft, row in zip(drafts, logits, strict=True):
            sequence = draft.slot.sequence
            assert sequence is not None
            draft.slot.tokens += draft.due
            token = sequence.sampler.choose(row, len(draft.slot.tokens))
            if token is None:
                draft.n_most, draft.chance = len(draft.tokens), 0.0
                continue
            probability = math.exp(self._kernels.log_probabilities(row, token, 0)[0])
            kind = self._first_kind + bisect_right(_BOUNDS, probability)
            draft.due = [token]
            draft.tokens.append(token)
            draft.kinds.append(kind)
            draft.chance *= self._record.chance(kind)

    def _pass(self, runs: list[Rows]) -> tuple[float, FloatArray]:
        began_s = time.perf_counter()
        logits = self._backend.run(build_batch(runs))[:, : self._kernels.n_vocab]
        took_s = time.perf_counter() - began_s
        self.spent_s += took_s
        return took_s, logits

    def _pays(self, draft: _Draft, drafts: list[_Draft], n_active: int, n_running: int, spent_s: float) -> bool:
        """Whether one more token makes for more tokens a second than this turn comes to without it."""
        if len(draft.tokens) >= draft.n_most:
            return False
        n_rows = n_running + sum(len(d.tokens) for d in drafts)
        turn_s, longer_s = self._main_costs.estimate(n_rows), self._main_costs.estimate(n_rows + 1)
        if not turn_s or not longer_s:
            return False
        chances = [self._record.chances(Guess(tuple(d.tokens), tuple(d.kinds))) for d in drafts]
        rate = (n_running + sum(map(sum, chances))) / (spent_s + turn_s)
        gain = draft.chance * self._record.chance(draft.kinds[-1])
        return gain > rate * (self.pass_s / n_active + max(longer_s - turn_s, 0.0))
