"""Places from which a slot can be continued when its contents cannot be cut back (`BackendLimits.can_cut`).

Recurrent layers fold a sequence into a state of fixed size. A slot stands at its last row and goes on from there;
further back only where its state was kept (`scheduler.mark_of` says where that is).
"""

from __future__ import annotations

from collections.abc import Mapping

KEPT = 3  # checkpoints of a slot; the oldest goes first


class Checkpoints:
    """Kept states of one slot, by the number of tokens they stand for. Belongs to `Slots`."""

    def __init__(self) -> None:
        self._states: dict[int, bytes] = {}

    @property
    def lengths(self) -> tuple[int, ...]:
        """The numbers of tokens there is a state for."""
        return tuple(self._states)

    @property
    def states(self) -> Mapping[int, bytes]:
        """All of them."""
        return self._states

    def fill(self, states: Mapping[int, bytes]) -> None:
        """Hold these and nothing else."""
        self._states = dict(states)

    def get(self, n_tokens: int) -> bytes | None:
        """The state after so many tokens."""
        return self._states.get(n_tokens)

    def keep(self, n_tokens: int, state: bytes) -> None:
        """One more; the oldest goes where there are `KEPT` already."""
        self._states.pop(n_tokens, None)
        while len(self._states) >= KEPT:
            del self._states[next(iter(self._states))]
        self._states[n_tokens] = state

    def take_over(self, other: Checkpoints, n_tokens: int) -> None:
        """Hold what `other` has of the first `n_tokens` tokens, and nothing else."""
        self._states = {n: state for n, state in other._states.items() if n <= n_tokens}

    def clear(self) -> None:
        """Hold nothing."""
        self._states = {}
