"""The readers of all packed types: each file of `types/` has the formats of its family in a table."""

from __future__ import annotations

import importlib

from phobos.gguf.quants import GGMLType
from phobos.kernels.cuda.code.types.words import Format
from phobos.kernels.cuda.packed_types import PACKED

__all__ = ["FORMATS", "Format"]


def _find(family: str, name: str) -> Format:
    found = importlib.import_module(f"phobos.kernels.cuda.code.types.{family}").FORMATS[name]
    assert isinstance(found, Format)
    return found


FORMATS: dict[GGMLType, Format] = {
    kind: _find(packed.family, packed.name)
    for kind, packed in PACKED.items()
    if packed.name == kind.name.lower() and not packed.is_float
}
