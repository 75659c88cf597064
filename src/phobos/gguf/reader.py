"""Opens GGUF files, versions 2 and 3, whole or split in parts.

A file is mapped, never copied: a tensor's bytes are a view of the mapping, and the strings of the metadata are
decoded only when they are asked for. Whatever is wrong with a file ends in one `FileError`. Numbers of the model (keys
under the architecture's prefix) are compared with their ranges in `hyperparameters.py` as they are read.
"""

from __future__ import annotations

import mmap
import re
import stat
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from phobos.errors import FileError
from phobos.gguf import hyperparameters
from phobos.gguf.header import ARRAY, FIXED, STRING, Entry, Shard, TensorInfo, decode_array, parse_header, refuse

__all__ = ["GGUF", "Metadata", "TensorInfo", "Value", "open_gguf"]

Value = bool | int | float | str | list[Any]

KEPT_ITEMS = 4096

_PART_NAME = re.compile(r"^(?P<stem>.*)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf$", re.DOTALL)


class Metadata(Mapping[str, Value]):
    """The metadata, decoded on first access and kept, but for long arrays, which are read once and then in the way.
    Text that is not UTF-8 keeps its bytes as surrogates (`surrogateescape`) inside arrays, and shows U+FFFD in a plain
    string."""

    def __init__(self, path: Path, data: mmap.mmap, entries: dict[str, Entry]) -> None:
        self._path = path
        self._data = data
        self._entries = entries
        self._values: dict[str, Value] = {}

    def __getitem__(self, key: str) -> Value:
        if key not in self._values:
            entry = self._entries[key]
            value = self._decode(entry)
            if entry.count > KEPT_ITEMS:
                return value
            self._values[key] = value
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def preview(self, key: str, n_items: int) -> tuple[list[Any], int] | None:
        """The first items of an array and how many there are, without decoding the rest; None for other values."""
        entry = self._entries[key]
        if entry.type != ARRAY:
            return None
        return decode_array(self._bytes(entry), 0, entry.element, min(n_items, entry.count))[0], entry.count

    def _bytes(self, entry: Entry) -> bytes:
        try:
            return self._data[entry.start : entry.end]
        except ValueError:
            raise FileError(f"{self._path.name} is closed: open the model again") from None

    def _decode(self, entry: Entry) -> Value:
        data = self._bytes(entry)
        if entry.type == STRING:
            return data[8:].decode("utf-8", "replace")
        if entry.type == ARRAY:
            return decode_array(data, 0, entry.element, entry.count)[0]
        value: Value = struct.unpack("<" + FIXED[entry.type][0], data)[0]
        return value


class GGUF:
    """An open model: metadata and tensor table of all parts, and the mapped bytes. A context manager."""

    def __init__(self, shards: tuple[Shard, ...]) -> None:
        first = shards[0]
        self.paths = tuple(shard.path for shard in shards)
        self.version = first.version
        self.metadata: Metadata = Metadata(first.path, first.bytes, first.entries)
        self.tensors: Mapping[str, TensorInfo] = _merge_tensors(shards)
        self._maps = tuple(shard.bytes for shard in shards)

    @property
    def architecture(self) -> str:
        """`general.architecture`."""
        return self.get_str("general.architecture")

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes [n_bytes] of a tensor, a read-only view of the mapped file."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise FileError(f"{self.paths[0].name} has no tensor {name!r}: fetch a complete version of the model")
        try:
            return np.frombuffer(self._maps[tensor.shard], np.uint8, tensor.n_bytes, tensor.offset)
        except ValueError:
            raise FileError(f"{self.paths[0].name} is closed: open the model again") from None

    def release(self, name: str, start: int = 0, stop: int | None = None) -> None:
        """Say that bytes `start` to before `stop` of a tensor (all unless given) are read no more: pages that hold
        nothing else leave the process. Reading them again is right and only costs time."""
        tensor = self.tensors[name]
        begin, end = tensor.offset + start, tensor.offset + (tensor.n_bytes if stop is None else stop)
        first, last = -(-begin // mmap.PAGESIZE), end // mmap.PAGESIZE
        if last > first and hasattr(mmap, "MADV_DONTNEED"):
            data = self._maps[tensor.shard]
            data.madvise(mmap.MADV_DONTNEED, first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE)

    def get_int(self, key: str, default: int | None = None) -> int:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            self._wrong(key, "a whole number")
        self._check_range(key, [value])
        return value

    def get_float(self, key: str, default: float | None = None) -> float:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._wrong(key, "a number")
        self._check_range(key, [value])
        return float(value)

    def get_bool(self, key: str, default: bool | None = None) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            self._wrong(key, "true or false")
        return value

    def get_str(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            self._wrong(key, "text")
        return value

    def get_ints(self, key: str, default: list[int] | None = None) -> list[int]:
        """A list of whole numbers; a single number counts as a list of one."""
        value = self._list(key, default, "whole numbers")
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in value):
            self._wrong(key, "a list of whole numbers")
        self._check_range(key, value)
        return value

    def get_floats(self, key: str, default: list[float] | None = None) -> list[float]:
        """A list of numbers; a single number counts as a list of one."""
        value = self._list(key, default, "numbers")
        if not all(isinstance(item, int | float) and not isinstance(item, bool) for item in value):
            self._wrong(key, "a list of numbers")
        self._check_range(key, value)
        return [float(item) for item in value]

    def get_bools(self, key: str, default: list[bool] | None = None) -> list[bool]:
        """A list of truth values; a single one counts as a list of one."""
        value = self._list(key, default, "truth values")
        if not all(isinstance(item, bool) for item in value):
            self._wrong(key, "a list of truth values")
        return value

    def get_strs(self, key: str, default: list[str] | None = None) -> list[str]:
        value = self._value(key, default)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self._wrong(key, "a list of texts")
        return value

    def _list(self, key: str, default: list[Any] | None, what: str) -> list[Any]:
        value = self._value(key, default)
        if isinstance(value, list):
            return value
        if isinstance(value, str):
            self._wrong(key, f"a list of {what}")
        return [value]

    def _value(self, key: str, default: Any) -> Any:
        if key in self.metadata:
            return self.metadata[key]
        if default is None:
            raise FileError(f"{self.paths[0].name} lacks the metadata key {key!r}: fetch a newer conversion")
        return default

    def _check_range(self, key: str, values: list[Any]) -> None:
        """Refuse numbers of the model outside the range of their key, defaults included."""
        architecture = self.metadata.get("general.architecture")
        if not isinstance(architecture, str) or not key.startswith(f"{architecture}."):
            return
        allowed = hyperparameters.allowed(key, architecture)
        wrong = next((value for value in values if not allowed.holds(value)), None)
        if wrong is not None:
            refuse(
                self.paths[0],
                f"{key} is {wrong}, where Phobos takes numbers {allowed.describe()}: fetch a sound conversion",
            )

    def _wrong(self, key: str, expected: str) -> NoReturn:
        refuse(self.paths[0], f"the value of {key!r} is not {expected}: fetch a newer conversion of the model")

    def close(self) -> None:
        """Unmap the files; twice is fine. Views of tensors that are still held keep their file mapped."""
        for data in self._maps:
            try:
                data.close()
            except BufferError:
                continue

    def __enter__(self) -> GGUF:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _merge_tensors(shards: tuple[Shard, ...]) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for shard in shards:
        for tensor in shard.tensors:
            if tensor.name in tensors:
                refuse(shard.path, f"the tensor {tensor.name!r} appears twice: fetch a sound copy of the model")
            tensors[tensor.name] = tensor
    return tensors


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if size < 24:
                raise FileError(f"{path.name} is not a GGUF file: it has only {size} bytes, download it again")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise FileError(f"cannot open {path}: {reason}; check the path and its permissions") from error


def _open_shard(path: Path, index: int) -> Shard:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise FileError(f"there is no file {path}: check the path") from None
    except (OSError, ValueError) as error:
        raise FileError(f"cannot open {path}: {error}; check the path and its permissions") from error
    if stat.S_ISDIR(mode):
        raise FileError(f"{path} is a folder: give the path of the .gguf file inside")
    if not stat.S_ISREG(mode):
        raise FileError(f"{path} is not a plain file: give the path of a .gguf file")
    data = _map(path)
    try:
        return parse_header(path, data, index)
    except BaseException:
        data.close()
        raise


def _split_value(shard: Shard, key: str) -> int | None:
    """A number of the `split.*` keys, or None."""
    entry = shard.entries.get(key)
    if entry is None:
        return None
    if entry.type not in FIXED or FIXED[entry.type][0] not in "BbHhIiQq":
        refuse(shard.path, f"the value of {key!r} is not a whole number: the file is damaged")
    return int(struct.unpack_from("<" + FIXED[entry.type][0], shard.bytes, entry.start)[0])


def _open_parts(first: Shard, count: int) -> list[Shard]:
    """The parts of a split model, whose first is open."""
    path = first.path
    name = _PART_NAME.match(path.name)
    number = _split_value(first, "split.no") or 0
    if number != 0:
        start = "" if name is None else f", {name['stem']}-00001-of-{count:05d}.gguf"
        raise FileError(f"{path.name} is part {number + 1} of {count}: open the first part{start}")
    if name is None or int(name["number"]) != 1 or int(name["count"]) != count:
        raise FileError(
            f"{path.name} is the first of {count} parts, but its name does not end in -00001-of-{count:05d}.gguf: "
            "give the parts their original names"
        )
    parts = []
    for i in range(1, count):
        part = path.with_name(f"{name['stem']}-{i + 1:05d}-of-{count:05d}.gguf")
        if not part.exists():
            raise FileError(f"{path.name} is the first of {count} parts and {part.name} is missing: put it beside it")
        parts.append(part)
    shards = [first]
    try:
        for i, part in enumerate(parts, 1):
            shard = _open_shard(part, i)
            shards.append(shard)
            if _split_value(shard, "split.no") != i or _split_value(shard, "split.count") != count:
                refuse(part, f"it does not say that it is part {i + 1} of {count}: download it again")
        n_tensors = sum(len(shard.tensors) for shard in shards)
        declared = _split_value(first, "split.tensors.count")
        if declared is not None and declared != n_tensors:
            refuse(path, f"it promises {declared} tensors and its {count} parts hold {n_tensors}: download them again")
    except BaseException:
        for shard in shards[1:]:
            shard.bytes.close()
        raise
    return shards


def open_gguf(path: str | Path) -> GGUF:
    """Open a model file, or the first part of a split one with all its parts. Raises `FileError`."""
    first = _open_shard(Path(path), 0)
    shards = [first]
    try:
        count = _split_value(first, "split.count") or 1
        if count > 1:
            shards = _open_parts(first, count)
        return GGUF(tuple(shards))
    except BaseException:
        for shard in shards:
            shard.bytes.close()
        raise
