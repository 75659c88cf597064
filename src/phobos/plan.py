"""What a model needs, what this machine has, and whether they fit: worked out from the header, nothing loaded.

The figures follow the CPU backend's own layout: packed weights, a row of keys and values for every token and slot,
and the buffers of one pass. A test holds them against what loaded models take.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from phobos.archs import build_program
from phobos.engine.slots.archive import choose_archive_bytes
from phobos.errors import UsageError
from phobos.gguf.reader import open_gguf
from phobos.host import machine
from phobos.kernels.backend import BackendLimits
from phobos.kernels.cpu.needs import logits_row_bytes, packing_bytes, scratch_bytes, weights_bytes
from phobos.kernels.placing.capacity import cache_row_bytes, plan_limits, state_bytes
from phobos.program.steps import Program
from phobos.settings import EngineSettings
from phobos.sizes import format_bytes

# What a process holds that has loaded all but the model: 31 MB its own, and 113 to 135 MB of pages of libraries' files
# (most of them the compiler's, which loads the kernels), as many as the system happens to have in memory.
PROCESS_BYTES = 151_000_000
# A token of the vocabulary, its merges included, in the objects of Python and of the tokenizer's library.
TOKEN_BYTES, SENTENCEPIECE_TOKEN_BYTES = 490, 340
SENTENCEPIECE = ("llama", "t5")  # values of `tokenizer.ggml.model`
SPARE = 0.03  # of the available memory, left to the rest of the system


@dataclass(frozen=True)
class Part:
    """One part of what is needed: how much, where it goes, and why there."""

    name: str
    n_bytes: int
    where: str
    why: str


@dataclass(frozen=True)
class Plan:
    """The whole answer; bytes. `max_ctx` is the largest context that fits with `n_slots` slots, 0 if none does.

    `total_bytes` is what a running model with a full context needs; `peak_bytes` the most the process is seen to hold,
    which while loading is the packed weights, slices of the file and the tokenizer in the making. `archive_bytes` more
    may be taken by conversations that gave way to others; it is chosen from what is left, and no part of the total.
    """

    path: str
    architecture: str
    n_ctx: int
    n_ctx_train: int
    n_slots: int
    cache_bytes_per_token: int
    parts: tuple[Part, ...]
    total_bytes: int
    peak_bytes: int
    memory_total: int | None
    memory_available: int | None
    fits: bool
    max_ctx: int
    reason: str
    archive_bytes: int = 0


def make_plan(settings: EngineSettings, memory: machine.Memory | None = None) -> Plan:
    """The plan for loading `settings.model_path` so; `memory` stands in for the machine's.

    `FileError` and `UnsupportedModelError` as the file asks, `UsageError` for settings the model cannot have.
    """
    have = memory or machine.read_memory()
    with open_gguf(settings.model_path) as gguf:
        program = build_program(gguf)
        architecture = gguf.architecture
        weights = weights_bytes(gguf, program)
        limits = _limits(program, settings, None if have.available is None else have.available - weights)
        kind = gguf.get_str("tokenizer.ggml.model", "")
        n_threads = settings.n_threads or machine.n_usable_cores()
        scratch = scratch_bytes(gguf, program, limits, n_threads)
    per_token = cache_row_bytes(program, settings)
    cache = limits.n_slots * limits.n_ctx * per_token
    states = limits.n_slots * state_bytes(program)
    if limits.cache_bytes is not None:  # one whole context at least
        cache = min(cache, max(limits.n_ctx * per_token, limits.cache_bytes - states))
    token_bytes = SENTENCEPIECE_TOKEN_BYTES if kind in SENTENCEPIECE else TOKEN_BYTES
    process = PROCESS_BYTES + token_bytes * program.n_vocab
    unwritten = logits_row_bytes(program) * (limits.max_outputs - 1)  # rows of logits few passes ask for
    parts: tuple[Part, ...] = (
        Part(
            "weights", weights, "memory", "packed for this processor while loading; the file is not needed afterwards"
        ),
        *_slot_parts(limits, cache, per_token, states),
        Part("scratch", scratch, "memory", f"the buffers of one pass of up to {limits.max_rows} rows"),
        Part("program", process, "memory", "Python, its libraries, tokenizer and compiled kernels"),
    )
    draft_per_token = 0
    if settings.draft_path is not None:
        draft, draft_per_token = _plan_draft(settings, settings.draft_path, limits, have)
        parts = (*parts, draft)
    total = sum(part.n_bytes for part in parts)
    room = None if have.available is None else int(have.available * (1 - SPARE)) - (total - cache)
    if settings.cache_bytes is not None:
        room = settings.cache_bytes if room is None else min(room, settings.cache_bytes)
    max_ctx = largest_context(room, per_token + limits.n_slots * draft_per_token, program.n_ctx_train)
    fits = room is None or cache <= room
    return Plan(
        path=str(settings.model_path),
        architecture=architecture,
        n_ctx=limits.n_ctx,
        n_ctx_train=program.n_ctx_train,
        n_slots=limits.n_slots,
        cache_bytes_per_token=per_token,
        parts=parts,
        total_bytes=total,
        peak_bytes=max(total - unwritten, process + packing_bytes(weights, n_threads)),
        memory_total=have.total,
        memory_available=have.available,
        fits=fits,
        max_ctx=max_ctx,
        reason=_reason(fits, total, have.available, max_ctx),
        archive_bytes=choose_archive_bytes(settings, None if have.available is None else have.available - total),
    )


def _plan_draft(settings: EngineSettings, path: Path, limits: BackendLimits, have: machine.Memory) -> tuple[Part, int]:
    """What the draft model takes, and the bytes of a token in its cache."""
    own = replace(settings, model_path=path, draft_path=None, n_ctx=None, n_slots=limits.n_slots, cache_bytes=None)
    alone = make_plan(own, have)
    alone = make_plan(replace(own, n_ctx=min(limits.n_ctx, alone.n_ctx_train)), have)
    n_bytes = sum(part.n_bytes for part in alone.parts if part.name != "program")
    why = f"{path.name}: weights, {limits.n_slots} x {alone.n_ctx} tokens of KV cache, buffers"
    return Part("draft model", n_bytes, "memory", why), alone.cache_bytes_per_token


def _describe_cache(limits: BackendLimits, n_tokens: int, per_token: int) -> str:
    """How many tokens the cache has room for; it grows up to that."""
    each = f"{format_bytes(per_token)} each"
    if n_tokens >= limits.n_slots * limits.n_ctx:
        return f"up to {limits.n_slots} x {limits.n_ctx} tokens, {each}"
    return f"up to {n_tokens} tokens of {limits.n_slots} conversations together, {each}"


def _slot_parts(limits: BackendLimits, cache: int, per_token: int, states: int) -> list[Part]:
    """What slots take: rows of the cache, states of fixed size, or both."""
    parts = []
    if per_token:
        parts.append(Part("cache", cache, "memory", _describe_cache(limits, cache // per_token, per_token)))
    if states:
        parts.append(Part("states", states, "memory", "of recurrent layers, with their checkpoints"))
    return parts


def _limits(program: Program, settings: EngineSettings, free_bytes: int | None) -> BackendLimits:
    """Context and slots as loading would choose them; what does not fit is planned all the same, to be told."""
    try:
        return plan_limits(program, settings, free_bytes)
    except UsageError:
        return plan_limits(program, settings, None)


def _reason(fits: bool, total: int, available: int | None, max_ctx: int) -> str:
    if available is None:
        return "this system does not report free memory"
    if fits:
        return f"it fits: {format_bytes(total)} of the {format_bytes(available)} that are free"
    advice = "choose a smaller model or quantization, or close other programs"
    if max_ctx > 0:
        advice = f"use --ctx-size {max_ctx} or less"
    return f"it needs {format_bytes(total)} and {format_bytes(available)} are free: {advice}"


def largest_context(room: int | None, bytes_per_token: int, limit: int) -> int:
    """The most tokens every slot can hold in `room` bytes, at most `limit`; whole hundreds where that is more."""
    if room is None:
        return limit
    fitting = max(0, room // max(1, bytes_per_token))
    return limit if fitting >= limit else fitting // 100 * 100 if fitting > 100 else fitting
