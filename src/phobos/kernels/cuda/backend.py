"""The CUDA backend: a lowered program, its memory and its recorded passes, behind the `Backend` protocol.

A pass is: the batch block to the card, one replay of the recording of its shape class, the logits or the best tokens
back. A class is recorded when it first comes up. Nothing waits for the card in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from phobos.counters import CardInfo
from phobos.errors import PhobosError
from phobos.gguf.reader import GGUF
from phobos.kernels.backend import BackendLimits, Batch, FloatArray, IntArray, Progress
from phobos.kernels.cuda.cache import SlotCache, cache_bytes
from phobos.kernels.cuda.card import Card, GridLaunch
from phobos.kernels.cuda.compiler import load_code
from phobos.kernels.cuda.layout import HEADER_WORDS, KEY_TILE, Header
from phobos.kernels.cuda.lowering.buffers import buffer_sizes
from phobos.kernels.cuda.lowering.lower import Lowering, check_program
from phobos.kernels.cuda.states import SlotStates, slot_state_bytes
from phobos.kernels.cuda.weights import Weight, describe_weights, fill_weights, place_weights
from phobos.kernels.progress import LoadReport
from phobos.kernels.report import print_memory, reports_memory
from phobos.kernels.states import SlotBackend, check_batch
from phobos.program.steps import Program, matrices_of
from phobos.sizes import format_bytes

SPARE_BYTES = 256 << 20  # of the card's memory that the driver's own needs are left
ROW_CLASSES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def class_of(n: int, most: int) -> int:
    """The shape class of so many rows or outputs: the next of `ROW_CLASSES`, at most `most`; 0 for none."""
    if n == 0:
        return 0
    return min(most, next((size for size in ROW_CLASSES if size >= n), most))


def classes_up_to(most: int) -> list[int]:
    """All shape classes of up to `most` rows."""
    return sorted({class_of(n, most) for n in (*(c for c in ROW_CLASSES if c <= most), most)})


def needed_bytes(program: Program, weights: dict[str, Weight], limits: BackendLimits) -> int:
    """Bytes of the card's memory that a model takes, beside what the driver needs for itself."""
    sizes = buffer_sizes(program, weights, limits)
    held = sum(weight.n_bytes for weight in weights.values())
    kept = cache_bytes(program.layers, limits.n_slots, limits.n_ctx, (limits.cache_k, limits.cache_v))
    return held + kept + limits.n_slots * slot_state_bytes(program.states) + sum(sizes.values())


def describe_program(gguf: GGUF, program: Program) -> dict[str, Weight]:
    """How every tensor of a program will be held."""
    matrices = dict.fromkeys(name for op in program.ops for name in matrices_of(op))
    return describe_weights(gguf, matrices, [name for name in program.weights() if name not in matrices])


def check_fit(needed: int, cards: Sequence[Card]) -> None:
    """`PhobosError` in one sentence where a model does not fit cards."""
    free, total = (sum(numbers) for numbers in zip(*(card.memory_info() for card in cards), strict=True))
    if needed + SPARE_BYTES * len(cards) > free:
        has = "has" if len(cards) == 1 else "have"
        raise PhobosError(
            f"the model needs {format_bytes(needed)} of {' and '.join(card.name for card in cards)}, which {has} "
            f"{format_bytes(free)} free of {format_bytes(total)}: use a smaller --ctx-size or --parallel, a smaller "
            "model, or --device cpu"
        )


class CudaBackend(SlotBackend):
    """A loaded program on one card, whose slots take their memory from the start. Used by the engine thread; owns the
    card."""

    def __init__(self, program: Program, gguf: GGUF, limits: BackendLimits, card: Card, progress: Progress) -> None:
        formats = (limits.cache_k, limits.cache_v)
        check_program(program, formats)
        can_cut = not program.states
        fork_block = KEY_TILE if can_cut else 0
        self.bytes_read: int | None = None
        self._program = program
        self._card = card
        described = describe_program(gguf, program)
        check_fit(needed_bytes(program, described, limits), [card])
        self._weights = place_weights(card, described)
        self.widened = tuple(w.name for w in self._weights.values() if w.widened)
        self._cache = SlotCache(card, program.layers, limits.n_slots, limits.n_ctx, formats)
        self._states = SlotStates(card, program.states, limits.n_slots)
        limits = replace(limits, can_cut=can_cut, cache_bytes=None, fork_block=fork_block, chooses=True)
        super().__init__(limits, self._cache, self._states)
        self._lowering = Lowering(program, self._weights, self._cache, self._states, card, limits)
        self._recordings: dict[tuple[int, int, int | None], Any] = {}
        kernels = self.kernel_names()
        report = LoadReport(progress, len(kernels))
        code = load_code(kernels, [card.target], report.kernel)
        card.load({name: code[name, card.target] for name in kernels})
        fill_weights(gguf, card, self._weights, report.weights)
        self._batch = card.host_memory(4 * self._lowering.batch_words).view(np.int32)
        width = program.logits.width if program.logits is not None else 0
        self._logits = self._host_rows(limits.max_outputs, width)
        self._sent = tuple(self._host_rows(limits.max_rows, buffer.width) for buffer in program.outputs)
        self._given: Sequence[FloatArray] = ()  # on their way to the card
        self._chosen = card.host_memory(4 * limits.max_outputs).view(np.int32)
        self._n_passes, self._reports_memory = 0, reports_memory()
        if self._reports_memory:
            print_memory("after loading", self.memory())
        report.ready()

    # Loading

    def _host_rows(self, n_rows: int, width: int) -> FloatArray:
        """Memory of this machine for rows that come back."""
        if width == 0:
            return np.empty((n_rows, 0), np.float32)
        return self._card.host_memory(4 * n_rows * width).view(np.float32).reshape(n_rows, width)

    def launches(self, n_rows: int, n_outputs: int, n_choices: int | None = None) -> tuple[GridLaunch, ...]:
        """The launches of a pass of up to so many rows and wanted outputs; see `Lowering.lower`."""
        return self._lowering.lower(n_rows, n_outputs, n_choices)[0]

    def kernel_names(self) -> list[str]:
        """All kernels that any shape class needs."""
        names: dict[str, None] = {}
        outputs = classes_up_to(self.limits.max_outputs)
        n_choices = None if self._program.logits is None else self._program.n_vocab
        for n_rows in classes_up_to(self.limits.max_rows):
            for n_outputs in (0, *outputs) if n_rows == 1 else (0, outputs[-1]):
                for launch in self.launches(n_rows, n_outputs, n_choices):
                    names.setdefault(launch.kernel)
        return list(names)

    # Running

    def run(self, batch: Batch) -> FloatArray:
        """See `Backend.run`."""
        self._run(batch, None)
        logits = self._logits[: len(batch.outputs)]
        if len(logits):
            self._card.download(self._lowering.at(self._program.logits), logits)
        return logits

    def put(self, values: Sequence[FloatArray]) -> None:
        """See `StageBackend.put`."""
        self._given = [np.ascontiguousarray(given) for given in values]
        for buffer, given in zip(self._program.inputs, self._given, strict=True):
            self._card.upload(self._lowering.at(buffer), given)

    def take(self, n_rows: int) -> tuple[FloatArray, ...]:
        """See `StageBackend.take`."""
        for buffer, rows in zip(self._program.outputs, self._sent, strict=True):
            self._card.download(self._lowering.at(buffer), rows[:n_rows])
        return tuple(rows[:n_rows] for rows in self._sent)

    def choose(self, batch: Batch, n_vocab: int) -> IntArray:
        """See `Backend.choose`."""
        self._run(batch, n_vocab)
        chosen = self._chosen[: len(batch.outputs)]
        if len(chosen):
            self._card.download(self._lowering.chosen_at, chosen)
        return chosen

    def _run(self, batch: Batch, n_choices: int | None) -> None:
        """Start a pass, and wait for it where nothing is to come back."""
        n_rows, n_outputs, limits = len(batch.tokens), len(batch.outputs), self.limits
        check_batch(batch, limits, self._program.n_vocab)
        places = batch.positions if batch.places is None else batch.places
        shared = np.zeros(n_rows, np.int32) if batch.shared is None else batch.shared
        if not limits.can_cut:
            self._standing.advance(batch)
        self._batch[Header.N_ROWS], self._batch[Header.N_OUTPUTS] = n_rows, n_outputs
        arrays = (batch.tokens, batch.positions, batch.slots, batch.outputs, places, shared)
        for i, values in enumerate(arrays):
            start = HEADER_WORDS + i * limits.max_rows
            self._batch[start : start + len(values)] = values
        key = (class_of(n_rows, limits.max_rows), class_of(n_outputs, limits.max_outputs), n_choices)
        if key not in self._recordings:
            self._recordings[key] = self._card.record(self.launches(*key))
        self._card.upload(self._lowering.batch, self._batch)
        self._card.replay(self._recordings[key])
        if not n_outputs and not self._sent:
            self._card.synchronize()
        self._n_passes += 1
        if self._reports_memory:
            print_memory(f"after pass {self._n_passes} of {n_rows} rows", self.memory())

    def describe(self) -> CardInfo:
        """See `Backend.describe`."""
        features = "dp4a and mma, compute capability {}.{}".format(*self._card.target)
        bus_ids = () if self._card.bus_id is None else (self._card.bus_id,)
        return CardInfo(self._card.name, "cuda", features, 1, self._card.bandwidth_gbs, bus_ids)

    def memory(self) -> dict[str, int]:
        """See `Backend.memory`."""
        return {
            "weights": sum(weight.n_bytes for weight in self._weights.values()),
            "cache": self._cache.n_bytes + self._states.n_bytes,
            "scratch": self._lowering.n_bytes,
        }

    def close(self) -> None:
        """See `Backend.close`."""
        self._card.close()
