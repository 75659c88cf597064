"""The types whose codes stand for entries of a table of the type's own: IQ4_NL, MXFP4, NVFP4."""

from __future__ import annotations

import numpy as np

from phobos.gguf.quants import GGMLType
from phobos.kernels.cuda.code.intrinsics import device, half_to_float, load_u8, load_u16, read_words, word_as_float
from phobos.kernels.cuda.code.types.words import Format, entries_of, scale_only
from phobos.kernels.cuda.packed_types import PACKED

_IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def _make_table_words(values):
    """Nibbles in order through a table of 16 signed bytes that is the type's own."""
    t0, t1, t2, t3 = (
        np.uint32(int.from_bytes(np.array(values[4 * i : 4 * i + 4], np.int8).tobytes(), "little")) for i in range(4)
    )

    @device
    def entries(nibbles):
        return entries_of(nibbles, t0, t1, t2, t3)

    @device
    def words(codes, high, index):
        a, b, c, d = read_words(codes + 16 * index)
        s = np.uint32(16)
        return (
            entries(a), entries(a >> s), entries(b), entries(b >> s), entries(c), entries(c >> s), entries(d),
            entries(d >> s),
        )  # fmt: skip

    @device
    def pair(codes, high, index, t):
        return entries(load_u16(codes + 16 * index + 2 * t)), entries(load_u16(codes + 16 * index + 8 + 2 * t))

    return words, pair


@device
def _mxfp4_scales(scales, index):
    """2 ** (byte - 128): the byte is a float's exponent, and entries of the table are doubled."""
    return word_as_float(load_u8(scales + index) << np.uint32(23)) * np.float32(0.5), np.float32(0)


@device
def _nvfp4_scales(scales, index):
    """Seven bits of a half each, whose exponent counts 8 more; entries of the table are doubled."""
    both = load_u16(scales + 2 * index)
    first, second = (both & np.uint32(0x7F)) << np.uint32(7), ((both >> np.uint32(8)) & np.uint32(0x7F)) << np.uint32(7)
    return half_to_float(first) * np.float32(128), half_to_float(second) * np.float32(128)


def _format(kind, table, scales_of, *, halves=False):
    words, pair = _make_table_words(table)
    return Format(PACKED[kind], words, pair, scales_of, signed=True, has_minimum=False, halves=halves)


FORMATS = {
    "iq4_nl": _format(GGMLType.IQ4_NL, _IQ4_NL, scale_only),
    "mxfp4": _format(GGMLType.MXFP4, _FP4, _mxfp4_scales),
    "nvfp4": _format(GGMLType.NVFP4, _FP4, _nvfp4_scales, halves=True),
}
