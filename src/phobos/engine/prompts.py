"""What of the running prompts may run in a pass, and where on its way a prompt leaves a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence as Listing

from phobos.engine.scheduler import PromptView
from phobos.engine.scoring import PromptReading
from phobos.engine.sequence import Sequence

TAIL = 8  # tokens before a prompt's end: templates end a prompt with a few that a later one need not have


def mark_of(sequence: Sequence | PromptReading, can_cut: bool) -> int | None:
    """After how many rows a prompt's state is kept; None where slots can be cut back.

    Shortly before its end: the same prompt again, and a conversation whose reply is rendered otherwise than it was
    written, go on from there.
    """
    if can_cut:
        return None
    n_reusable = len(sequence.reusable)
    return max(0, sequence.n_prompt - TAIL if n_reusable == sequence.n_prompt else n_reusable - 1)


def view_prompts(sequences: Listing[Sequence | PromptReading], n_outputs: int, can_cut: bool) -> list[PromptView]:
    """The running prompts, as the scheduler sees them; those whose rows give logits share the `n_outputs` a pass can
    give, and no pass runs over a checkpoint."""
    views = []
    for key, sequence in sorted(enumerate(sequences), key=lambda item: item[1].last_turn):
        n_left = sequence.n_prompt - sequence.n_rows
        n_most = n_left
        if sequence.first_told is not None:
            n_silent = max(0, sequence.first_told - sequence.n_rows)
            n_telling = min(n_outputs, n_left - n_silent)
            n_outputs -= n_telling
            n_most = n_silent + n_telling
        mark = mark_of(sequence, can_cut)
        if mark is not None and sequence.n_rows < mark:
            n_most = min(n_most, mark - sequence.n_rows)
        views.append(PromptView(key, n_left, sequence.last_turn, n_most))
    return views
