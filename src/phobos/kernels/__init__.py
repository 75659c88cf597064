"""How a program is computed: the reference, the CPU team, CUDA. `open_backend` is the way in.

How large a context and how many slots fit is decided here, from the header and the machine's free memory, before a
byte of weights is read.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from phobos.archs import build_program
from phobos.counters import ModelInfo
from phobos.errors import PhobosError, UsageError
from phobos.gguf.reader import GGUF
from phobos.kernels.backend import STATE_COPIES, Backend, BackendLimits, Progress, cache_bound
from phobos.kernels.devices import open_card
from phobos.kernels.model_info import describe_model
from phobos.machine import read_memory
from phobos.program.steps import Program
from phobos.settings import EngineSettings
from phobos.sizes import format_bytes

if TYPE_CHECKING:
    from phobos.kernels.cuda.card import Card

__all__ = ["open_backend", "plan_limits"]

DEFAULT_CTX = 4096
DEFAULT_SLOTS = 4
SMALLEST_CTX = 256  # a default goes no lower; less than this answers nothing
CACHE_SHARE = 0.5  # of the memory the weights leave free, that defaults give to the cache
PROMPT_OUTPUTS = 32  # rows of one pass that give logits, beside one for every slot
BACKENDS = ("cpu", "reference")
CACHED_BYTES = {"f16": 2.0, "q8_0": 1.0625, "f32": 4.0}  # of a cached value, by format
CACHE_BLOCK = 32  # dimensions of a q8_0 cache that share a scale
SHOWN_NAMES = 8  # tensors a warning names

logger = logging.getLogger("phobos.load")


def open_backend(gguf: GGUF, settings: EngineSettings, progress: Progress) -> tuple[Backend, ModelInfo]:
    """Load the model of `gguf` as `settings` ask, and say what was loaded.

    `UsageError` for settings this model or machine cannot have, `UnsupportedModelError` for a model Phobos cannot run.
    """
    if settings.backend not in BACKENDS:
        raise UsageError(f"there is no backend {settings.backend!r} here: use --backend {' or '.join(BACKENDS)}")
    program = build_program(gguf)
    _check_cache_types(program, settings)
    card = open_card(settings.device) if settings.backend != "reference" else None
    if card is not None:
        backend = _open_on_card(card, program, gguf, settings, progress)
        if backend is not None:
            return backend, describe_model(gguf, program, backend)
    limits = plan_limits(program, settings, _free_for_cache(gguf, program, settings.backend))
    try:
        backend = _open(program, gguf, limits, settings, progress)
    except (MemoryError, OSError) as error:
        raise PhobosError(
            f"there is not enough memory for this model with a context of {limits.n_ctx} tokens and {limits.n_slots} "
            "slots: use a smaller --ctx-size or --parallel, or a smaller model"
        ) from error
    needed = backend.slot_bytes(limits.n_ctx)
    if cache_bound(backend) < needed:  # by the pages a context ends in
        backend.close()
        raise UsageError(f"--cache-memory is too little for one context: give it {needed} bytes or more")
    return backend, describe_model(gguf, program, backend)


def _check_cache_types(program: Program, settings: EngineSettings) -> None:
    """`UsageError` for a cache this backend or model cannot have."""
    dims = {"k": {layer.k_dim for layer in program.layers}, "v": {layer.v_dim for layer in program.layers}}
    for flag, kind in (("k", settings.cache_type_k), ("v", settings.cache_type_v)):
        if kind == "f16":
            continue
        if kind != "q8_0":
            raise UsageError(f"--cache-type-{flag} {kind} is not supported: use f16 or q8_0")
        if settings.backend == "reference":
            raise UsageError(f"--backend reference caches floats: leave out --cache-type-{flag} {kind}")
        odd = [dim for dim in sorted(dims[flag]) if dim % CACHE_BLOCK]
        if odd:
            raise UsageError(
                f"--cache-type-{flag} {kind} needs heads of a multiple of {CACHE_BLOCK} dimensions and this model's "
                f"have {odd[0]}: use f16"
            )


def _open(program: Program, gguf: GGUF, limits: BackendLimits, settings: EngineSettings, progress: Progress) -> Backend:
    if settings.backend == "reference":
        from phobos.kernels.reference import ReferenceBackend

        return ReferenceBackend(program, gguf, limits, progress)
    from phobos.kernels.cpu.backend import CpuBackend

    backend = CpuBackend(program, gguf, limits, settings.n_threads, progress)
    if backend.widened:
        _warn_of_widened(gguf, backend.widened)
    return backend


def _open_on_card(
    card: Card, program: Program, gguf: GGUF, settings: EngineSettings, progress: Progress
) -> Backend | None:
    """The model on a card; None where the device was left to Phobos and the model is not for this card, which is said
    in a line."""
    from phobos.kernels.cuda.backend import SPARE_BYTES, CudaBackend, describe_program

    try:
        for flag, kind in (("k", settings.cache_type_k), ("v", settings.cache_type_v)):
            if kind != "f16":
                raise UsageError(f"a card's cache holds f16: leave out --cache-type-{flag} {kind}, or use --device cpu")
        held = sum(weight.n_bytes for weight in describe_program(gguf, program).values())
        free = card.memory_info()[0] - held - SPARE_BYTES
        limits = plan_limits(program, settings, free)
        backend = CudaBackend(program, gguf, limits, card, progress)
    except BaseException as error:
        card.close()
        if settings.device != "auto" and isinstance(error, MemoryError):
            raise PhobosError(f"{error}: use a smaller --ctx-size or --parallel, or --device cpu") from error
        if settings.device != "auto" or not isinstance(error, PhobosError | MemoryError):
            raise
        logger.warning("the CPU computes: %s", error)
        return None
    if backend.widened:
        _warn_of_widened(gguf, backend.widened)
    return backend


def _warn_of_widened(gguf: GGUF, names: tuple[str, ...]) -> None:
    kinds = ", ".join(sorted({gguf.tensors[name].type.name for name in names}))
    logger.warning(
        "no packed form for %s: held as F16, which takes more memory and time: %s",
        kinds,
        ", ".join(names[:SHOWN_NAMES]) + (f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""),
    )


def _free_for_cache(gguf: GGUF, program: Program, backend: str) -> int | None:
    """Bytes that weights leave of the free memory; None where the system does not tell what is free."""
    free = read_memory().available
    if free is None:
        return None
    if backend == "reference":
        return free - 4 * sum(math.prod(tensor.shape) for tensor in gguf.tensors.values())
    from phobos.kernels.cpu.weights import describe_program

    return free - sum(weight.n_bytes for weight in describe_program(gguf, program).values())


def cache_row_bytes(program: Program, settings: EngineSettings) -> int:
    """Bytes of one position of one slot, all layers."""
    formats = (settings.cache_type_k, settings.cache_type_v)
    if settings.backend == "reference":
        formats = ("f32", "f32")
    k_bytes, v_bytes = (CACHED_BYTES.get(name, CACHED_BYTES["f16"]) for name in formats)
    return round(sum(x.n_kv_heads * (x.k_dim * k_bytes + x.v_dim * v_bytes) for x in program.layers))


def state_bytes(program: Program) -> int:
    """Bytes of the states of fixed size of one slot, those kept of it included."""
    return STATE_COPIES * 4 * sum(state.n_values for state in program.states)


def plan_limits(program: Program, settings: EngineSettings, free_bytes: int | None) -> BackendLimits:
    """Context and slots: as the settings say, else what fits `CACHE_SHARE` of `free_bytes`, at most `DEFAULT_CTX`
    tokens and `DEFAULT_SLOTS` slots. The context comes first: one long slot before four short ones.

    Slots grow with what they hold, so that many may share what only few could fill: together they take at most
    `settings.cache_bytes`, else what is chosen by the same share, and always enough for one whole context.

    `UsageError` where the settings ask for more than the model was trained for or than there is memory.
    """
    _check(program, settings)
    n_ctx, n_slots = settings.n_ctx, settings.n_slots
    row_bytes = max(1, cache_row_bytes(program, settings))
    fixed_bytes = state_bytes(program)
    room = settings.cache_bytes
    if room is None and free_bytes is not None:
        room = int(max(0, free_bytes) * CACHE_SHARE)
    if n_ctx is None:
        n_ctx = min(program.n_ctx_train, DEFAULT_CTX)
        if room is not None and (n_slots or 1) * (n_ctx * row_bytes + fixed_bytes) > room:
            fitting = (room // (n_slots or 1) - fixed_bytes) // row_bytes
            n_ctx = min(n_ctx, max(SMALLEST_CTX, fitting // 256 * 256))
    slot_bytes = n_ctx * row_bytes + fixed_bytes
    if n_slots is None:
        n_slots = DEFAULT_SLOTS if room is None else max(1, min(DEFAULT_SLOTS, room // slot_bytes))
    if settings.cache_bytes is not None or settings.n_ctx is not None:
        _check_room(n_ctx, slot_bytes, settings.cache_bytes, free_bytes)
    return BackendLimits(
        n_ctx=n_ctx,
        n_slots=n_slots,
        max_rows=settings.chunk_rows + n_slots,
        max_outputs=PROMPT_OUTPUTS + n_slots,
        n_vocab=program.n_vocab,
        cache_bytes=None if room is None or n_slots * slot_bytes <= room else max(room, slot_bytes),
        cache_k=settings.cache_type_k,
        cache_v=settings.cache_type_v,
    )


def _check(program: Program, settings: EngineSettings) -> None:
    """`UsageError` for settings that no machine can have."""
    n_ctx = settings.n_ctx
    if n_ctx is not None and not 1 <= n_ctx <= program.n_ctx_train:
        raise UsageError(
            f"--ctx-size {n_ctx} is not possible: this model was trained for {program.n_ctx_train} tokens, "
            f"use --ctx-size {program.n_ctx_train} or less"
        )
    if settings.n_slots is not None and settings.n_slots < 1:
        raise UsageError("--parallel must be at least 1")
    if settings.n_threads is not None and settings.n_threads < 1:
        raise UsageError("--threads must be at least 1")
    if settings.chunk_rows < 1:
        raise UsageError("a prompt pass needs at least 1 row")


def _check_room(n_ctx: int, needed: int, cache_bytes: int | None, free_bytes: int | None) -> None:
    """`UsageError` where one context does not fit the cache, or the cache not the free memory."""
    if cache_bytes is not None and needed > cache_bytes:
        raise UsageError(
            f"--cache-memory {format_bytes(cache_bytes)} is less than one context of {n_ctx} tokens takes, "
            f"{format_bytes(needed)}: give it more, or use a smaller --ctx-size"
        )
    if free_bytes is None:
        return
    free = f"{format_bytes(max(free_bytes, 0))} of memory are free beside the weights"
    if cache_bytes is not None and cache_bytes > free_bytes:
        raise UsageError(f"--cache-memory {format_bytes(cache_bytes)} is too much, {free}: give it less")
    if needed > free_bytes:
        raise UsageError(
            f"a context of {n_ctx} tokens takes {format_bytes(needed)} and {free}: use a smaller --ctx-size"
        )
