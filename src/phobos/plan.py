"""What a model needs, what this machine has, and whether they fit: worked out from the header, nothing loaded.

The figures follow the CPU backend's own layout: packed weights, a key and value row for every token and slot, and
scratch for one pass. `tests/cli/test_plan.py` holds them against what loaded models take.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from phobos import machine
from phobos.archs import build_program
from phobos.gguf.quants import GGMLType
from phobos.gguf.reader import GGUF, open_gguf
from phobos.kernels.cpu.layout import PACKED, SCRATCH_BYTES, float_stride, packed_bytes, quantized_stride
from phobos.program.steps import CacheLayer, Program
from phobos.sizes import format_bytes

CACHE_BLOCK_BYTES = {"f16": 2.0, "q8_0": 34 / 32}  # bytes a value
PROCESS_BYTES = 190 << 20  # the interpreter with its libraries, tokenizer and code
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
    """The whole answer; bytes. `max_ctx` is the largest context that fits with `n_slots` slots, 0 if none does."""

    path: str
    architecture: str
    n_ctx: int
    n_ctx_train: int
    n_slots: int
    cache_bytes_per_token: int
    parts: tuple[Part, ...]
    total_bytes: int
    memory_total: int | None
    memory_available: int | None
    fits: bool
    max_ctx: int
    reason: str


def make_plan(
    path: Path,
    *,
    n_ctx: int | None = None,
    n_slots: int | None = None,
    n_threads: int | None = None,
    chunk_rows: int = 512,
    cache_types: tuple[str, str] = ("f16", "f16"),
    memory: machine.Memory | None = None,
) -> Plan:
    """Plan for a file; `memory` stands in for the machine's. `FileError`, `UnsupportedModelError` as the file asks."""
    with open_gguf(path) as gguf:
        program = build_program(gguf)
        architecture = gguf.architecture
        weights = weights_bytes(gguf, program)
    slots, context = n_slots or 1, n_ctx or program.n_ctx_train
    per_token = cache_bytes(program.layers, 1, cache_types)
    cache = slots * cache_bytes(program.layers, context, cache_types)
    scratch = scratch_bytes(program, chunk_rows, n_threads or machine.n_usable_cores())
    have = memory or machine.read_memory()
    parts = (
        Part("weights", weights, "memory", "packed for this processor when loaded, then the file is let go"),
        Part("cache", cache, "memory", f"{slots} x {context} tokens, {format_bytes(per_token)} each"),
        Part("scratch", scratch, "memory", f"one pass of up to {chunk_rows} rows"),
        Part("program", PROCESS_BYTES, "memory", "Python, its libraries, tokenizer and compiled kernels"),
    )
    total = sum(part.n_bytes for part in parts)
    fixed = total - cache
    fits, max_ctx, reason = _judge(program, cache_types, slots, total, fixed, have)
    return Plan(
        path=str(path),
        architecture=architecture,
        n_ctx=context,
        n_ctx_train=program.n_ctx_train,
        n_slots=slots,
        cache_bytes_per_token=per_token,
        parts=parts,
        total_bytes=total,
        memory_total=have.total,
        memory_available=have.available,
        fits=fits,
        max_ctx=max_ctx,
        reason=reason,
    )


def _judge(
    program: Program, cache_types: tuple[str, str], slots: int, total: int, fixed: int, have: machine.Memory
) -> tuple[bool, int, str]:
    """Whether it fits, the largest context that does, and a sentence."""
    if have.available is None:
        return True, program.n_ctx_train, "this system does not tell how much memory is free"
    room = int(have.available * (1 - SPARE))
    max_ctx = largest_context(program.layers, cache_types, slots, room - fixed, program.n_ctx_train)
    free = format_bytes(have.available)
    if total <= room:
        return True, max_ctx, f"it fits: {format_bytes(total)} of the {free} that are free"
    if max_ctx > 0:
        advice = f"use --ctx-size {max_ctx} or less"
    else:
        advice = "choose a smaller model or quantization, or close other programs"
    return False, max_ctx, f"it needs {format_bytes(total)} and {free} are free: {advice}"


def largest_context(
    layers: tuple[CacheLayer, ...], cache_types: tuple[str, str], slots: int, room: int, limit: int
) -> int:
    """The most tokens a slot can hold in `room` bytes, at most `limit`; whole hundreds once it is more than that."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if slots * cache_bytes(layers, middle, cache_types) <= room:
            low = middle
        else:
            high = middle - 1
    return low if low in (0, limit) or low < 200 else low // 100 * 100


def weights_bytes(gguf: GGUF, program: Program) -> int:
    """Bytes of all weights as the CPU backend holds them."""
    total = 0
    for name in program.weights():
        tensor = gguf.tensors[name]
        if len(tensor.shape) < 2:
            total += 4 * tensor.shape[0]
            continue
        kind = PACKED.get(tensor.type) or PACKED[GGMLType.F16]
        total += packed_bytes(kind, tensor.shape[0], tensor.shape[1])
    return total


def cache_bytes(layers: tuple[CacheLayer, ...], n_tokens: int, cache_types: tuple[str, str]) -> int:
    """Bytes the cache of one slot takes for `n_tokens` positions."""
    k_bytes, v_bytes = (CACHE_BLOCK_BYTES[kind] for kind in cache_types)
    return sum(int(n_tokens * layer.n_kv_heads * (layer.k_dim * k_bytes + layer.v_dim * v_bytes)) for layer in layers)


def scratch_bytes(program: Program, chunk_rows: int, n_threads: int) -> int:
    """Bytes of the buffers of one pass and of each thread's own scratch."""
    total = n_threads * SCRATCH_BYTES
    for buffer in program.buffers:
        stride = quantized_stride(buffer.width) if buffer.quantized else float_stride(buffer.width)
        total += stride * (1 if buffer.per_output else chunk_rows)
    return total
