"""A small GGUF writer for tests: files made up in full, or piece by piece where a test wants a wrong one.

Metadata values take the type a GGUF writer would choose: bool, uint32 (int32 when negative, 64 bits when large),
float32, string, arrays of one of these. A NumPy scalar or array keeps its own type.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phobos.gguf.quants import TABLE, GGMLType

STRING, ARRAY = 8, 9
_NUMBERS = {
    "uint8": (0, "<B"),
    "int8": (1, "<b"),
    "uint16": (2, "<H"),
    "int16": (3, "<h"),
    "uint32": (4, "<I"),
    "int32": (5, "<i"),
    "float32": (6, "<f"),
    "bool": (7, "<?"),
    "uint64": (10, "<Q"),
    "int64": (11, "<q"),
    "float64": (12, "<d"),
}

Tensors = Mapping[str, tuple[GGMLType, np.ndarray]]


def string_bytes(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def _number_kind(value: Any) -> str:
    if isinstance(value, np.generic):
        return value.dtype.name
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, float):
        return "float32"
    if value < 0:
        return "int32" if value >= -(1 << 31) else "int64"
    return "uint32" if value < 1 << 32 else "uint64"


def value_bytes(value: Any) -> tuple[int, bytes]:
    """The type number of a metadata value and its bytes."""
    if isinstance(value, str | bytes):
        return STRING, string_bytes(value)
    if isinstance(value, np.ndarray):
        kind, _ = _NUMBERS[value.dtype.name]
        return ARRAY, struct.pack("<IQ", kind, len(value)) + value.tobytes()
    if isinstance(value, list | tuple):
        return ARRAY, _list_bytes(value)
    kind, code = _NUMBERS[_number_kind(value)]
    return kind, struct.pack(code, value)


def _list_bytes(values: Sequence[Any]) -> bytes:
    if not values:
        return struct.pack("<IQ", STRING, 0)
    if isinstance(values[0], str | bytes | list | tuple | np.ndarray):
        kind = value_bytes(values[0])[0]
        return struct.pack("<IQ", kind, len(values)) + b"".join(value_bytes(value)[1] for value in values)
    names = {_number_kind(value) for value in values}
    name = names.pop() if len(names) == 1 else "float32" if "float32" in names else "int64"
    kind, code = _NUMBERS[name]
    return struct.pack("<IQ", kind, len(values)) + b"".join(struct.pack(code, value) for value in values)


def key_bytes(key: str | bytes, value: Any) -> bytes:
    """One metadata pair."""
    kind, data = value_bytes(value)
    return string_bytes(key) + struct.pack("<I", kind) + data


def header_bytes(n_tensors: int, n_keys: int, *, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, n_tensors, n_keys)


def tensor_bytes(name: str | bytes, dims: Sequence[int], kind: int, offset: int) -> bytes:
    """One row of the tensor table; `dims` in the file's order, fastest first."""
    return string_bytes(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def pack_tensor(kind: GGMLType, values: np.ndarray) -> tuple[tuple[int, ...], bytes]:
    """The shape of a tensor in values (NumPy order) and its bytes. uint8 values are taken as packed already."""
    quant = TABLE[kind]
    if values.dtype == np.uint8:
        return (*values.shape[:-1], values.shape[-1] // quant.n_bytes * quant.block), values.tobytes()
    assert quant.quantize is not None, f"nothing here writes {kind.name}: give packed bytes"
    return values.shape, quant.quantize(values.astype(np.float32)).tobytes()


# Where the half-precision scales of a block lie.
_HALVES = {
    GGMLType.Q4_0: (0,), GGMLType.Q4_1: (0, 2), GGMLType.Q5_0: (0,), GGMLType.Q5_1: (0, 2), GGMLType.Q8_0: (0,),
    GGMLType.Q1_0: (0,), GGMLType.Q2_0: (0,), GGMLType.Q2_K: (80, 82), GGMLType.Q3_K: (108,), GGMLType.Q4_K: (0, 2),
    GGMLType.Q5_K: (0, 2), GGMLType.Q6_K: (208,), GGMLType.IQ4_NL: (0,), GGMLType.IQ4_XS: (0,), GGMLType.TQ1_0: (52,),
    GGMLType.TQ2_0: (64,), GGMLType.IQ1_S: (0,), GGMLType.IQ2_XXS: (0,), GGMLType.IQ2_XS: (0,), GGMLType.IQ2_S: (0,),
    GGMLType.IQ3_XXS: (0,), GGMLType.IQ3_S: (0,), GGMLType.IQ1_M: (), GGMLType.MXFP4: (), GGMLType.NVFP4: (),
}  # fmt: skip


def random_blocks(kind: GGMLType, n_rows: int, n_in: int, seed: int, size: float = 0.1) -> np.ndarray:
    """A matrix of random bytes [n_rows, bytes], so that every code occurs; only the halves that scale a block are
    chosen, about `size` large, where random bytes would be infinite or NaN."""
    draw = np.random.default_rng(seed)
    quant = TABLE[kind]
    packed = draw.integers(0, 256, (n_rows, n_in // quant.block * quant.n_bytes), dtype=np.uint8)
    blocks = packed.reshape(-1, quant.n_bytes)

    def halves() -> np.ndarray:
        return (draw.standard_normal(len(blocks)) * size).astype("<f2")

    for place in _HALVES[kind]:
        blocks[:, place : place + 2] = halves().view(np.uint8).reshape(-1, 2)
    if kind == GGMLType.MXFP4:  # its scale is a power of two in one byte
        blocks[:, 0] = 118 + blocks[:, 0] % 16
    if kind == GGMLType.IQ1_M:  # its half is spread over the top bits of four words
        words, bits = blocks.view("<u2"), halves().view("<u2")
        for i in range(4):
            words[:, 24 + i] = words[:, 24 + i] & 0xFFF | bits >> 4 * i << 12
    return packed


def gguf_bytes(metadata: Mapping[str, Any], tensors: Tensors, *, version: int = 3, alignment: int = 32) -> bytes:
    """A whole file."""
    keys = dict(metadata)
    if alignment != 32:
        keys.setdefault("general.alignment", alignment)
    table, data, n_bytes = b"", [], 0
    for name, (kind, values) in tensors.items():
        shape, packed = pack_tensor(kind, values)
        table += tensor_bytes(name, shape[::-1], kind, n_bytes)
        data += [packed, bytes(-len(packed) % alignment)]
        n_bytes += len(packed) + len(data[-1])
    head = header_bytes(len(tensors), len(keys), version=version)
    head += b"".join(key_bytes(key, value) for key, value in keys.items()) + table
    return b"".join([head, bytes(-len(head) % alignment), *data])


def part_path(path: Path, number: int, count: int) -> Path:
    """`model.gguf` -> `model-00001-of-00003.gguf`, counted from 1."""
    return path.with_name(f"{path.stem}-{number:05d}-of-{count:05d}.gguf")


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Tensors,
    *,
    version: int = 3,
    alignment: int = 32,
    split: int = 1,
) -> Path:
    """Write a model, in `split` parts where that is more than 1; returns the path to open."""
    if split == 1:
        path.write_bytes(gguf_bytes(metadata, tensors, version=version, alignment=alignment))
        return path
    names = list(tensors)
    for i in range(split):
        keys = dict(metadata) if i == 0 else {}
        keys |= {"split.no": np.uint16(i), "split.count": np.uint16(split), "split.tensors.count": np.int32(len(names))}
        part = {name: tensors[name] for name in names[len(names) * i // split : len(names) * (i + 1) // split]}
        part_path(path, i + 1, split).write_bytes(gguf_bytes(keys, part, version=version, alignment=alignment))
    return part_path(path, 1, split)
