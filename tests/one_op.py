"""Programs of one or a few ops, run on any backend: what goes in is chosen, what comes out is looked at.

Inputs enter through float32 embedding tables, a row of the table a token, so nothing here depends on how a backend
lays out its memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from models.gguf_writer import random_blocks, write_gguf
from phobos.gguf.quants import TABLE, GGMLType
from phobos.gguf.reader import GGUF, open_gguf
from phobos.kernels.backend import Backend, BackendLimits, Batch
from phobos.kernels.cpu.backend import CpuBackend
from phobos.kernels.reference.backend import ReferenceBackend
from phobos.program.steps import Buffer, CacheLayer, Embed, Op, Program, StateLayer

if TYPE_CHECKING:
    from phobos.kernels.cuda.card import Card


@dataclass
class OneOp:
    """A program in the making: `inputs` are tables [n_tokens, width], `ops` come after them; `out` is what is read."""

    inputs: dict[str, np.ndarray]
    ops: tuple[Op, ...]
    out: Buffer
    weights: Mapping[str, tuple[GGMLType, np.ndarray]] = field(default_factory=dict)
    layers: tuple[CacheLayer, ...] = ()
    states: tuple[StateLayer, ...] = ()

    def program(self, buffers: tuple[Buffer, ...]) -> Program:
        """The program, its inputs embedded first."""
        embeds = tuple(Embed(Buffer(name, table.shape[1]), f"{name}.weight") for name, table in self.inputs.items())
        return Program((*embeds, *self.ops), buffers, self.layers, self.out, self.out.width, 1 << 20, self.states)


def buffers_of(ops: tuple[Op, ...]) -> tuple[Buffer, ...]:
    """All buffers that ops name."""
    found = [value for op in ops for value in vars(op).values() if isinstance(value, Buffer)]
    return tuple(dict.fromkeys(found))


@contextmanager
def loaded(
    op: OneOp,
    folder: Path,
    kind: str,
    *,
    n_threads: int = 2,
    n_ctx: int = 64,
    n_slots: int = 2,
    max_rows: int = 64,
    cache: tuple[str, str] = ("f16", "f16"),
) -> Iterator[Backend]:
    """The program on a `cpu`, `reference` or (on a card that `ptx_card.py` plays) `cuda` backend; `cache` names the
    formats of cached keys and values."""
    tables = {f"{name}.weight": (GGMLType.F32, table) for name, table in op.inputs.items()}
    path = write_gguf(folder / "one_op.gguf", {"general.architecture": "none"}, {**tables, **op.weights})
    embeds = op.program(()).ops
    program = op.program(buffers_of(embeds))
    limits = BackendLimits(n_ctx, n_slots, max_rows, max_rows, program.n_vocab, cache_k=cache[0], cache_v=cache[1])
    with open_gguf(path) as gguf:
        backend: Backend
        if kind == "reference":
            backend = ReferenceBackend(program, gguf, limits, lambda progress: None)
        elif kind == "cuda":
            backend = open_on_ptx(program, gguf, limits)
        else:
            backend = CpuBackend(program, gguf, limits, n_threads, lambda progress: None)
        try:
            yield backend
        finally:
            backend.close()


def open_on_ptx(program: Program, gguf: GGUF, limits: BackendLimits) -> Backend:
    """A program on the card that `ptx_card.py` plays, or on a real one whose number is in `PHOBOS_TEST_CARD`."""
    from phobos.kernels.cuda.backend import CudaBackend
    from phobos.kernels.cuda.card import NvidiaCard
    from ptx.card import PtxCard

    number = os.environ.get("PHOBOS_TEST_CARD")
    if number is not None:
        _hold_card(int(number))
    card: Card = PtxCard() if number is None else NvidiaCard(int(number))
    return CudaBackend(program, gguf, limits, card, lambda progress: None)


@cache
def _hold_card(number: int) -> Card:
    """Keep a card's context from test to test: making one takes a third of a second."""
    from phobos.kernels.cuda.card import NvidiaCard

    return NvidiaCard(number)


def make_batch(tokens: np.ndarray | list[int], first_position: int = 0, slot: int = 0) -> Batch:
    """Rows of one slot, all wanted."""
    n = len(tokens)
    return Batch(
        np.asarray(tokens, np.int32),
        np.arange(first_position, first_position + n, dtype=np.int32),
        np.full(n, slot, np.int32),
        np.arange(n, dtype=np.int32),
    )


def join_batches(*batches: Batch) -> Batch:
    """Rows of several slots in one pass, all wanted."""
    arrays = [np.concatenate([getattr(b, name) for b in batches]) for name in ("tokens", "positions", "slots")]
    return Batch(*arrays, np.arange(len(arrays[0]), dtype=np.int32))


def quantize_activations(x: np.ndarray, code_max: int = 127) -> np.ndarray:
    """What codes of activations keep of `x`: the largest of each 32 values in `code_max` parts, as float64 values."""
    blocks = x.astype(np.float32).reshape(*x.shape[:-1], -1, 32)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    safe = np.where(largest > 0, largest, np.float32(1))
    codes = np.rint(blocks * (np.float32(code_max) / safe))
    scale = (largest / np.float32(code_max)).astype(np.float64)
    return (codes.astype(np.float64) * scale).reshape(x.shape)


def quantize_cached(x: np.ndarray) -> np.ndarray:
    """What a q8_0 cache keeps of `x`: the same codes, the scale as a half."""
    blocks = x.astype(np.float32).reshape(*x.shape[:-1], -1, 32)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    codes = np.rint(blocks * (np.float32(127) / largest))
    return (codes * (largest / np.float32(127)).astype(np.float16).astype(np.float32)).reshape(x.shape)


def random(seed: int, *shape: int) -> np.ndarray:
    """Normal float32 values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def make_matrix(kind: GGMLType, n_rows: int, n_in: int) -> np.ndarray:
    """Random values, or random blocks of types that nothing here writes."""
    return random(3, n_rows, n_in) if TABLE[kind].quantize is not None else random_blocks(kind, n_rows, n_in, 3)
