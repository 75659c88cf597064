"""Packing: a tensor's rows, as the file has them, to groups of records (see `packed_types.py`).

A packer takes groups `first_group` up to `last_group` of a matrix of `n_out` rows, each `n_records` blocks; `source` is
the first row, `table` what its type looks points up in, else 0. How a block is packed is in its type's file.
"""

from __future__ import annotations

from functools import cache

from phobos.gguf.quants import TABLE
from phobos.kernels.cpu.code.formats import load_family
from phobos.kernels.cpu.declaration import Int, Kernel, kernel
from phobos.kernels.cpu.layout import GROUP
from phobos.kernels.cpu.packed_types import PACKED


def _make_pack(name: str, pack_block, record_bytes: int, block_bytes: int) -> Kernel:

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


@cache
def __getattr__(name: str) -> Kernel:
    """`pack_TYPE`: made when asked for."""
    for kind, packed in PACKED.items():
        if packed.packer == f"pack:{name}":
            file_type = name.removeprefix("pack_")
            pack_block = load_family(packed.family).PACKERS[file_type]
            return _make_pack(file_type, pack_block, packed.record_bytes, TABLE[kind].n_bytes)
    raise AttributeError(f"no kernel {name}")
