"""The bytes of recurrent states on a card: fixed in size, float32, a slot's all together; their order is the kernels'.

The kernels begin a state anew at position 0, so a slot that holds nothing needs no care.
"""

from __future__ import annotations

import numpy as np

from phobos.kernels.cuda.card import Card
from phobos.kernels.cuda.layout import LINE, round_up
from phobos.program.steps import StateLayer


def slot_state_bytes(states: tuple[StateLayer, ...]) -> int:
    """Bytes of all states of one slot."""
    return sum(round_up(4 * state.n_values, LINE) for state in states)


class SlotStates:
    """All states of all slots. Used by the backend's thread."""

    def __init__(self, card: Card, states: tuple[StateLayer, ...], n_slots: int) -> None:
        self._card = card
        self.slot_bytes = self.n_saved_bytes = slot_state_bytes(states)
        self.n_bytes = n_slots * self.slot_bytes
        self._base = card.allocate(self.n_bytes) if states else 0
        sizes = [round_up(4 * state.n_values, LINE) for state in states]
        self.addresses = tuple(self._base + sum(sizes[:i]) for i in range(len(sizes)))  # of slot 0

    def save(self, slot: int) -> bytes:
        """A slot's states."""
        data = np.empty(self.slot_bytes, np.uint8)
        if self.slot_bytes:
            self._card.download(self._base + slot * self.slot_bytes, data)
        return data.tobytes()

    def restore(self, slot: int, data: bytes) -> None:
        """The inverse of `save`."""
        if len(data) != self.slot_bytes:
            raise ValueError(f"{len(data)} bytes are no state of this model, which has {self.slot_bytes}")
        if data:
            self._card.upload(self._base + slot * self.slot_bytes, np.frombuffer(data, np.uint8))
            self._card.synchronize()

    def copy(self, source: int, target: int) -> None:
        """Make `target` as `source`."""
        if self.slot_bytes:
            end, start = (self._base + slot * self.slot_bytes for slot in (target, source))
            self._card.copy(end, start, self.slot_bytes)
