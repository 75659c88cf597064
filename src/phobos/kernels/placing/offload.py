"""Opens a model on cards: whole on one, its layers parted among several, or the last ones there and the rest on the
processor, as the settings ask or as memory allows."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import replace

from phobos.counters import LoadProgress
from phobos.errors import PhobosError, UsageError
from phobos.gguf.reader import GGUF
from phobos.host.machine import read_memory
from phobos.kernels.backend import Backend, BackendLimits, Progress
from phobos.kernels.cpu.backend import CpuBackend
from phobos.kernels.cuda.backend import SPARE_BYTES, CudaBackend, check_fit, describe_program, needed_bytes
from phobos.kernels.cuda.cache import cache_bytes
from phobos.kernels.cuda.card import Card
from phobos.kernels.cuda.lowering.buffers import buffer_sizes
from phobos.kernels.cuda.states import slot_state_bytes
from phobos.kernels.model_info import warn_of_widened
from phobos.kernels.placing.capacity import plan_limits
from phobos.kernels.placing.placement import place_most, place_pieces
from phobos.kernels.placing.split import SplitBackend, Stage, StageBackend
from phobos.program.stages import count_layers, cut_program, find_borders
from phobos.program.steps import Program
from phobos.settings import EngineSettings

logger = logging.getLogger("phobos.load")


def open_on_cards(
    cards: Sequence[Card], program: Program, gguf: GGUF, settings: EngineSettings, progress: Progress
) -> Backend | None:
    """The model on these cards, which it owns from now on; None where the device was left to Phobos and the model is
    not for this card, which is said in a line."""
    is_wanted = settings.device != "auto" or bool(settings.gpu_layers)
    with contextlib.ExitStack() as stack:
        for card in cards:
            stack.callback(card.close)
        try:
            backend = _open(cards, program, gguf, settings, progress)
        except (PhobosError, MemoryError) as error:
            if is_wanted and isinstance(error, MemoryError):
                raise PhobosError(f"{error}: use a smaller --ctx-size or --parallel, or --device cpu") from error
            if is_wanted:
                raise
            logger.warning("the CPU computes: %s", error)
            return None
        stack.pop_all()
        return backend


def _open(cards: Sequence[Card], program: Program, gguf: GGUF, settings: EngineSettings, progress: Progress) -> Backend:
    pieces = Pieces(gguf, program)
    rooms = [card.memory_info()[0] - SPARE_BYTES for card in cards]
    limits, starts = choose_places(pieces, rooms, settings)
    if starts is None:
        check_fit(needed_bytes(program, pieces.weights, limits), cards)
        raise PhobosError(
            f"the model's layers cannot be parted so that they fit {' and '.join(card.name for card in cards)}: use a "
            "smaller --ctx-size, --parallel or --gpu-layers, or --device cpu"
        )
    if len(cards) == 1 and starts == (0,):
        backend = CudaBackend(program, gguf, limits, cards[0], progress)
        warn_of_widened(gguf, backend.widened)
        return backend
    return _open_stages(cards, pieces, starts, gguf, limits, settings, progress)


class Pieces:
    """A program's pieces between its borders, and what they take of a card's memory."""

    def __init__(self, gguf: GGUF, program: Program) -> None:
        self.program = program
        self.weights = describe_program(gguf, program)
        self.borders = find_borders(program)
        self.n_layers = count_layers(program)
        self._parts = cut_program(program, self.borders)

    @property
    def weight_bytes(self) -> int:
        """Of all weights."""
        return sum(weight.n_bytes for weight in self.weights.values())

    def at_layer(self, n_last: int) -> int:
        """The piece with which the last `n_last` layers begin; `UsageError` where none does."""
        counts = [self.n_layers, *(self.n_layers - border.layer for border in self.borders), 0]
        if n_last not in counts:
            below, above = max(n for n in counts if n < n_last), min(n for n in counts if n > n_last)
            raise UsageError(f"--gpu-layers {n_last} would part layers that share a cache: use {below} or {above}")
        return counts.index(n_last)

    def place(self, limits: BackendLimits, rooms: Sequence[int], first: int) -> tuple[int, ...] | None:
        """Where each card's pieces begin, if they are to hold those from `first` on; None where they do not fit."""
        if first == 0 and len(rooms) == 1:
            return (0,) if needed_bytes(self.program, self.weights, limits) <= rooms[0] else None
        starts = place_pieces(self._sizes(limits)[first:], self._beside_scratch(limits, rooms))
        return None if starts is None else tuple(first + start for start in starts)

    def place_most(self, limits: BackendLimits, rooms: Sequence[int]) -> tuple[int, ...] | None:
        """The same for as many of the last pieces as fit."""
        return place_most(self._sizes(limits), self._beside_scratch(limits, rooms))

    def _sizes(self, limits: BackendLimits) -> list[int]:
        return [
            sum(self.weights[name].n_bytes for name in part.weights())
            + cache_bytes(part.layers, limits.n_slots, limits.n_ctx, (limits.cache_k, limits.cache_v))
            + limits.n_slots * slot_state_bytes(part.states)
            for part in self._parts
        ]

    def _beside_scratch(self, limits: BackendLimits, rooms: Sequence[int]) -> list[int]:
        """Buffers are as for the whole program, at most."""
        sizes = buffer_sizes(self.program, self.weights, limits)
        return [room - sum(sizes.values()) for room in rooms]


def choose_places(
    pieces: Pieces, rooms: Sequence[int], settings: EngineSettings
) -> tuple[BackendLimits, tuple[int, ...] | None]:
    """Context and slots, and the pieces with which each card's share begins (those before are the processor's); None
    where it does not fit. `rooms` are bytes of the cards.

    Unless settings say how many layers, the cards hold all where they can, if with a smaller context than a model that
    is parted with the processor would have.
    """
    program, wanted = pieces.program, settings.gpu_layers
    beside = sum(rooms) - pieces.weight_bytes
    first = 0 if wanted is None else pieces.at_layer(min(wanted, pieces.n_layers))
    if first == 0:
        try:
            limits = plan_limits(program, settings, beside, grows=False)
        except UsageError:  # the context asked for is more than the cards have beside the weights
            if wanted is not None:
                raise
        else:
            starts = pieces.place(limits, rooms, 0)
            if starts is not None or wanted is not None:
                return limits, starts
    free = read_memory().available
    limits = plan_limits(program, settings, None if free is None else beside + free, grows=False)
    return limits, pieces.place_most(limits, rooms) if wanted is None else pieces.place(limits, rooms, first)


def _open_stages(
    cards: Sequence[Card],
    pieces: Pieces,
    starts: Sequence[int],
    gguf: GGUF,
    limits: BackendLimits,
    settings: EngineSettings,
    progress: Progress,
) -> Backend:
    """The processor's stage, if any layers are left for it, and one for each card."""
    chosen = [pieces.borders[start - 1] for start in starts if start > 0]
    edges = [0, *(border.layer for border in chosen), pieces.n_layers]
    has_cpu = starts[0] > 0
    parts = cut_program(pieces.program, chosen)
    limits = replace(limits, cache_bytes=None)
    stages: list[Stage] = []
    with contextlib.ExitStack() as stack:
        for i, part in enumerate(parts):
            report = _part_of(progress, i, len(parts))
            backend: StageBackend
            if has_cpu and i == 0:
                cpu = CpuBackend(part, gguf, limits, settings.n_threads, report)
                device, widened, backend = "cpu", cpu.widened, cpu
            else:
                card = cards[i - has_cpu]
                on_card = CudaBackend(part, gguf, limits, card, report)
                device, widened, backend = card.name, on_card.widened, on_card
            stack.callback(backend.close)
            warn_of_widened(gguf, widened)
            stages.append(Stage(backend, device, edges[i], edges[i + 1]))
        stack.pop_all()
    for stage in stages:
        where = "the CPU" if stage.device == "cpu" else stage.device
        logger.info("layers %d to %d of %d lie on %s", stage.first_layer, stage.end_layer - 1, edges[-1], where)
    return SplitBackend(stages)


def _part_of(progress: Progress, index: int, n_parts: int) -> Progress:
    """Tells the progress of one of several loads as that of all."""

    def report(step: LoadProgress) -> None:
        is_last = index == n_parts - 1
        stage = step.stage if is_last or step.stage != "ready" else "packing weights"
        progress(replace(step, stage=stage, fraction=(index + step.fraction) / n_parts))

    return report
