"""The readers of all packed types: each file of `types/` has the formats of its family in a table."""

from __future__ import annotations

import importlib
from typing import Any

from phobos.gguf.quants import GGMLType
from phobos.kernels.cuda.code.types.words import FloatFormat, Format
from phobos.kernels.cuda.packed_types import PACKED

__all__ = ["FLOAT_FORMATS", "FORMATS", "FloatFormat", "Format"]


def _find(*, are_floats: bool) -> dict[GGMLType, Any]:
    return {
        kind: importlib.import_module(f"phobos.kernels.cuda.code.types.{packed.family}").FORMATS[packed.name]
        for kind, packed in PACKED.items()
        if packed.name == kind.name.lower() and packed.is_float == are_floats
    }


FORMATS: dict[GGMLType, Format] = _find(are_floats=False)
FLOAT_FORMATS: dict[GGMLType, FloatFormat] = _find(are_floats=True)
