"""How many bytes of weights and cache a pass reads from memory: worked out from its rows, nothing is measured.

Every weight is read once a pass, that of the output only where logits are wanted; a row of an embedding is too little
to count. Every slot's keys and values are read once, as far back as the layer's window, and its recurrent states.
"""

from __future__ import annotations

from collections.abc import Mapping

from phobos.kernels.backend import Batch
from phobos.kernels.cpu.cache import SlotCache
from phobos.kernels.cpu.weights import Weight
from phobos.program.steps import Attention, Buffer, Embed, Experts, Program, weights_of


class Traffic:
    """Bytes of one program's passes, in slots of `n_ctx` positions. Which experts a row takes is known only inside the
    pass: then `is_known` is False."""

    def __init__(self, program: Program, weights: Mapping[str, Weight], cache: SlotCache, n_ctx: int) -> None:
        self.is_known = not any(isinstance(op, Experts) for op in program.ops)
        self._every_pass = self._with_outputs = 0
        position_bytes = {x.layer.index: (x.key_slot_bytes + x.value_slot_bytes) // n_ctx for x in cache.layers}
        by_window: dict[int, int] = {}  # bytes of a position, by how many positions are read
        for op in program.ops:
            if isinstance(op, Embed):
                continue
            n_bytes = sum(weights[name].n_bytes for name in weights_of(op))
            if any(isinstance(value, Buffer) and value.per_output for value in vars(op).values()):
                self._with_outputs += n_bytes
            else:
                self._every_pass += n_bytes
            if isinstance(op, Attention):
                window = op.layer.window
                by_window[window] = by_window.get(window, 0) + position_bytes[op.layer.index]
        self._by_window = tuple(by_window.items())
        self._state_bytes = 4 * sum(state.n_values for state in program.states)

    def pass_bytes(self, batch: Batch) -> int:
        """Bytes that the pass over `batch` reads."""
        weights = self._every_pass + (self._with_outputs if len(batch.outputs) else 0)
        last_of = dict(zip(batch.slots.tolist(), batch.positions.tolist(), strict=True))
        for window, n_bytes in self._by_window:
            weights += n_bytes * sum(min(last + 1, window or last + 1) for last in last_of.values())
        return weights + len(last_of) * self._state_bytes
