"""Runs PTX, the compiled code of a kernel, as a card would, but for all threads of many blocks at once.

A register is a NumPy array of one value a thread (or one value, where all have the same). Threads that stand at the
same instruction go on together, those that are furthest behind first, so that branches meet again; barriers hold a
block's threads until all have come. What a card leaves undefined is an error here: memory outside of any allocation,
addresses that are not aligned, a shuffle that not all lanes of a warp take part in, and what `ptx_shared.py` watches.

Not a model of time. Multiply-adds are rounded from float64, which can differ from a card's in the last bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ptx.matrix import multiply_fragments
from ptx.operations import OPERATIONS, types_of
from ptx.shared import SharedMemory
from ptx.text import Address, Entry, Instruction, Operand, Register

BASE = 1 << 32  # the first address of global memory
UNIT = 256  # allocations begin at multiples of it, and a gap follows each
MAX_THREADS = 1 << 15  # run at once
WARP = 32
Array = Any  # an array of one value a thread, or one value


class Memory:
    """A card's global memory. `bytes_read` and `bytes_written` count what threads asked for."""

    def __init__(self, n_bytes: int) -> None:
        self.data = np.zeros(n_bytes, np.uint8)
        self._valid = np.zeros(n_bytes // 16, bool)
        self._next = UNIT
        self._sizes: dict[int, int] = {}

    def allocate(self, n_bytes: int) -> int:
        """The address of fresh memory, followed by a gap that nothing may touch."""
        start = self._next
        self._next = -(-(start + n_bytes) // UNIT) * UNIT + UNIT
        if self._next > len(self.data):
            raise MemoryError(f"no {n_bytes} bytes left")
        self._valid[start // 16 : -(-(start + n_bytes) // 16)] = True
        self._sizes[BASE + start] = n_bytes
        return BASE + start

    def free(self, address: int) -> None:
        """Make an allocation invalid; its space is not used again."""
        start = address - BASE
        self._valid[start // 16 : -(-(start + self._sizes.pop(address)) // 16)] = False

    @property
    def n_held(self) -> int:
        """Bytes in allocations."""
        return sum(self._sizes.values())

    def view(self, address: int, n_bytes: int) -> np.ndarray:
        """Bytes of one allocation."""
        start = address - BASE
        assert self._valid[start // 16 : -(-(start + n_bytes) // 16)].all(), f"{n_bytes} bytes at {address:#x}"
        return self.data[start : start + n_bytes]

    def places(self, address: Array, size: int, mask: Array) -> Array:
        """Indices of values of `size` bytes; those of masked threads are 0."""
        index = np.asarray(address).astype(np.int64) - BASE
        if mask is not None:
            index = np.where(mask, index, UNIT)
        assert (index % size == 0).all(), "an address is not aligned"
        assert (index >= 0).all() and (index < len(self.data)).all(), "an address outside of memory"
        inside = self._valid[index // 16]
        assert (inside if mask is None else inside | ~mask).all(), "an address outside of any allocation"
        return index // size


@dataclass
class Traffic:
    """What a launch moved: bytes threads asked for, and the 32-byte sectors their warps touched."""

    bytes_asked: int = 0
    sectors: int = 0
    instructions: int = 0
    opcodes: Counter[str] = field(default_factory=Counter)


class Machine:
    """One launch's worth of threads at a time; `traffic` is counted where it is given."""

    def __init__(self, memory: Memory, traffic: Traffic | None = None) -> None:
        self.memory = memory
        self.traffic = traffic

    def launch(
        self, entry: Entry, grid: tuple[int, int, int], n_threads: int, arguments: Sequence[int | float]
    ) -> None:
        """Run a whole grid."""
        assert len(arguments) == len(entry.parameters), f"{entry.name} takes {len(entry.parameters)} arguments"
        assert n_threads % WARP == 0 and all(0 < n < 1 << 31 for n in grid) and max(grid[1:]) < 1 << 16, grid
        n_blocks = grid[0] * grid[1] * grid[2]
        step = max(1, MAX_THREADS // n_threads)
        for first in range(0, n_blocks, step):
            blocks = np.arange(first, min(first + step, n_blocks))
            with np.errstate(all="ignore"):
                Threads(self, entry, grid, n_threads, arguments, blocks).run()


class Threads:
    """The threads of some blocks, and where they stand."""

    def __init__(
        self, machine: Machine, entry: Entry, grid: tuple[int, int, int], n_threads: int,
        arguments: Sequence[int | float], blocks: np.ndarray,
    ) -> None:  # fmt: skip
        self.entry, self.memory, self.traffic = entry, machine.memory, machine.traffic
        self.targets = set(entry.labels.values())
        self.n = n_threads * len(blocks)
        self.block = np.repeat(np.arange(len(blocks)), n_threads)
        self.shared = SharedMemory(len(blocks), entry.shared_bytes, self.n)
        self.registers: dict[str, Array] = {}
        thread = np.tile(np.arange(n_threads, dtype=np.uint32), len(blocks))
        number = np.repeat(blocks, n_threads).astype(np.uint32)
        self.special = {
            "%tid.x": thread, "%ntid.x": np.uint32(n_threads), "%laneid": thread & np.uint32(31),
            "%ctaid.x": number % np.uint32(grid[0]), "%ctaid.y": number // np.uint32(grid[0]) % np.uint32(grid[1]),
            "%ctaid.z": number // np.uint32(grid[0] * grid[1]), "%nctaid.x": np.uint32(grid[0]),
        }  # fmt: skip
        self.parameters = {
            name: np.float32(value) if kind == "f32" else np.uint64(int(value) & (2**64 - 1))
            for (name, kind), value in zip(entry.parameters, arguments, strict=True)
        }
        self.at = np.zeros(self.n, np.int64)
        self.exited = np.zeros(self.n, bool)
        self.waiting = np.zeros(self.n, bool)
        self.parked = np.zeros(self.n, bool)  # until the rest of their warp comes

    # Control

    def run(self) -> None:
        """Until all threads have returned."""
        while not self.exited.all():
            ready = ~self.exited & ~self.waiting & ~self.parked
            if not ready.any():
                assert self.waiting.any(), "lanes wait for the rest of their warp, which waits for others"
                self.waiting[:] = False
                self.shared.pass_barrier()
                continue
            index = int(self.at[ready].min())
            mask = ready & (self.at == index)
            self._go(index, None if mask.all() else mask)

    def _go(self, index: int, mask: Array) -> None:
        """Threads of `mask` (None: all) from an instruction on, until they part or might meet others."""
        targets = self.targets
        while True:
            instruction = self.entry.instructions[index]
            if self.traffic is not None:
                self.traffic.instructions += (self.n if mask is None else int(mask.sum())) // WARP
            if instruction.parts[0] == "bra":
                target = self.entry.labels[str(instruction.operands[-1])]
                taken = self._guard(instruction, mask)
                if mask is None and (taken is None or taken.all()):
                    index = target
                elif mask is None and not taken.any():
                    index += 1
                else:
                    self._part(index, target, mask, taken)
                    return
                continue
            if instruction.parts[0] == "ret":
                gone = self._guard(instruction, mask)
                self.exited |= True if gone is None else gone
                if instruction.guard is None:
                    return
                self._part(index, index + 1, mask, gone)
                return
            if instruction.parts[:2] == ("bar", "sync"):
                here = np.ones(self.n, bool) if mask is None else mask
                self.at[here] = index + 1
                self.waiting |= here
                return
            if instruction.parts[:2] == ("bar", "warp") and mask is not None:
                self.at[mask] = index + 1
                self.parked |= mask
                whole = (self.parked | self.exited).reshape(-1, WARP).all(axis=1)
                self.parked &= ~np.repeat(whole, WARP)
                return
            self._step(instruction, self._guard(instruction, mask))
            index += 1
            if mask is not None and index in targets:
                self.at[mask] = index
                return

    def _part(self, index: int, target: int, mask: Array, taken: Array) -> None:
        here = np.ones(self.n, bool) if mask is None else mask
        self.at[here] = index + 1
        self.at[here if taken is None else here & taken] = target

    def _guard(self, instruction: Instruction, mask: Array) -> Array:
        """The threads of `mask` that a guard lets through."""
        if instruction.guard is None:
            return mask
        name, wanted = instruction.guard
        value = np.broadcast_to(np.asarray(self.registers[name]), self.n) == wanted
        return value if mask is None else value & mask

    # Values

    def read(self, operand: Operand) -> Array:
        """An operand's values."""
        if isinstance(operand, Register):
            return self.registers[operand.name]
        if isinstance(operand, str):
            if operand in self.special:
                return self.special[operand]
            return np.uint64(self.entry.shared[operand])
        assert not isinstance(operand, Address | tuple)
        return operand

    def write(self, operand: Operand, value: Array, mask: Array) -> None:
        """Set a register of the threads of `mask`."""
        assert isinstance(operand, Register), operand
        if mask is not None:
            old = self.registers.get(operand.name, np.zeros((), np.asarray(value).dtype))
            value = np.where(mask, value, old)
        self.registers[operand.name] = value

    def _step(self, instruction: Instruction, mask: Array) -> None:
        kind = instruction.parts[0]
        if kind in ("ld", "st"):
            self._move(instruction, mask)
        elif kind == "shfl":
            self._shuffle(instruction, mask)
        elif kind == "bar":
            assert instruction.parts[1] == "warp", instruction.text
        elif kind == "mma":
            self._multiply(instruction, mask)
        elif kind == "cp":
            self._copy(instruction, mask)
        elif kind == "atom":
            self._add(instruction, mask)
        elif kind in ("membar", "fence"):
            pass  # all threads see what was written, at once
        else:
            target, *sources = instruction.operands
            types = types_of(instruction.parts)
            values = [types.cast(self.read(source), i) for i, source in enumerate(sources)]
            if kind not in OPERATIONS:
                raise NotImplementedError(instruction.text)
            self.write(target, OPERATIONS[kind](types, *values), mask)

    # Memory

    def _move(self, instruction: Instruction, mask: Array) -> None:
        parts = instruction.parts
        is_load = parts[0] == "ld"
        data, address = instruction.operands if is_load else reversed(instruction.operands)
        assert isinstance(address, Address)
        kind = types_of(parts).dtype
        if parts[1] == "param":
            self.write(data, self.parameters[str(address.base)], mask)
            return
        assert parts[1] in ("global", "shared"), instruction.text
        base = self.read(address.base)
        place = np.asarray(base).astype(np.uint64) + np.uint64(address.offset % (1 << 64))  # wraps below 0
        values = data if isinstance(data, tuple) else (data,)
        is_aligned = np.asarray(place) % np.uint64(kind.itemsize * len(values)) == 0
        assert (is_aligned if mask is None else is_aligned | ~mask).all(), f"not aligned: {instruction.text}"
        whole, index = self._places(parts[1], place, kind, mask)
        if self.traffic is not None and parts[1] == "global":
            self._count(place, kind.itemsize * len(values), mask)
        if parts[1] == "shared":
            threads = np.arange(self.n) if mask is None else np.flatnonzero(mask)
            note = self.shared.note_read if is_load else self.shared.note_write
            note(np.broadcast_to(index, self.n)[threads] * kind.itemsize, kind.itemsize * len(values), threads // WARP)
        for i, value in enumerate(values):
            if is_load:
                loaded = whole[index + i]
                self.write(value, types_of(parts).widen(loaded), mask)
            else:
                stored = np.broadcast_to(types_of(parts).narrow(self.read(value)), self.n)
                index_of_all = np.broadcast_to(index, self.n)
                chosen = slice(None) if mask is None else mask
                whole[index_of_all[chosen] + i] = stored[chosen]

    def _places(self, space: str, place: Array, kind: np.dtype, mask: Array) -> tuple[np.ndarray, Array]:
        if space == "global":
            return self.memory.data.view(kind), self.memory.places(place, kind.itemsize, mask)
        offset = np.where(True if mask is None else mask, place, np.uint64(0)).astype(np.int64)
        assert (offset >= 0).all() and (offset < self.entry.shared_bytes).all(), "an address outside of shared memory"
        index = (self.block * self.shared.block_bytes + offset) // kind.itemsize
        return self.shared.bytes.view(kind), index

    def _add(self, instruction: Instruction, mask: Array) -> None:
        """atom.global.add.u32: threads one after another."""
        assert instruction.parts == ("atom", "global", "add", "u32"), instruction.text
        target, address, value = instruction.operands
        assert isinstance(address, Address)
        place = np.asarray(self.read(address.base)).astype(np.uint64) + np.uint64(address.offset)
        index = np.broadcast_to(self.memory.places(place, 4, mask), self.n)
        added = np.broadcast_to(np.asarray(self.read(value)).astype(np.uint32), self.n)
        found = np.zeros(self.n, np.uint32)
        words = self.memory.data.view(np.uint32)
        for thread in range(self.n) if mask is None else np.flatnonzero(mask):
            found[thread] = words[index[thread]]
            words[index[thread]] += added[thread]
        self.write(target, found, mask)

    def _copy(self, instruction: Instruction, mask: Array) -> None:
        """cp.async: 4, 8 or 16 bytes of global memory to shared, the last of them zeros where fewer are to be read."""
        active = np.ones(self.n, bool) if mask is None else mask
        if instruction.parts[2] == "commit_group":
            self.shared.close_group(active)
            return
        if instruction.parts[2] == "wait_group":
            self.shared.wait(int(np.asarray(self.read(instruction.operands[0]))), active)
            return
        assert instruction.parts[3:5] == ("shared", "global"), instruction.text
        threads = np.flatnonzero(active)
        target, source, size, *rest = instruction.operands
        n_bytes = int(np.asarray(self.read(size)))
        places = []
        for operand in (target, source):
            assert isinstance(operand, Address)
            place = np.asarray(self.read(operand.base)).astype(np.uint64) + np.uint64(operand.offset % (1 << 64))
            assert (np.broadcast_to(place, self.n)[threads] % np.uint64(n_bytes) == 0).all(), instruction.text
            places.append(place)
        n_read = np.broadcast_to(self.read(rest[0]) if rest else n_bytes, self.n)[threads].astype(np.int64)
        assert (n_read <= n_bytes).all(), instruction.text
        _, to = self._places("shared", places[0], np.dtype(np.uint8), active)
        data = np.zeros((len(threads), n_bytes), np.uint8)
        reads = active.copy()
        for i in range(n_bytes):
            reads[threads] = i < n_read
            place = self.memory.places(places[1] + np.uint64(i), 1, reads)
            data[:, i] = np.where(i < n_read, self.memory.data[np.broadcast_to(place, self.n)[threads]], 0)
        if self.traffic is not None:
            self._count(places[1], n_bytes, active & (np.bincount(threads, n_read, self.n) > 0))
        self.shared.begin_copy(threads, np.broadcast_to(to, self.n)[threads], data)

    def _count(self, place: Array, n_bytes: int, mask: Array) -> None:
        assert self.traffic is not None
        active = np.ones(self.n, bool) if mask is None else mask
        self.traffic.bytes_asked += int(active.sum()) * n_bytes
        sector = np.where(active, np.broadcast_to(place, self.n) // np.uint64(32), np.uint64(0)).reshape(-1, WARP)
        ordered = np.sort(sector, axis=1)
        firsts = (ordered[:, 1:] != ordered[:, :-1]).sum() + len(ordered)
        self.traffic.sectors += int(firsts) - int((ordered[:, 0] == 0).sum())

    # Warps

    def _whole_warps(self, mask: Array, what: str) -> None:
        active = (~self.exited if mask is None else mask).reshape(-1, WARP)
        n_active = active.sum(axis=1)
        assert ((n_active == 0) | (n_active == WARP)).all(), f"not all lanes take part: {what}"

    def _shuffle(self, instruction: Instruction, mask: Array) -> None:
        target, source, lanes, clamp, members = instruction.operands
        active = True if mask is None else mask
        everyone = np.asarray(self.read(members)).astype(np.uint32) == np.uint32(0xFFFFFFFF)
        assert (everyone | ~np.asarray(active)).all(), instruction.text
        assert ((np.asarray(self.read(clamp)) == 31) | ~np.asarray(active)).all(), instruction.text
        self._whole_warps(mask, instruction.text)
        values = np.broadcast_to(self.read(source), self.n).reshape(-1, WARP)
        wanted = np.broadcast_to(self.read(lanes), self.n).reshape(-1, WARP).astype(np.int64)
        lane = np.arange(WARP)
        chosen = lane ^ wanted if instruction.parts[2] == "bfly" else wanted & 31
        assert instruction.parts[2] in ("bfly", "idx") and (chosen < WARP).all(), instruction.text
        assert isinstance(target, Register)
        name = target.name.partition("|")[0]
        self.write(Register(name), np.take_along_axis(values, chosen, axis=1).reshape(-1), mask)

    def _multiply(self, instruction: Instruction, mask: Array) -> None:
        self._whole_warps(mask, instruction.text)
        targets, *sources = instruction.operands
        fragments = []
        for source in sources:
            assert isinstance(source, tuple)
            fragments.append([np.broadcast_to(self.read(x), self.n).reshape(-1, WARP) for x in source])
        assert isinstance(targets, tuple)
        for target, value in zip(targets, multiply_fragments(instruction.parts, *fragments), strict=True):
            self.write(target, value.reshape(-1), mask)
