"""Who waits for whom: what a waiting sequence had better wait for, where it may read along, who gives way."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import numpy as np

from phobos.chat.messages import EmbedRequest, ScoreRequest
from phobos.engine.scheduler import mark_of
from phobos.engine.scoring import PromptReading
from phobos.engine.sequence import Sequence
from phobos.engine.slots.cache import HOLD_TOKENS, ReusePlan, SlotView, is_worth_waiting
from phobos.engine.slots.forks import Trunk
from phobos.engine.tickets import Ticket, slot_of


def is_held(
    sequence: Sequence | PromptReading,
    plan: ReusePlan,
    sources: Collection[int] | None,
    running: Iterable[Sequence | PromptReading],
    can_cut: bool,
) -> bool:
    """Whether a running prompt is about to compute what this one shares with it."""
    for other in running:
        if not other.is_prefill or other.admission is None or other.admission.fork is not None:
            continue
        if sources is not None and other.admission.slot not in sources:
            continue
        is_sibling = other.request.request_id == sequence.request.request_id
        is_source = plan.source == other.admission.slot
        least = 1 if is_sibling or is_source else HOLD_TOKENS
        mark = mark_of(other, can_cut)
        restarts = None if mark is None else (mark,)
        if is_worth_waiting(sequence.reusable, plan.n_reused, other.prompt, other.n_rows, least, restarts):
            return True
    return False


def find_trunks(
    request: ScoreRequest | EmbedRequest,
    sources: Collection[int] | None,
    slots: Iterable[SlotView],
    running: Collection[Ticket],
) -> Iterator[Trunk]:
    """The slots a scoring may fork: those that are idle, or run nothing but scorings."""
    for view in slots:
        if request.cache_slot not in (None, view.index) or (sources is not None and view.index not in sources):
            continue
        users = [ticket.sequence for ticket in running if slot_of(ticket) == view.index]
        if all(isinstance(user, PromptReading) for user in users):
            own = (user.n_prompt for user in users if user.admission is not None and user.admission.fork is None)
            yield Trunk(view.index, view.tokens, max(len(np.asarray(view.tokens)), *own, 0))


def find_youngest(running: Iterable[Ticket]) -> Ticket | None:
    """The one that began last; what only reads is never set aside: it takes no more than it was promised."""
    writing = [ticket for ticket in running if isinstance(ticket.sequence, Sequence)]
    return max(writing, key=lambda t: t.sequence.began_s if isinstance(t.sequence, Sequence) else 0.0, default=None)
