"""The header of one GGUF file: walked from front to back, checked, and left where it is.

The file is not trusted: every count, length, offset and product is compared with the bytes that are there before it
is used, so a damaged or crafted file costs milliseconds and no memory, and ends in one `FileError`.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from phobos.errors import FileError
from phobos.gguf.quants import TABLE, GGMLType

_MAGIC = b"GGUF"
_KNOWN_STRANGERS = (
    (b"FUGG", "is big-endian, and Phobos reads little-endian files: fetch or convert it for this machine"),
    (b"lmgg", "is in a format older than GGUF: fetch a GGUF version of the model"),
    (b"fmgg", "is in a format older than GGUF: fetch a GGUF version of the model"),
    (b"tjgg", "is in a format older than GGUF: fetch a GGUF version of the model"),
    (b"vers", "looks like a Git LFS pointer, not the model itself: download the file it points to"),
    (b"PK\x03\x04", "is a zip archive, not a GGUF file: unpack it and open the .gguf inside"),
    (b"<!DO", "is a web page, not a GGUF file: download the file itself"),
    (b"<htm", "is a web page, not a GGUF file: download the file itself"),
)

# Bounds no real model comes near (a vocabulary takes up to 1.3 million values, a model a few thousand tensors). They
# keep the time and memory spent on a crafted file small, however large it is.
_MAX_KEYS = 1 << 14
_MAX_TENSORS = 1 << 16
_MAX_VALUES = 1 << 22
_MAX_INNER_ARRAYS = 1 << 16
_MAX_DIMS = 4
_MAX_NAME_BYTES = 256
_MAX_NESTING = 4
_MAX_ALIGNMENT = 1 << 20

STRING, ARRAY, _BOOL = 8, 9, 7
# Value types of fixed size: number -> (struct code, NumPy type).
FIXED: dict[int, tuple[str, str]] = {
    0: ("B", "u1"),
    1: ("b", "i1"),
    2: ("H", "<u2"),
    3: ("h", "<i2"),
    4: ("I", "<u4"),
    5: ("i", "<i4"),
    6: ("f", "<f4"),
    _BOOL: ("?", "?"),
    10: ("Q", "<u8"),
    11: ("q", "<i8"),
    12: ("d", "<f8"),
}
FIXED_BYTES = {number: struct.calcsize("<" + code) for number, (code, _) in FIXED.items()}
_WITHDRAWN = (4, 5, 31, 32, 33, 36, 37, 38)


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies. `shape` is in NumPy order, slowest first: (n_rows, n_cols) for a matrix; `offset` counts
    bytes from the start of the file of part `shard`."""

    name: str
    shape: tuple[int, ...]
    type: GGMLType
    offset: int
    n_bytes: int
    shard: int


@dataclass(frozen=True)
class Entry:
    """A metadata value left in the file. `start` is the first byte after the type (and, for arrays, after the
    element type and count), `end` the first byte after the value."""

    type: int
    start: int
    end: int
    element: int = -1
    count: int = 0


@dataclass(frozen=True)
class Shard:
    """One parsed file."""

    path: Path
    bytes: mmap.mmap
    version: int
    entries: dict[str, Entry]
    tensors: tuple[TensorInfo, ...]


def refuse(path: Path, what: str) -> NoReturn:
    raise FileError(f"bad GGUF: {path.name}: {what}")


def _cut(path: Path) -> NoReturn:
    refuse(path, "the file ends too early or is damaged: download it again")


class _Parser:
    """Walks one mapped file from front to back. `position` never passes `size`."""

    def __init__(self, path: Path, data: mmap.mmap, shard: int) -> None:
        self.path = path
        self.data = data
        self.shard = shard
        self.size = len(data)
        self.position = 0
        self.n_values = 0
        self.n_inner_arrays = 0

    def parse(self) -> Shard:
        version = self._version()
        n_tensors, n_keys = self._u64(), self._u64()
        # The least a key takes: name length, type, one byte; a tensor: name length, dimensions, type, offset.
        if n_keys > _MAX_KEYS or n_keys * 13 > self.size - self.position:
            refuse(self.path, f"it declares {n_keys} metadata keys, more than it can hold: download it again")
        if n_tensors > _MAX_TENSORS or n_tensors * 24 > self.size - self.position:
            refuse(self.path, f"it declares {n_tensors} tensors, more than it can hold: download it again")
        entries: dict[str, Entry] = {}
        for _ in range(n_keys):
            key = self._name("metadata key")
            if key in entries:
                refuse(self.path, f"the metadata key {key!r} appears twice: fetch a sound copy of the model")
            entries[key] = self._entry(key)
        alignment = self._alignment(entries)
        tensors = self._tensors(n_tensors, alignment)
        return Shard(self.path, self.data, version, entries, tensors)

    def _version(self) -> int:
        magic = self.data[:4]
        if magic != _MAGIC:
            for start, what in _KNOWN_STRANGERS:
                if magic == start:
                    raise FileError(f"{self.path.name} {what}")
            raise FileError(f"{self.path.name} is not a GGUF file: give the path of a model file ending in .gguf")
        self.position = 4
        version = self._u32()
        if version & 0xFFFF == 0 and version:
            raise FileError(f"{self.path.name} {_KNOWN_STRANGERS[0][1]}")
        if version not in (2, 3):
            age = "fetch a newer conversion of the model" if version < 2 else "Phobos reads versions 2 and 3"
            raise FileError(f"{self.path.name} is GGUF version {version}, which is not supported: {age}")
        return version

    def _take(self, n_bytes: int) -> int:
        """Claim the next `n_bytes`; returns where they start."""
        start = self.position
        if n_bytes > self.size - start:
            _cut(self.path)
        self.position = start + n_bytes
        return start

    def _u32(self) -> int:
        return int(struct.unpack_from("<I", self.data, self._take(4))[0])

    def _u64(self) -> int:
        return int(struct.unpack_from("<Q", self.data, self._take(8))[0])

    def _name(self, what: str) -> str:
        n_bytes = self._u64()
        if n_bytes > _MAX_NAME_BYTES:
            refuse(self.path, f"the name of a {what} is {n_bytes} bytes long: the file is damaged, download it again")
        start = self._take(n_bytes)
        try:
            name = str(self.data[start : self.position], "utf-8")
        except UnicodeDecodeError:
            name = "\0"
        if not name.isprintable():
            refuse(
                self.path, f"the name of a {what} is not text that can be shown: the file is damaged, download it again"
            )
        return name

    def _entry(self, key: str) -> Entry:
        kind = self._u32()
        start = self.position
        if kind == ARRAY:
            return self._array(key, 1)
        if kind == STRING:
            self._take(self._u64())
        elif kind in FIXED_BYTES:
            self._take(FIXED_BYTES[kind])
            if kind == _BOOL and self.data[start] > 1:
                refuse(self.path, f"the value of {key!r} is neither true nor false: the file is damaged")
        else:
            refuse(self.path, f"the value of {key!r} has the unknown type {kind}: the file is damaged or too new")
        return Entry(kind, start, self.position)

    def _array(self, key: str, depth: int) -> Entry:
        element, count = self._u32(), self._u64()
        start = self.position
        if element in FIXED_BYTES:
            self._count_values(count, FIXED_BYTES[element])
            self._take(count * FIXED_BYTES[element])
            if element == _BOOL and count and np.frombuffer(self.data, np.uint8, count, start).max() > 1:
                refuse(self.path, f"a value of {key!r} is neither true nor false: the file is damaged")
        elif element == STRING:
            self._skip_strings(count)
        elif element == ARRAY:
            self._count_values(count, 12)
            self.n_inner_arrays += count
            if depth == _MAX_NESTING or self.n_inner_arrays > _MAX_INNER_ARRAYS:
                refuse(self.path, f"the arrays of {key!r} are nested too deep: the file is damaged")
            for _ in range(count):
                self._array(key, depth + 1)
        else:
            refuse(self.path, f"the array {key!r} has the unknown type {element}: the file is damaged or too new")
        return Entry(ARRAY, start, self.position, element, count)

    def _count_values(self, count: int, least_bytes: int) -> None:
        """Check that `count` array values of at least `least_bytes` can follow."""
        if count * least_bytes > self.size - self.position:
            _cut(self.path)
        self.n_values += count
        if self.n_values > _MAX_VALUES:
            refuse(self.path, f"its arrays hold more than {_MAX_VALUES} values: the file is damaged")

    def _skip_strings(self, count: int) -> None:
        self._count_values(count, 8)
        # A position past the end makes the next unpack fail, so one comparison after the loop is enough.
        position, data, unpack = self.position, self.data, struct.Struct("<Q").unpack_from
        try:
            for _ in range(count):
                position += unpack(data, position)[0] + 8
        except (struct.error, OverflowError):
            _cut(self.path)
        if position > self.size:
            _cut(self.path)
        self.position = position

    def _alignment(self, entries: dict[str, Entry]) -> int:
        entry = entries.get("general.alignment")
        if entry is None:
            return 32
        if entry.type != 4:
            refuse(self.path, "the value of 'general.alignment' is not an unsigned number: the file is damaged")
        alignment = int(struct.unpack_from("<I", self.data, entry.start)[0])
        if alignment & (alignment - 1) or not 0 < alignment <= _MAX_ALIGNMENT:
            refuse(
                self.path, f"its alignment is {alignment}, which is no power of two up to 1 MiB: the file is damaged"
            )
        return alignment

    def _tensors(self, n_tensors: int, alignment: int) -> tuple[TensorInfo, ...]:
        headers = [self._tensor_header() for _ in range(n_tensors)]
        names: set[str] = set()
        for name, *_ in headers:
            if name in names:
                refuse(self.path, f"the tensor {name!r} appears twice: fetch a sound copy of the model")
            names.add(name)
        if not headers:
            self._refuse_second_file(self.position, alignment)
            return ()
        base = -(-self.position // alignment) * alignment
        tensors = tuple(self._place(header, base, alignment) for header in headers)
        end, previous = base, ""
        for tensor in sorted(tensors, key=lambda tensor: tensor.offset):
            if tensor.offset < end:
                refuse(self.path, f"the tensors {previous!r} and {tensor.name!r} overlap: the file is damaged")
            end, previous = tensor.offset + tensor.n_bytes, tensor.name
        self._refuse_second_file(end, alignment)
        return tensors

    def _tensor_header(self) -> tuple[str, tuple[int, ...], GGMLType, int]:
        name = self._name("tensor")
        n_dims = self._u32()
        if n_dims > _MAX_DIMS:
            refuse(
                self.path, f"the tensor {name!r} has {n_dims} dimensions, more than {_MAX_DIMS}: the file is damaged"
            )
        dims = struct.unpack_from(f"<{n_dims}Q", self.data, self._take(8 * n_dims))
        number = self._u32()
        try:
            kind = GGMLType(number)
        except ValueError:
            why = "a layout that was withdrawn: fetch a newer conversion" if number in _WITHDRAWN else "unknown here"
            raise FileError(f"{self.path.name}: the tensor {name!r} has type {number}, which is {why}") from None
        return name, dims, kind, self._u64()

    def _place(self, header: tuple[str, tuple[int, ...], GGMLType, int], base: int, alignment: int) -> TensorInfo:
        name, dims, kind, offset = header
        block, block_bytes = TABLE[kind].block, TABLE[kind].n_bytes
        n_values = 1
        for n in dims:
            n_values *= n
        if n_values == 0:
            refuse(self.path, f"the tensor {name!r} has a dimension of zero: the file is damaged")
        row = dims[0] if dims else 1
        if row % block:
            refuse(self.path, f"the rows of tensor {name!r} hold {row} values, no multiple of {kind.name}'s {block}")
        if offset % alignment:
            refuse(self.path, f"the tensor {name!r} does not start at a multiple of {alignment}: the file is damaged")
        n_bytes = n_values // block * block_bytes
        if base + offset + n_bytes > self.size:
            refuse(
                self.path,
                f"the tensor {name!r} reaches to byte {base + offset + n_bytes} and the file has {self.size}: "
                "it is cut short or damaged, download it again",
            )
        return TensorInfo(name, dims[::-1], kind, base + offset, n_bytes, self.shard)

    def _refuse_second_file(self, end: int, alignment: int) -> None:
        """Parts glued together with `cat` would load as their first part only; other trailing bytes do no harm."""
        for start in (end, -(-end // alignment) * alignment):
            if self.data[start : start + 4] == _MAGIC:
                refuse(self.path, "another GGUF file follows the first: keep split files apart and open the first part")


def decode_array(data: bytes, position: int, element: int, count: int) -> tuple[list[Any], int]:
    """The values of an array at `position` of checked bytes, and where they end."""
    if element in FIXED:
        values = np.frombuffer(data, FIXED[element][1], count, position).tolist()
        return values, position + count * FIXED_BYTES[element]
    values = []
    if element == ARRAY:
        for _ in range(count):
            inner, n = struct.unpack_from("<IQ", data, position)
            value, position = decode_array(data, position + 12, inner, n)
            values.append(value)
        return values, position
    unpack = struct.Struct("<Q").unpack_from
    append = values.append
    for _ in range(count):
        start = position + 8
        position = start + unpack(data, position)[0]
        append(data[start:position].decode("utf-8", "surrogateescape"))
    return values, position


def parse_header(path: Path, data: mmap.mmap, shard: int) -> Shard:
    """Read the header of the mapped file `path`, part `shard` of its model. Raises `FileError`."""
    return _Parser(path, data, shard).parse()
