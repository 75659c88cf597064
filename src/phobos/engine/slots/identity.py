"""Whom a saved state is for: the model, the cache types, and all code that decides the bits, but not its comments."""

from __future__ import annotations

import dis
import hashlib
from functools import cache
from pathlib import Path
from types import CodeType

import phobos
from phobos.engine.slots.slot_files import Identity
from phobos.gguf.reader import GGUF
from phobos.kernels.backend import Backend
from phobos.settings import EngineSettings

SAMPLE_BYTES = 4096  # of every tensor: a model that was trained on differs in all that training touched
_NOTHING = dis.opmap["NOP"]  # what stays where a docstring was
PACKAGES = ("gguf", "kernels", "archs", "program")


def identify(gguf: GGUF, settings: EngineSettings, backend: Backend) -> Identity:
    """The identity of a loaded model's states."""
    card = backend.describe()
    return Identity(
        model=identify_model(gguf),
        cache=f"{settings.cache_type_k}/{settings.cache_type_v}",
        version=f"{phobos.__version__} {digest_sources()} {card.kind} {card.features}",
    )


def identify_model(gguf: GGUF) -> str:
    """A digest of all that stands before the weights, and of a piece of every tensor."""
    digest = hashlib.sha256()
    for shard, path in enumerate(gguf.paths):
        starts = [tensor.offset for tensor in gguf.tensors.values() if tensor.shard == shard]
        with path.open("rb") as file:
            digest.update(file.read(min(starts, default=-1)))
    for name in sorted(gguf.tensors):
        data = gguf.data(name)
        middle = max(0, len(data) // 2 - SAMPLE_BYTES // 2)
        digest.update(name.encode())
        digest.update(data[middle : middle + SAMPLE_BYTES].tobytes())
    return digest.hexdigest()


@cache
def digest_sources(root: Path = Path(phobos.__file__).parent) -> str:
    """Of the code in `PACKAGES` under `root` as it is compiled, without comments, docstrings and the places of lines:
    states are of use only where it would give the same bits."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode())
            code = compile(path.read_bytes(), "", "exec", dont_inherit=True, optimize=2)
            digest.update(repr(_describe(code)).encode())
    return digest.hexdigest()[:16]


def _describe(value: object) -> object:
    """A constant or compiled code as what decides its meaning."""
    if isinstance(value, frozenset):
        return sorted(map(repr, value))  # a set's own order differs from start to start
    if not isinstance(value, CodeType):
        return value
    arguments = (value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount, value.co_flags)
    names = (value.co_name, value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars)
    units = zip(value.co_code[::2], value.co_code[1::2], strict=True)
    steps = bytes(byte for unit in units if unit[0] != _NOTHING for byte in unit)
    return arguments, names, steps, [_describe(each) for each in value.co_consts]
