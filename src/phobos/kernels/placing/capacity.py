"""How large a context and how many slots a model gets: from its header, the settings and the free memory, before a byte
of weights is read."""

from __future__ import annotations

from phobos.errors import UsageError
from phobos.kernels.backend import STATE_COPIES, BackendLimits
from phobos.program.steps import Program
from phobos.settings import EngineSettings
from phobos.sizes import format_bytes

WHOLE_CTX = 4096  # the most a default takes where memory is taken for whole contexts
DEFAULT_SLOTS = 4
LEAST_BESIDE = 1024  # tokens for which there has to be room beside a whole context, for each further slot
SMALLEST_CTX = 256  # a default goes no lower; less than this answers nothing
CACHE_SHARE = 0.5  # of the memory the weights leave free, that defaults give to the cache
PROMPT_OUTPUTS = 32  # rows of one pass that give logits, beside one for every slot
CACHED_BYTES = {"f16": 2.0, "q8_0": 1.0625, "f32": 4.0}  # of a cached value, by format


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


def plan_limits(
    program: Program, settings: EngineSettings, free_bytes: int | None, *, grows: bool = True
) -> BackendLimits:
    """Context and slots: as the settings say, else the model's own context as far as `CACHE_SHARE` of `free_bytes`
    holds one, and `DEFAULT_SLOTS` slots. The context comes first: one long slot before four short ones.

    Slots grow with what they hold, so that many may share what only few could fill: together they take at most
    `settings.cache_bytes`, else what is chosen by the same share, and always enough for one whole context. Where they
    do not grow (cards take memory for whole contexts), defaults are at most `WHOLE_CTX` tokens and the slots that fit.

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
        n_ctx = program.n_ctx_train if grows else min(program.n_ctx_train, WHOLE_CTX)
        n_whole = 1 if grows else n_slots or 1
        if room is not None and n_whole * (n_ctx * row_bytes + fixed_bytes) > room:
            fitting = (room // n_whole - fixed_bytes) // row_bytes
            n_ctx = min(n_ctx, max(SMALLEST_CTX, fitting // 256 * 256))
    slot_bytes = n_ctx * row_bytes + fixed_bytes
    if n_slots is None:
        least_bytes = min(n_ctx, LEAST_BESIDE) * row_bytes + fixed_bytes if grows else slot_bytes
        fitting = DEFAULT_SLOTS if room is None else 1 + max(0, room - slot_bytes) // least_bytes
        n_slots = min(DEFAULT_SLOTS, fitting)
    if settings.cache_bytes is not None or settings.n_ctx is not None:
        _check_room(n_ctx, slot_bytes, settings.cache_bytes, free_bytes)
    return BackendLimits(
        n_ctx=n_ctx,
        n_slots=n_slots,
        max_rows=settings.chunk_rows + n_slots,
        max_outputs=(settings.chunk_rows if program.pooling is not None else PROMPT_OUTPUTS) + n_slots,
        n_vocab=program.n_vocab,
        cache_bytes=None if room is None or n_slots * slot_bytes <= room else max(room, slot_bytes),
        cache_k=settings.cache_type_k,
        cache_v=settings.cache_type_v,
        pooling=program.pooling,
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
