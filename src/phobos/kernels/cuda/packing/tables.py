"""IQ4_NL, MXFP4, NVFP4: four-bit codes in order of input."""

from __future__ import annotations

import numpy as np

from phobos.gguf.decode import split_bits
from phobos.gguf.quants import GGMLType
from phobos.kernels.cuda.packing.planes import Bytes, Planes, in_order, whole


def _pack_iq4_nl(blocks: Bytes) -> Planes:
    return in_order(blocks[:, 2:]), None, whole(blocks[:, :2])


def _pack_mxfp4(blocks: Bytes) -> Planes:
    return in_order(blocks[:, 1:]), None, whole(blocks[:, :1])


def _pack_nvfp4(blocks: Bytes) -> Planes:
    """The code of NaN among the scales counts as zero."""
    values = split_bits(blocks[:, 4:], 8, 4).reshape(-1, 64)
    scales = np.where(blocks[:, :4] == 0x7F, np.uint8(0), blocks[:, :4])
    return values[:, 0::2] | (values[:, 1::2] << np.uint8(4)), None, scales


PACKERS = {
    GGMLType.IQ4_NL: _pack_iq4_nl,
    GGMLType.MXFP4: _pack_mxfp4,
    GGMLType.NVFP4: _pack_nvfp4,
}
