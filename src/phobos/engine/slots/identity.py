"""Whom a saved state is for: the model, the cache types, and all code that has a say in the bits."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import phobos
from phobos.engine.slots.slot_files import Identity
from phobos.gguf.reader import GGUF
from phobos.kernels.backend import Backend
from phobos.settings import EngineSettings

SAMPLE_BYTES = 4096  # of every tensor: a model that was trained on differs in all that training touched
PACKAGES = ("kernels", "archs", "program")


def identify(gguf: GGUF, settings: EngineSettings, backend: Backend) -> Identity:
    """The identity of a loaded model's states."""
    card = backend.describe()
    return Identity(
        model=identify_model(gguf),
        cache=f"{settings.cache_type_k}/{settings.cache_type_v}",
        version=f"{phobos.__version__} {_source_digest()} {card.kind} {card.features}",
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
def _source_digest() -> str:
    """Of the code that computes: states are of use only where it would give the same bits."""
    digest = hashlib.sha256()
    root = Path(phobos.__file__).parent
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
