"""Packing: a tensor's rows, as the file has them, to groups of records (see `layout.py`).

A packer takes groups `first_group` up to `last_group` of a matrix of `n_out` rows, each `n_records` blocks; `source` is
the first row. Lanes past `n_out` are left as they are: zero, in fresh memory.
"""

from __future__ import annotations

from phobos.kernels.cpu.access import load_u8, load_u16, load_u32, store_u8, store_u16, store_u32
from phobos.kernels.cpu.compiler import Int, Kernel, kernel
from phobos.kernels.cpu.layout import GROUP
from phobos.kernels.cpu.simd import inlined


@inlined
def _words(out, source, lane, n_words):
    """Word v of a row's block to lane `lane` of vector v."""
    for v in range(n_words):
        store_u32(out + 64 * v + 4 * lane, load_u32(source + 4 * v))


@inlined
def _half(out, source, lane):
    store_u16(out + 2 * lane, load_u16(source))


@inlined
def _high_bits(out, source, lane):
    """32 high bits, one a value in order, rearranged: bit j of byte i is that of value 4j + i."""
    bits = load_u32(source)
    word = 0
    for i in range(4):
        for j in range(8):
            word |= ((bits >> (4 * j + i)) & 1) << (8 * i + j)
    store_u32(out + 4 * lane, word)


@inlined
def _q8_0(out, source, lane):
    _half(out + 512, source, lane)
    for v in range(8):  # signed codes to unsigned: + 128 is a flip of the top bit
        store_u32(out + 64 * v + 4 * lane, load_u32(source + 2 + 4 * v) ^ 0x80808080)


@inlined
def _q4_0(out, source, lane):
    _words(out, source + 2, lane, 4)
    _half(out + 256, source, lane)


@inlined
def _mxfp4(out, source, lane):
    _words(out, source + 1, lane, 4)
    store_u8(out + 256 + lane, load_u8(source))


@inlined
def _q4_1(out, source, lane):
    _words(out, source + 4, lane, 4)
    _half(out + 256, source, lane)
    _half(out + 288, source + 2, lane)


@inlined
def _q5_0(out, source, lane):
    _words(out, source + 6, lane, 4)
    _high_bits(out + 256, source + 2, lane)
    _half(out + 320, source, lane)


@inlined
def _q5_1(out, source, lane):
    _words(out, source + 8, lane, 4)
    _high_bits(out + 256, source + 4, lane)
    _half(out + 320, source, lane)
    _half(out + 352, source + 2, lane)


@inlined
def _six_bit_scales(scales, minimums, source, lane):
    """The 12 bytes of 8 six-bit scales and minimums of a K block, a byte each."""
    for b in range(4):
        low, middle, high = load_u8(source + b), load_u8(source + 4 + b), load_u8(source + 8 + b)
        store_u8(scales + 16 * b + lane, low & 63)
        store_u8(minimums + 16 * b + lane, middle & 63)
        store_u8(scales + 16 * (b + 4) + lane, (high & 15) | (low >> 6 << 4))
        store_u8(minimums + 16 * (b + 4) + lane, (high >> 4) | (middle >> 6 << 4))


@inlined
def _q4_k(out, source, lane):
    _words(out, source + 16, lane, 32)
    _half(out + 2048, source, lane)
    _half(out + 2080, source + 2, lane)
    _six_bit_scales(out + 2112, out + 2240, source + 4, lane)


@inlined
def _q5_k(out, source, lane):
    _words(out, source + 48, lane, 32)
    _words(out + 2048, source + 16, lane, 8)
    _half(out + 2560, source, lane)
    _half(out + 2592, source + 2, lane)
    _six_bit_scales(out + 2624, out + 2752, source + 4, lane)


@inlined
def _q6_k(out, source, lane):
    _words(out, source, lane, 32)
    _words(out + 2048, source + 128, lane, 16)
    for b in range(16):
        store_u8(out + 3072 + 16 * b + lane, load_u8(source + 192 + b))
    _half(out + 3328, source + 208, lane)


@inlined
def _f32(out, source, lane):
    store_u32(out + 4 * lane, load_u32(source))


def _make_pack(name: str, pack_block, record_bytes: int, block_bytes: int) -> Kernel:
    def pack(out: Int, source: Int, first_group: Int, last_group: Int, n_out: Int, n_records: Int, thread, n_threads):
        n_groups = last_group - first_group
        first = first_group + n_groups * thread // n_threads
        last = first_group + n_groups * (thread + 1) // n_threads
        for group in range(first, last):
            for record in range(n_records):
                target = out + (group * n_records + record) * record_bytes
                for lane in range(min(GROUP, n_out - GROUP * group)):
                    row = GROUP * group + lane
                    pack_block(target, source + (row * n_records + record) * block_bytes, lane)

    pack.__name__ = f"pack_{name}"
    return kernel(pack)


pack_q8_0 = _make_pack("q8_0", _q8_0, 544, 34)
pack_q4_0 = _make_pack("q4_0", _q4_0, 288, 18)
pack_q4_1 = _make_pack("q4_1", _q4_1, 320, 20)
pack_q5_0 = _make_pack("q5_0", _q5_0, 352, 22)
pack_q5_1 = _make_pack("q5_1", _q5_1, 384, 24)
pack_q4_k = _make_pack("q4_k", _q4_k, 2368, 144)
pack_q5_k = _make_pack("q5_k", _q5_k, 2880, 176)
pack_q6_k = _make_pack("q6_k", _q6_k, 3360, 210)
pack_iq4_nl = _make_pack("iq4_nl", _q4_0, 288, 18)
pack_mxfp4 = _make_pack("mxfp4", _mxfp4, 272, 17)
pack_f32 = _make_pack("f32", _f32, 64, 4)
pack_f16 = _make_pack("f16", _half, 32, 2)
pack_bf16 = _make_pack("bf16", _half, 32, 2)
