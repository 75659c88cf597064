"""Weights on a card: matrices as the planes of their type, vectors as float32.

Every tensor is read once from the file's mapping, a slab of rows at a time, packed by several threads and sent. A type
without a packed form is widened to halves, which the load reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from phobos.gguf.quants import TABLE, GGMLType
from phobos.gguf.reader import GGUF
from phobos.kernels.cuda.card import Card
from phobos.kernels.cuda.layout import LINE, round_up
from phobos.kernels.cuda.packed_types import PACKED, PackedType, packed_bytes, plane_bytes
from phobos.kernels.cuda.packing import find_packer

SLAB_BYTES = 16 << 20  # of the file, packed and sent at a time
N_PACKERS = 4  # slabs at work at once


@dataclass(frozen=True)
class Weight:
    """A tensor on the card: its planes' addresses. `kind` is None for a float32 vector, which is plane 0."""

    name: str
    n_bytes: int
    kind: PackedType | None
    shape: tuple[int, int] = (1, 1)
    widened: bool = False
    planes: tuple[int, int, int] = (0, 0, 0)


def describe_weights(gguf: GGUF, matrices: Iterable[str], vectors: Iterable[str]) -> dict[str, Weight]:
    """How every tensor will be held; they have no addresses yet."""
    weights = {}
    for name in matrices:
        info = gguf.tensors[name]
        shape = (math.prod(info.shape[:-1]), info.shape[-1])
        fits = info.type in PACKED and shape[1] % PACKED[info.type].values == 0
        kind = PACKED[info.type if fits else GGMLType.F16]
        weights[name] = Weight(name, packed_bytes(kind, *shape), kind, shape, not fits)
    for name in vectors:
        n = math.prod(gguf.tensors[name].shape)
        weights[name] = Weight(name, round_up(4 * n, LINE), None, (1, n))
    return weights


def takes_codes(weights: Mapping[str, Weight], name: str) -> bool:
    """Whether a matrix is multiplied with quantized activations."""
    kind = weights[name].kind
    return kind is not None and not kind.is_float


def place_weights(card: Card, weights: Mapping[str, Weight]) -> dict[str, Weight]:
    """Take the card's memory for every tensor."""
    placed = {}
    for name, weight in weights.items():
        sizes = (weight.n_bytes, 0, 0) if weight.kind is None else plane_bytes(weight.kind, *weight.shape)
        first, second, third = (card.allocate(size) if size else 0 for size in sizes)
        placed[name] = replace(weight, planes=(first, second, third))
    return placed


def fill_weights(gguf: GGUF, card: Card, weights: Mapping[str, Weight], report: Callable[[str, float], None]) -> None:
    """Send every tensor to its place; `report(tensor, fraction)` is called as bytes are done."""
    total, done = sum(w.n_bytes for w in weights.values()), 0
    with ThreadPoolExecutor(N_PACKERS, thread_name_prefix="phobos-pack") as pool:
        for name, weight in weights.items():
            for fraction in _send(gguf, card, weight, pool):
                report(name, (done + fraction * weight.n_bytes) / total)
            done += weight.n_bytes
    card.synchronize()


def _send(gguf: GGUF, card: Card, weight: Weight, pool: ThreadPoolExecutor) -> Iterator[float]:
    """One tensor, slab by slab in the file's order; yields the fraction done."""
    kind = gguf.tensors[weight.name].type
    data = gguf.data(weight.name)
    if weight.kind is None:
        values = TABLE[kind].dequantize(data).astype(np.float32).ravel()
        card.upload(weight.planes[0], values)
        card.synchronize()
        yield 1.0
        return
    if weight.widened:
        halves = np.clip(TABLE[kind].dequantize(data), -65504, 65504).astype(np.float16)
        card.upload(weight.planes[0], np.ascontiguousarray(halves))
        card.synchronize()
        yield 1.0
        return
    if weight.kind.table:
        card.upload(weight.planes[1], np.array(weight.kind.table, np.int8))
        card.synchronize()
    blocks = data.reshape(-1, TABLE[kind].n_bytes)
    step = max(1, SLAB_BYTES // TABLE[kind].n_bytes)
    slabs = [blocks[first : first + step] for first in range(0, len(blocks), step)]
    pack = find_packer(kind)
    starts = list(weight.planes)
    for turn in range(0, len(slabs), N_PACKERS):
        for planes in pool.map(pack, slabs[turn : turn + N_PACKERS]):
            for i, plane in enumerate(planes):
                if plane is not None:
                    card.upload(starts[i], plane)
                    starts[i] += plane.nbytes
            card.synchronize()  # the planes must live until they are sent
        yield min(1.0, (turn + N_PACKERS) / len(slabs))
