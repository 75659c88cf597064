"""Model files as an attacker would write them: sound files of every family, with one or more things changed by seed.

A `Case` is a file in pieces: metadata, a table of tensors, and their bytes. `mutate` changes numbers of the model, rows
of the table, bytes of the header or the contents of blocks; `write` puts a file together again without checking it.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from models import family_models, tiny_models
from models.gguf_writer import header_bytes, key_bytes, pack_tensor, random_blocks, tensor_bytes
from phobos.gguf.quants import TABLE, GGMLType

NAMES = (*tiny_models.RECIPES, *family_models.FAMILIES)
INTEGERS = (0, 1, 2, 3, 5, 7, 16, 31, 48, 63, 65, 66, 96, 128, 255, 576, 577, 4096, 1 << 16, 1 << 20, (1 << 31) - 1)
HUGE = (1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1, -1, -2, -(1 << 31), -(1 << 63))
FLOATS = (0.0, -0.0, -1.0, 1e-45, 1e-30, 0.5, 1.0, 2.0, 1e10, 3e38, math.inf, -math.inf, math.nan)
LENGTHS = (0, 1, 2, 3, 15, 16, 17, 31, 32, 64, 100, 255, 256, 257, 512, 1024, 1 << 20, 1 << 40, (1 << 64) - 1)


@dataclass(frozen=True)
class Row:
    """A row of the tensor table, `shape` slowest first, and the bytes the file holds for it."""

    name: str
    kind: int
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True)
class Case:
    """A file in pieces; `spoilt` are changes to single bytes of its head, (place as a share of its length, value)."""

    family: str
    metadata: dict[str, Any]
    rows: tuple[Row, ...]
    spoilt: tuple[tuple[float, int], ...] = ()
    what: str = "sound"

    @property
    def architecture(self) -> str:
        """The prefix of its numbers."""
        return str(self.metadata["general.architecture"])


@cache
def sound(name: str, kinds: tuple[GGMLType, ...] = (GGMLType.F32,)) -> Case:
    """A family's file as it should be; matrices take `kinds` in turn where their rows are whole blocks."""
    if name in tiny_models.RECIPES:
        recipe = tiny_models.RECIPES[name]
        metadata, weights = tiny_models.make_metadata(recipe), tiny_models.make_weights(recipe)
    else:
        family = family_models.FAMILIES[name]
        metadata, weights = family_models.make_metadata(family), family_models.make_weights(family)
    rows, turn = [], 0
    for tensor, values in weights.items():
        kind = GGMLType.F32
        if values.ndim > 1 and "conv" not in tensor and "position" not in tensor and "ssm_" not in tensor:
            kind, turn = kinds[turn % len(kinds)], turn + 1
        kind = GGMLType.F32 if values.shape[-1] % TABLE[kind].block else kind
        shape, packed = pack_tensor(kind, values if TABLE[kind].quantize is not None else _blocks(kind, values, turn))
        rows.append(Row(tensor, kind, shape, packed))
    return Case(name, metadata, tuple(rows))


def _blocks(kind: GGMLType, values: np.ndarray, seed: int) -> np.ndarray:
    """Random blocks in place of values, for types that nothing here writes."""
    packed = random_blocks(kind, math.prod(values.shape[:-1]), values.shape[-1], seed)
    return packed.reshape(*values.shape[:-1], -1)


def write(case: Case, path: Path, *, with_data: bool = True) -> Path:
    """Put the file together; without data the tensors' bytes are holes, but those read with the header."""
    table, offset = b"", 0
    offsets = []
    for row in case.rows:
        table += tensor_bytes(row.name, row.shape[::-1], row.kind, offset)
        offsets.append(offset)
        offset += -(-len(row.data) // 32) * 32
    head = header_bytes(len(case.rows), len(case.metadata)) + _metadata_bytes(case) + table
    spoilt = bytearray(head)
    for share, value in case.spoilt:
        spoilt[int(share * len(spoilt))] = value
    head = bytes(spoilt) + bytes(-len(spoilt) % 32)
    with path.open("wb") as file:
        file.write(head)
        for row, start in zip(case.rows, offsets, strict=True):
            if with_data or row.name.startswith("rope_"):
                file.seek(len(head) + start)
                file.write(row.data)
        file.truncate(len(head) + offset)
    return path


_VOCABULARY: dict[int, bytes] = {}  # the long pairs of the metadata, by identity, since most cases share them


def _metadata_bytes(case: Case) -> bytes:
    parts = []
    for key, value in case.metadata.items():
        if isinstance(value, list | np.ndarray) and len(value) > 64:
            at = hash((key, id(value)))
            if at not in _VOCABULARY:
                _VOCABULARY[at] = key_bytes(key, value)
            parts.append(_VOCABULARY[at])
        else:
            parts.append(key_bytes(key, value))
    return b"".join(parts)


# Changes


def number_keys(case: Case) -> list[str]:
    """The keys of a file that are under the architecture's prefix."""
    return [key for key in case.metadata if key.startswith(f"{case.architecture}.")]


def hostile_value(draw: random.Random, old: Any) -> Any:
    """Something else in place of a value."""
    choice = draw.random()
    number = old[0] if isinstance(old, list) and old else old
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    if choice < 0.3 and is_number:
        near = number + draw.choice((-1, 1, -16, 16)) if draw.random() < 0.5 else number * draw.choice((2, 3, 4))
        return _fit(near if draw.random() < 0.7 else number // 2 or 1)
    if choice < 0.7:
        return draw.choice(FLOATS) if isinstance(number, float) and draw.random() < 0.8 else draw.choice(INTEGERS)
    if choice < 0.85:
        return draw.choice(HUGE) if draw.random() < 0.7 else draw.choice(FLOATS)
    if choice < 0.95:
        item = number if is_number else 1
        return [item] * draw.choice((0, 1, 2, 3, 7, 64)) if draw.random() < 0.7 else [0, item, -1, 1 << 31]
    return draw.choice(("", "yarn", "\x1b[2J", True, False, [True], ["a"], [[1]]))


def _fit(number: float) -> float:
    return number if isinstance(number, float) else max(-(1 << 63), min((1 << 64) - 1, number))


def change_number(draw: random.Random, case: Case) -> Case:
    """Another value for a number of the model, or the key gone, or one that the family may read and the file lacks."""
    keys = number_keys(case)
    key = draw.choice(keys)
    metadata = dict(case.metadata)
    if draw.random() < 0.1:
        del metadata[key]
        return replace(case, metadata=metadata, what=f"{case.what}; {key} gone")
    if draw.random() < 0.25:
        from phobos.gguf.hyperparameters import HYPERPARAMETERS

        key = f"{case.architecture}.{draw.choice(sorted(HYPERPARAMETERS))}"
    metadata[key] = hostile_value(draw, metadata.get(key, 1))
    return replace(case, metadata=metadata, what=f"{case.what}; {key} = {metadata[key]!r}")


def change_vocabulary(draw: random.Random, case: Case) -> Case:
    """Another value for a key of the tokenizer, or the key gone."""
    key = draw.choice([key for key in case.metadata if key.startswith("tokenizer.")])
    metadata = dict(case.metadata)
    old = metadata[key]
    if draw.random() < 0.15:
        del metadata[key]
    elif isinstance(old, list | np.ndarray) and draw.random() < 0.7:
        n = draw.choice((0, 1, len(old) // 2, len(old) - 1))
        metadata[key] = old[:n] if draw.random() < 0.5 else [*old, *old[:n]]
    else:
        metadata[key] = hostile_value(draw, old if isinstance(old, int) else 1)
    return replace(case, metadata=metadata, what=f"{case.what}; {key}")


def change_tensor(draw: random.Random, case: Case) -> Case:
    """A row of the table gone, doubled, named otherwise, of another shape or type."""
    rows = list(case.rows)
    i = draw.randrange(len(rows))
    row, choice = rows[i], draw.random()
    if choice < 0.15:
        del rows[i]
    elif choice < 0.2:
        rows.insert(i, rows[draw.randrange(len(rows))])
    elif choice < 0.3:
        rows[i] = replace(row, name=draw.choice((rows[0].name, "blk.99.attn_q.weight", "a", "\x1b[0m", row.name[:-1])))
    elif choice < 0.5:
        rows[i] = replace(row, kind=draw.choice((*TABLE, 4, 5, 31, 99, 1 << 31)))
    else:
        rows[i] = replace(row, shape=_other_shape(draw, row.shape))
    return replace(case, rows=tuple(rows), what=f"{case.what}; {row.name} {rows[i] if i < len(rows) else 'gone'!r:.80}")


def _other_shape(draw: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    choice, sizes = draw.random(), list(shape)
    if choice < 0.2 and len(sizes) > 1:
        return tuple(reversed(sizes))
    if choice < 0.3:
        return (*shape, 1) if draw.random() < 0.5 else (1, *shape)
    if choice < 0.4:
        return shape[1:]
    at = draw.randrange(len(sizes)) if sizes else 0
    if not sizes:
        return (draw.choice(LENGTHS),)
    if choice < 0.7:
        sizes[at] = max(0, sizes[at] + draw.choice((-16, -1, 1, 16, -sizes[at] // 2, sizes[at])))
    else:
        sizes[at] = draw.choice(LENGTHS)
    return tuple(min(size, (1 << 64) - 1) for size in sizes)


def spoil_bytes(draw: random.Random, case: Case) -> Case:
    """A few bytes of the head."""
    spoilt = tuple((draw.random(), draw.randrange(256)) for _ in range(draw.choice((1, 1, 2, 8))))
    return replace(case, spoilt=spoilt, what=f"{case.what}; bytes {spoilt}")


def spoil_blocks(draw: random.Random, case: Case) -> Case:
    """The contents of a tensor: any bytes, all ones, zeros, or NaN and infinities among its floats."""
    rows = list(case.rows)
    i = draw.randrange(len(rows))
    row, n = rows[i], len(rows[i].data)
    choice = draw.randrange(5)
    match choice:
        case 0:
            data = draw.randbytes(n)
        case 1:
            data = b"\xff" * n
        case 2:
            data = bytes(n)
        case 3:  # halves: infinite, negative infinite, NaN, the largest
            data = b"".join(struct.pack("<H", draw.choice((0x7C00, 0xFC00, 0x7E00, 0x7BFF))) for _ in range(n // 2))
        case _:
            changed = bytearray(row.data)
            for _ in range(draw.choice((1, 4, 64))):
                changed[draw.randrange(n)] = draw.randrange(256)
            data = bytes(changed)
    rows[i] = replace(row, data=data.ljust(n, b"\0"))
    return replace(case, rows=tuple(rows), what=f"{case.what}; contents {choice} of {row.name}")


CHANGES: tuple[tuple[Callable[[random.Random, Case], Case], int], ...] = (
    (change_number, 8),
    (change_tensor, 4),
    (change_vocabulary, 2),
    (spoil_bytes, 2),
    (spoil_blocks, 2),
)


def mutate(draw: random.Random, case: Case) -> Case:
    """One to three changes, of kinds by their weights."""
    changes, weights = zip(*CHANGES, strict=True)
    for change in draw.choices(changes, weights, k=draw.choice((1, 1, 1, 2, 3))):
        case = change(draw, case)
    return case
