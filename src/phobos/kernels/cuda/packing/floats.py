"""F32, F16, BF16: as they are in the file."""

from __future__ import annotations

from phobos.gguf.quants import GGMLType
from phobos.kernels.cuda.packing.planes import Bytes, Planes, whole


def _pack(blocks: Bytes) -> Planes:
    return whole(blocks), None, None


PACKERS = {GGMLType.F32: _pack, GGMLType.F16: _pack, GGMLType.BF16: _pack}
