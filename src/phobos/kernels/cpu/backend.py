"""The CPU backend: a lowered program, its memory and its team, behind the `Backend` protocol."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from phobos.counters import CardInfo
from phobos.errors import UsageError
from phobos.gguf.reader import GGUF
from phobos.kernels.backend import BackendLimits, Batch, FloatArray, IntArray, Progress, find_best
from phobos.kernels.cpu.cache import SlotCache
from phobos.kernels.cpu.compiling.compiler import LoadedKernel, encode_record, load_kernels
from phobos.kernels.cpu.features import CPU
from phobos.kernels.cpu.layout import (
    HEADER_WORDS,
    KEY_BLOCK,
    LINE,
    RECORD_WORDS,
    WAIT_FLAG,
    Header,
    float_stride,
    thread_scratch_bytes,
)
from phobos.kernels.cpu.limits import remembered_read_gbs
from phobos.kernels.cpu.lowering.launches import BatchAddresses, Launch
from phobos.kernels.cpu.lowering.lower import Lowering
from phobos.kernels.cpu.memory import Arena
from phobos.kernels.cpu.packing import Packing
from phobos.kernels.cpu.products import put_read_ahead
from phobos.kernels.cpu.read_ahead import choose_for
from phobos.kernels.cpu.report import print_census, requested_pass
from phobos.kernels.cpu.states import SlotStates
from phobos.kernels.cpu.team import KERNELS as TEAM_KERNELS
from phobos.kernels.cpu.team import Team
from phobos.kernels.cpu.traffic import Traffic
from phobos.kernels.cpu.weights import plan_weights
from phobos.kernels.progress import LoadReport
from phobos.kernels.report import print_memory, reports_memory
from phobos.kernels.states import SlotBackend, check_batch
from phobos.kernels.workers import usable_threads
from phobos.program.steps import Buffer, Program


def processor_name() -> str:
    """The processor's own name, where the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def encode_steps(launches: tuple[Launch, ...], addresses: Mapping[str, int]) -> np.ndarray:
    """The records of a pass, int64 [n_launches * RECORD_WORDS]; `addresses` of kernels by name."""
    records = (encode_record(addresses[x.kernel], WAIT_FLAG * x.waits, x.arguments) for x in launches)
    steps = np.frombuffer(b"".join(records), np.int64).copy()
    assert steps.size == RECORD_WORDS * len(launches)
    return steps


class CpuBackend(SlotBackend):
    """A loaded program. Used by the engine thread; owns all its memory and threads."""

    def __init__(
        self, program: Program, gguf: GGUF, limits: BackendLimits, n_threads: int | None, progress: Progress
    ) -> None:
        can_cut = not program.states
        self._cache = SlotCache(program.layers, limits.n_slots, limits.n_ctx, limits.cache_k, limits.cache_v)
        self._states = SlotStates(program.states, limits.n_slots)
        limits = replace(limits, can_cut=can_cut, fork_block=KEY_BLOCK if can_cut else 0)
        super().__init__(limits, self._cache, self._states)
        self.n_threads = n_threads or usable_threads()
        if self.n_threads < 1:
            raise UsageError("--threads must be at least 1")
        self._program = program
        self._card: CardInfo | None = None
        self._weights, self._weight_arena = plan_weights(gguf, program)
        self.widened = tuple(w.name for w in self._weights.values() if w.widened)
        self._traffic = Traffic(program, self._weights, self._cache, limits.n_ctx)
        self.bytes_read: int | None = 0 if self._traffic.is_known else None
        scratch_bytes = thread_scratch_bytes(limits.max_rows)
        self._batch_arena = Arena(8 * HEADER_WORDS + 24 * limits.max_rows + 8 * LINE + self.n_threads * scratch_bytes)
        self._header = self._words(8 * HEADER_WORDS, np.int64)
        arrays = [self._words(4 * limits.max_rows, np.int32) for _ in range(6)]
        self._tokens, self._positions, self._slots, self._outputs, self._places, self._shared = arrays
        words = (Header.TOKENS, Header.POSITIONS, Header.SLOTS, Header.OUTPUTS, Header.PLACES, Header.SHARED)
        for word, array in zip(words, arrays, strict=True):
            self._header[word] = array.ctypes.data
        self._header[Header.SCRATCH] = self._batch_arena.take(self.n_threads * scratch_bytes)
        self._header[Header.SCRATCH_BYTES] = scratch_bytes
        lowering = Lowering(
            program,
            self._weights,
            self._cache,
            self._states,
            BatchAddresses(self._header.ctypes.data, self._outputs.ctypes.data),
            limits,
        )
        self._launches = lowering.lower()
        self._buffer_arena = lowering.arena
        report = self._load(gguf, progress)
        self._n_passes = 0
        self._reported_pass, self._reports_memory = requested_pass(), reports_memory()
        if self._reports_memory:
            print_memory("after loading", self.memory())
        self._team = Team(self.n_threads, self._steps.ctypes.data, len(self._launches))
        self._received, self._sent = (
            tuple(self._rows_view(buffer, lowering) for buffer in buffers)
            for buffers in (program.inputs, program.outputs)
        )
        self._logits: FloatArray = np.empty((limits.max_outputs, 0), np.float32)
        if program.logits is not None:
            self._logits = self._rows_view(program.logits, lowering)
        report.ready()

    # Loading

    def _words(self, n_bytes: int, dtype: type) -> np.ndarray:
        address = self._batch_arena.take(n_bytes)
        return self._batch_arena.view(address, n_bytes).view(dtype)

    def _load(self, gguf: GGUF, progress: Progress) -> LoadReport:
        """Load the kernels, packers first, and fill the weights meanwhile."""
        launched = tuple(dict.fromkeys(launch.kernel for launch in self._launches))
        with Packing(gguf, self._weights, self._weight_arena, self.n_threads) as packing:
            kernels = tuple(dict.fromkeys((*packing.packers, *launched, *TEAM_KERNELS)))
            report = LoadReport(progress, len(kernels))

            def take(kernel: LoadedKernel) -> None:
                packing.take(kernel)
                report.kernel(kernel)

            self._steps = encode_steps(self._launches, load_kernels(kernels, take))
            packing.wait(report.weights)
        for name, choice in choose_for(self._weights.values(), launched, self.n_threads).items():
            put_read_ahead(self._header, name, choice.ahead)
        return report

    def _rows_view(self, buffer: Buffer, lowering: Lowering) -> FloatArray:
        """All rows of a buffer."""
        stride = float_stride(buffer.width)
        n_rows = self.limits.max_outputs if buffer.per_output else self.limits.max_rows
        rows = self._buffer_arena.view(lowering.at(buffer), n_rows * stride).view(np.float32)
        return rows.reshape(n_rows, stride // 4)[:, : buffer.width]

    # Running

    def run(self, batch: Batch) -> FloatArray:
        """One pass; see `Backend.run`."""
        n_rows, n_outputs = len(batch.tokens), len(batch.outputs)
        check_batch(batch, self.limits, self._program.n_vocab)
        at = batch.positions if batch.places is None else batch.places
        self._tokens[:n_rows] = batch.tokens
        self._positions[:n_rows] = batch.positions
        self._slots[:n_rows] = batch.slots
        self._outputs[:n_outputs] = batch.outputs
        self._places[:n_rows] = at
        self._shared[:n_rows] = 0 if batch.shared is None else batch.shared
        self._cache.note_rows(batch.slots.tolist(), at.tolist())
        if not self.limits.can_cut:
            self._standing.advance(batch)
        self._header[Header.N_ROWS] = n_rows
        self._header[Header.N_OUTPUTS] = n_outputs
        self._header[Header.PASS] = (int(self._header[Header.PASS]) + 1) & 0x3FFFFFFF
        self._n_passes += 1
        if self.bytes_read is not None:
            self.bytes_read += self._traffic.pass_bytes(batch)
        if self._n_passes == self._reported_pass:
            self._report()
        else:
            self._team.run()
        if self._reports_memory:
            print_memory(f"after pass {self._n_passes} of {n_rows} rows", self.memory())
        return self._logits[:n_outputs]

    def put(self, values: Sequence[FloatArray]) -> None:
        """See `StageBackend.put`."""
        for rows, given in zip(self._received, values, strict=True):
            rows[: len(given)] = given

    def take(self, n_rows: int) -> tuple[FloatArray, ...]:
        """See `StageBackend.take`."""
        return tuple(rows[:n_rows] for rows in self._sent)

    def choose(self, batch: Batch, n_vocab: int) -> IntArray:
        """See `Backend.choose`."""
        return find_best(self.run(batch)[:, :n_vocab])

    def _report(self) -> None:
        """Run this pass step by step and print what each took."""

        def rows_of(launch: Launch) -> int:
            per_output = any(b.per_output for b in vars(launch.op).values() if isinstance(b, Buffer))
            return int(self._header[Header.N_OUTPUTS if per_output else Header.N_ROWS])

        def run_launch(index: int) -> None:
            self._team.run(self._steps.ctypes.data + 8 * RECORD_WORDS * index, 1)

        print_census(self._n_passes, self._launches, self._weights, rows_of, run_launch)

    def release(self, slot: int, keep: int = 0) -> None:
        """See `Backend.release`."""
        if keep == 0:
            self._states.release(slot)
        self._cache.release(slot, keep)
        super().release(slot, keep)

    def describe(self) -> CardInfo:
        """See `Backend.describe`."""
        if self._card is None:
            limit = remembered_read_gbs(self.n_threads)
            self._card = CardInfo(processor_name(), "cpu", CPU.name, self.n_threads, limit)
        return self._card

    def memory(self) -> dict[str, int]:
        """See `Backend.memory`."""
        return {
            "weights": self._weight_arena.n_bytes,
            "cache": self._cache.n_bytes + self._states.n_bytes,
            "scratch": self._buffer_arena.n_bytes + self._batch_arena.n_bytes,
        }

    def close(self) -> None:
        """See `Backend.close`."""
        self._team.close()
