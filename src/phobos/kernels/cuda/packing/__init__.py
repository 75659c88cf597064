"""Packing: rows of a matrix, as the file has them, to the planes of `packed_types.py`. Plain NumPy, a slab of rows at a
time; a file a family of types."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from phobos.gguf.quants import GGMLType
from phobos.kernels.cuda.packed_types import PACKED
from phobos.kernels.cuda.packing.planes import Bytes, Planes


def find_packer(kind: GGMLType) -> Callable[[Bytes], Planes]:
    """What makes planes of blocks of this type; `KeyError` where it has no packed form."""
    module = importlib.import_module(f"phobos.kernels.cuda.packing.{PACKED[kind].family}")
    packer: Callable[[Bytes], Planes] = module.PACKERS[kind]
    return packer
