"""Packing: a tensor's rows, as the file has them, to groups of records (see `layout.py`).

A packer takes groups `first_group` up to `last_group` of a matrix of `n_out` rows, each `n_records` blocks; `source` is
the first row, `table` what `pack_levels.py` takes beside it, else 0. Lanes past `n_out` are left as they are: zero, in
fresh memory.
"""

from __future__ import annotations

from phobos.kernels.cpu.code.access import load_u8, load_u16, load_u32, store_u8, store_u16, store_u32
from phobos.kernels.cpu.code.simd import inlined
from phobos.kernels.cpu.declaration import Int, Kernel, kernel
from phobos.kernels.cpu.layout import GROUP


@inlined
def _words(out, source, lane, n_words):
    """Word v of a row's block to lane `lane` of vector v."""
    for v in range(n_words):
        store_u32(out + 64 * v + 4 * lane, load_u32(source + 4 * v))


@inlined
def _bytes(out, source, lane, n):
    """Byte b of a row's block to lane `lane` of 16-byte vector b."""
    for b in range(n):
        store_u8(out + 16 * b + lane, load_u8(source + b))


@inlined
def copy_half(out, source, lane):
    """A half to its lane."""
    store_u16(out + 2 * lane, load_u16(source))


@inlined
def _high_bits(out, source, lane):
    """32 high bits, one a value in order, rearranged: bit j of byte i is that of value 4j + i."""
    bits = load_u32(source)
    word = 0
    for i in range(4):  # of every fourth bit from i on: pairs, fours, then all eight together
        byte = bits >> i & 0x11111111
        byte = (byte | byte >> 3) & 0x03030303
        byte = (byte | byte >> 6) & 0x000F000F
        word |= ((byte | byte >> 12) & 0xFF) << (8 * i)
    store_u32(out + 4 * lane, word)


@inlined
def _q8_0(out, source, table, lane):
    copy_half(out + 512, source, lane)
    for v in range(8):  # signed codes to unsigned: + 128 is a flip of the top bit
        store_u32(out + 64 * v + 4 * lane, load_u32(source + 2 + 4 * v) ^ 0x80808080)


@inlined
def _q4_0(out, source, table, lane):
    _words(out, source + 2, lane, 4)
    copy_half(out + 256, source, lane)


@inlined
def _mxfp4(out, source, table, lane):
    _words(out, source + 1, lane, 4)
    store_u8(out + 256 + lane, load_u8(source))


@inlined
def _q4_1(out, source, table, lane):
    _words(out, source + 4, lane, 4)
    copy_half(out + 256, source, lane)
    copy_half(out + 288, source + 2, lane)


@inlined
def _q5_0(out, source, table, lane):
    _words(out, source + 6, lane, 4)
    _high_bits(out + 256, source + 2, lane)
    copy_half(out + 320, source, lane)


@inlined
def _q5_1(out, source, table, lane):
    _words(out, source + 8, lane, 4)
    _high_bits(out + 256, source + 4, lane)
    copy_half(out + 320, source, lane)
    copy_half(out + 352, source + 2, lane)


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
def _q4_k(out, source, table, lane):
    _words(out, source + 16, lane, 32)
    copy_half(out + 2048, source, lane)
    copy_half(out + 2080, source + 2, lane)
    _six_bit_scales(out + 2112, out + 2240, source + 4, lane)


@inlined
def _q5_k(out, source, table, lane):
    _words(out, source + 48, lane, 32)
    _words(out + 2048, source + 16, lane, 8)
    copy_half(out + 2560, source, lane)
    copy_half(out + 2592, source + 2, lane)
    _six_bit_scales(out + 2624, out + 2752, source + 4, lane)


@inlined
def _q6_k(out, source, table, lane):
    _words(out, source, lane, 32)
    _words(out + 2048, source + 128, lane, 16)
    _bytes(out + 3072, source + 192, lane, 16)
    copy_half(out + 3328, source + 208, lane)


@inlined
def _q2_k(out, source, table, lane):
    _words(out, source + 16, lane, 16)
    _bytes(out + 1024, source, lane, 16)
    copy_half(out + 1280, source + 80, lane)
    copy_half(out + 1312, source + 82, lane)


@inlined
def _q3_k(out, source, table, lane):
    _words(out, source + 32, lane, 16)
    _words(out + 1024, source, lane, 8)
    for b in range(16):  # four low bits in eight bytes, two high ones in four
        low = load_u8(source + 96 + b % 8) >> (4 * (b // 8)) & 15
        high = load_u8(source + 104 + b % 4) >> (2 * (b // 4)) & 3
        store_u8(out + 1536 + 16 * b + lane, (low | high << 4) - 32)
    copy_half(out + 1792, source + 108, lane)


@inlined
def _iq4_xs(out, source, table, lane):
    _words(out, source + 8, lane, 32)
    for b in range(8):
        low = load_u8(source + 4 + b // 2) >> (4 * (b % 2)) & 15
        high = load_u16(source + 2) >> (2 * b) & 3
        store_u8(out + 2048 + 16 * b + lane, (low | high << 4) - 32)
    copy_half(out + 2176, source, lane)


@inlined
def _nvfp4(out, source, table, lane):
    _words(out, source + 4, lane, 8)
    for b in range(4):  # the sign is ignored, and the code of NaN counts as zero
        scale = load_u8(source + b)
        store_u8(out + 512 + 16 * b + lane, scale & 127 if scale != 127 else 0)


@inlined
def _tq2_0(out, source, table, lane):
    _words(out, source, lane, 16)
    copy_half(out + 1024, source + 64, lane)


@inlined
def _q1_0(out, source, table, lane):
    for v in range(4):
        _high_bits(out + 64 * v, source + 2 + 4 * v, lane)
    copy_half(out + 256, source, lane)


@inlined
def _q2_0(out, source, table, lane):
    """The four values of a byte go to the four bytes of a word, two bits apart from those of the next byte."""
    for v in range(4):
        word = 0
        for k in range(4):
            values = load_u8(source + 2 + 4 * v + k)
            for i in range(4):
                word |= (values >> (2 * i) & 3) << (8 * i + 2 * k)
        store_u32(out + 64 * v + 4 * lane, word)
    copy_half(out + 256, source, lane)


@inlined
def _f32(out, source, table, lane):
    store_u32(out + 4 * lane, load_u32(source))


@inlined
def _f16(out, source, table, lane):
    copy_half(out, source, lane)


def make_pack(name: str, pack_block, record_bytes: int, block_bytes: int) -> Kernel:
    """The packer of a type: `pack_block(out, source, table, lane)` puts one row's block into its lane of a record."""

    def pack(
        out: Int, source: Int, table: Int, first_group: Int, last_group: Int, n_out: Int, n_records: Int,
        thread, n_threads,
    ):  # fmt: skip
        n_groups = last_group - first_group
        first = first_group + n_groups * thread // n_threads
        last = first_group + n_groups * (thread + 1) // n_threads
        for group in range(first, last):
            for record in range(n_records):
                target = out + (group * n_records + record) * record_bytes
                for lane in range(min(GROUP, n_out - GROUP * group)):
                    row = GROUP * group + lane
                    pack_block(target, source + (row * n_records + record) * block_bytes, table, lane)

    pack.__name__ = f"pack_{name}"
    return kernel(pack)


pack_q8_0 = make_pack("q8_0", _q8_0, 544, 34)
pack_q4_0 = make_pack("q4_0", _q4_0, 288, 18)
pack_q4_1 = make_pack("q4_1", _q4_1, 320, 20)
pack_q5_0 = make_pack("q5_0", _q5_0, 352, 22)
pack_q5_1 = make_pack("q5_1", _q5_1, 384, 24)
pack_q1_0 = make_pack("q1_0", _q1_0, 288, 18)
pack_q2_0 = make_pack("q2_0", _q2_0, 288, 18)
pack_q2_k = make_pack("q2_k", _q2_k, 1344, 84)
pack_q3_k = make_pack("q3_k", _q3_k, 1824, 110)
pack_q4_k = make_pack("q4_k", _q4_k, 2368, 144)
pack_q5_k = make_pack("q5_k", _q5_k, 2880, 176)
pack_q6_k = make_pack("q6_k", _q6_k, 3360, 210)
pack_iq4_nl = make_pack("iq4_nl", _q4_0, 288, 18)
pack_iq4_xs = make_pack("iq4_xs", _iq4_xs, 2208, 136)
pack_tq2_0 = make_pack("tq2_0", _tq2_0, 1056, 66)
pack_nvfp4 = make_pack("nvfp4", _nvfp4, 576, 36)
pack_mxfp4 = make_pack("mxfp4", _mxfp4, 272, 17)
pack_f32 = make_pack("f32", _f32, 64, 4)
pack_f16 = make_pack("f16", _f16, 32, 2)
pack_bf16 = make_pack("bf16", _f16, 32, 2)
