"""The bytes of recurrent states: fixed in size, float32, a slot's all together. Their order is the kernels'.

A state is cleared by the kernels at position 0, so a slot that holds nothing needs no care.
"""

from __future__ import annotations

from phobos.kernels.cpu.layout import LINE, round_up
from phobos.kernels.cpu.memory import PAGE, Arena
from phobos.program.steps import StateLayer


class SlotStates:
    """All states of all slots. Used by the backend's thread."""

    def __init__(self, states: tuple[StateLayer, ...], n_slots: int) -> None:
        offsets, total = [], 0
        for state in states:
            offsets.append(total)
            total += round_up(4 * state.n_values, LINE)
        self.n_saved_bytes = total
        self.slot_bytes = round_up(total, PAGE)
        self._arena = Arena(n_slots * self.slot_bytes)
        base = self._arena.take(n_slots * self.slot_bytes)
        self._base = base
        self.addresses = tuple(base + offset for offset in offsets)  # of slot 0
        self.n_bytes = n_slots * self.slot_bytes

    def save(self, slot: int) -> bytes:
        """A slot's states."""
        return self._arena.view(self._base + slot * self.slot_bytes, self.n_saved_bytes).tobytes()

    def restore(self, slot: int, data: bytes) -> None:
        """The inverse of `save`."""
        if len(data) != self.n_saved_bytes:
            raise ValueError(f"{len(data)} bytes are no state of this model, which has {self.n_saved_bytes}")
        self._arena.view(self._base + slot * self.slot_bytes, self.n_saved_bytes).data[:] = data

    def copy(self, source: int, target: int) -> None:
        """Make `target` as `source`."""
        views = [self._arena.view(self._base + slot * self.slot_bytes, self.n_saved_bytes) for slot in (source, target)]
        views[1][:] = views[0]

    def release(self, slot: int) -> None:
        """Give a slot's memory back."""
        self._arena.forget(self._base + slot * self.slot_bytes, self.slot_bytes)
