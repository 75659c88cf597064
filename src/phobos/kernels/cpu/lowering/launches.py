"""The launches of a pass in the making: what every op is lowered with.

Addresses of buffers, weights and states; the launches emitted so far; which quantized copies are fresh. Barriers are
placed at the end, where a launch touches what an unfinished one writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from phobos.kernels.backend import BackendLimits
from phobos.kernels.cpu.layout import LINE, Header, round_up
from phobos.kernels.cpu.lowering import fusion
from phobos.kernels.cpu.lowering.buffers import buffer_sizes
from phobos.kernels.cpu.memory import Arena
from phobos.kernels.cpu.names import Named, norm
from phobos.kernels.cpu.states import SlotStates
from phobos.kernels.cpu.weights import Weight
from phobos.program.steps import (
    Activate,
    Buffer,
    Glu,
    LayerNorm,
    Op,
    Program,
    StateLayer,
    reads_of,
    writes_of,
)


@dataclass(frozen=True)
class Launch:
    """One kernel of a pass. `reads` and `writes` name what it touches; `op` is what it is (part of) the doing of."""

    kernel: str
    arguments: tuple[int | float, ...]
    reads: frozenset[str]
    writes: frozenset[str]
    op: Op
    waits: bool = False


@dataclass(frozen=True)
class BatchAddresses:
    """Where the batch header lies, and the int32 row numbers of the wanted outputs."""

    header: int
    outputs: int


class LaunchBuilder:
    """Assigns addresses and collects launches; used once for each load."""

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Weight],
        states: SlotStates,
        batch: BatchAddresses,
        limits: BackendLimits,
    ) -> None:
        self.weights = weights
        self.states = states
        self.header = batch.header
        self.outputs = batch.outputs
        self.coded = fusion.find_coded(program, weights)
        self._launches: list[Launch] = []
        self._quantized: set[str] = set()  # buffers whose quantized copy is fresh
        sizes = buffer_sizes(program, weights, limits)
        self.arena = Arena(sum(round_up(n, LINE) for n in sizes.values()) + LINE * (8 * len(program.ops) + 4))
        self.addresses = {name: self.arena.take(n) for name, n in sizes.items()}

    @property
    def launches(self) -> tuple[Launch, ...]:
        """What was emitted, barriers placed."""
        return place_barriers(self._launches)

    # Addresses

    def at(self, buffer: Buffer) -> int:
        """Address of a buffer's first row."""
        return self.addresses[buffer.name]

    def count_at(self, buffer: Buffer) -> int:
        """Address of the number of rows a buffer has in this pass."""
        return self.header + 8 * (Header.N_OUTPUTS if buffer.per_output else Header.N_ROWS)

    def weight_at(self, name: str | None) -> int:
        return self.weights[name].address if name is not None else 0

    def state_at(self, state: StateLayer) -> int:
        """Address of a state of slot 0."""
        return self.states.addresses[state.index]

    def new_work(self) -> int:
        """A fresh counter of work items."""
        return self.arena.take(8)

    # Launches

    def emit(
        self,
        kernel: Named,
        arguments: tuple[int | float, ...],
        op: Op,
        *,
        reads: frozenset[str],
        writes: frozenset[str],
    ) -> None:
        """One more launch."""
        self._launches.append(Launch(kernel.name, arguments, reads, writes, op))
        self._quantized -= writes

    def emit_producer(
        self, plain: Named, quantizing: Named, op: LayerNorm | Glu | Activate, arguments: tuple[int | float, ...]
    ) -> None:
        """Emit an op that has two kernels: the quantizing one where only codes are read, else the plain one."""
        if op.out.name in self.coded:
            self.emit_codes(quantizing, arguments, op, reads_of(op), op.out)
        else:
            self.emit(plain, (self.at(op.out), *arguments), op, reads=reads_of(op), writes=writes_of(op))

    def emit_codes(
        self, kernel: Named, arguments: tuple[int | float, ...], op: Op, reads: frozenset[str], out: Buffer
    ) -> None:
        """Emit a kernel that writes the quantized copy of `out`, whose address goes before the arguments."""
        target = out.name + ".q8"
        self.emit(kernel, (self.addresses[target], *arguments), op, reads=reads, writes=frozenset({target}))
        self._quantized.add(out.name)

    def codes_of(self, x: Buffer, op: Op) -> int:
        """Address of the quantized copy of `x`, made now if it is not fresh."""
        target = x.name + ".q8"
        if x.name not in self._quantized:
            arguments = (self.addresses[target], self.at(x), self.count_at(x), x.width)
            self.emit(norm.quantize, arguments, op, reads=frozenset({x.name}), writes=frozenset({target}))
            self._quantized.add(x.name)
        return self.addresses[target]


def place_barriers(launches: list[Launch]) -> tuple[Launch, ...]:
    """A launch waits where it reads what one since the last barrier wrote, or writes what one read or wrote."""
    placed: list[Launch] = []
    read: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()
    for launch in launches:
        waits = bool(launch.reads & written or launch.writes & (read | written))
        if waits:
            read, written = frozenset(), frozenset()
        read |= launch.reads
        written |= launch.writes
        placed.append(replace(launch, waits=waits))
    return tuple(placed)
