"""Files that hold one conversation's state: written whole or not at all, and read only by whom they were written for.

A file is written under another name, brought to the disk, and then moved to its own, so that at every moment there is
the old file, the new one or none. Everything in it is under a checksum. Layout, numbers little-endian:

    8 bytes   magic and version of this layout
    8 bytes   length of the head
    head      JSON: whose state it is, how many tokens, checkpoints and bytes follow, their SHA-256
    tokens    int32
    32 bytes  SHA-256 of all before, so that the tokens can be trusted without reading on
    body      the checkpoints' states, then the contents of the slot
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import struct
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from phobos.engine.slots.archive import Archived
from phobos.errors import FileError
from phobos.kernels.backend import IntArray
from phobos.private import open_private

MAGIC = b"PHSLOT\x00\x01"
MAX_HEAD_BYTES = 1 << 20
MAX_TOKENS = 1 << 28
WRITTEN_ASIDE = ".part"
_writes = itertools.count()  # two writes to one name go on side by side, each in a file of its own


@dataclass(frozen=True)
class Identity:
    """Whom a state is for. Another model, other cache types or another version compute other bits."""

    model: str
    cache: str
    version: str

    def check(self, other: Identity, name: str) -> None:
        """`FileError` that says in what a file's identity differs."""
        for field, what in (("model", "another model"), ("cache", "other cache types"), ("version", "another version")):
            if getattr(self, field) != getattr(other, field):
                raise FileError(f"{name} was saved with {what}: it cannot be used here, save it again")


@dataclass(frozen=True)
class Head:
    """What a file says of itself before its body."""

    identity: Identity
    tokens: IntArray
    states: tuple[tuple[int, int], ...]  # checkpoints: tokens, bytes
    data_bytes: int
    body_sha256: str
    body_start: int

    @property
    def n_bytes(self) -> int:
        """Of the whole file."""
        return self.body_start + sum(size for _, size in self.states) + self.data_bytes


def write_slot_file(path: Path, identity: Identity, contents: Archived) -> int:
    """Write a file, or replace it, at once and for good; its bytes. `OSError` where the disk does not take it."""
    body = hashlib.sha256()
    states = sorted(contents.states.items())
    for part in (*(state for _, state in states), contents.data):
        body.update(part)
    head = {
        **asdict(identity),
        "n_tokens": len(contents.tokens),
        "states": [[n_tokens, len(state)] for n_tokens, state in states],
        "data_bytes": len(contents.data),
        "body_sha256": body.hexdigest(),
    }
    encoded = json.dumps(head).encode()
    opening = MAGIC + struct.pack("<Q", len(encoded)) + encoded + contents.tokens.astype("<i4").tobytes()
    aside = path.with_name(f"{path.name}.{os.getpid()}.{next(_writes)}{WRITTEN_ASIDE}")
    try:
        with open(aside, "wb", opener=open_private) as file:
            file.write(opening + hashlib.sha256(opening).digest())
            for part in (*(state for _, state in states), contents.data):
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
            n_bytes = file.tell()
        aside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise
    sync_folder(path.parent)
    return n_bytes


def sync_folder(folder: Path) -> None:
    """Bring a folder's names to the disk, where the system can."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_head(path: Path) -> Head:
    """The head of a file, checked. `FileError` where it is no such file, damaged or cut short."""
    try:
        with path.open("rb") as file:
            return _read_head(file, path.name)
    except OSError as error:
        raise FileError(f"cannot read {path.name}: {error.strerror}") from error


def read_slot_file(path: Path, identity: Identity) -> Archived:
    """All of a file, checked. `FileError` as `read_head`, and where it is for another model, cache or version. It is
    opened once: whatever takes its name meanwhile, head and body belong together."""
    body = hashlib.sha256()
    states: dict[int, bytes] = {}
    try:
        with path.open("rb") as file:
            head = _read_head(file, path.name)
            identity.check(head.identity, path.name)
            for n_tokens, size in head.states:
                states[n_tokens] = file.read(size)
                body.update(states[n_tokens])
            data = file.read(head.data_bytes)
    except OSError as error:
        raise FileError(f"cannot read {path.name}: {error.strerror}") from error
    body.update(data)
    if body.hexdigest() != head.body_sha256:
        raise FileError(f"{path.name} is damaged: its checksum is wrong")
    return Archived(head.tokens, data, states)


def _read_head(file: BinaryIO, name: str) -> Head:
    """The head of an open file, which then stands at the body."""
    head = _decode_head(file, name)
    size = os.fstat(file.fileno()).st_size
    if size != head.n_bytes:
        raise FileError(f"{name} is damaged: it has {size} bytes instead of {head.n_bytes}")
    return head


def _decode_head(file: BinaryIO, name: str) -> Head:
    damaged = FileError(f"{name} is damaged or no saved slot")
    opening = file.read(len(MAGIC) + 8)
    if len(opening) < len(MAGIC) + 8 or not opening.startswith(MAGIC):
        raise damaged
    (n_head,) = struct.unpack("<Q", opening[len(MAGIC) :])
    if n_head > MAX_HEAD_BYTES:
        raise damaged
    encoded = file.read(n_head)
    try:
        told: dict[str, Any] = json.loads(encoded)
        n_tokens = int(told["n_tokens"])
        if not 0 < n_tokens <= MAX_TOKENS:
            raise damaged
        tokens = file.read(4 * n_tokens)
        start = len(opening) + n_head + len(tokens) + 32
        if hashlib.sha256(opening + encoded + tokens).digest() != file.read(32):
            raise damaged
        return Head(
            identity=Identity(**{field.name: str(told[field.name]) for field in fields(Identity)}),
            tokens=np.frombuffer(tokens, "<i4").astype(np.int32),
            states=tuple((int(n), int(size)) for n, size in told["states"]),
            data_bytes=int(told["data_bytes"]),
            body_sha256=str(told["body_sha256"]),
            body_start=start,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise damaged from error
