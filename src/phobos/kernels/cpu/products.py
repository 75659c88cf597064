"""Products as they are measured: a region of filler bytes stands for matrices of any type, rows of activations meet it.

What is measured does not depend on the filler, which as a half, as a byte and as a code is a number like any other. All
of a type's products run the kernels that models run, by a whole team.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from phobos.kernels.cpu.compiling.compiler import encode_record, load_kernels
from phobos.kernels.cpu.layout import (
    GROUP,
    HEADER_WORDS,
    LINE,
    RECORD_WORDS,
    ROW_UNIT,
    WAIT_FLAG,
    Header,
    float_stride,
    quantized_stride,
    round_up,
    thread_scratch_bytes,
)
from phobos.kernels.cpu.memory import Arena
from phobos.kernels.cpu.names import made, matmul
from phobos.kernels.cpu.packed_types import PackedType, packed_bytes, read_ahead_offset
from phobos.kernels.cpu.team import Team

N_IN = 2048
FILLER = 0x2C
MOST_MATRICES = 64  # of one run


@dataclass(frozen=True)
class ReadAhead:
    """How many bytes ahead of what it reads a product asks for lines: into the first cache, and into the second."""

    near: int
    far: int

    def __str__(self) -> str:
        return f"{self.near},{self.far}"


def kernel_of(kind: PackedType) -> str:
    """The kernel of a type's products."""
    return made(matmul, "matmul", kind.name).name


def put_read_ahead(header: np.ndarray, name: str, ahead: ReadAhead) -> None:
    """Tell the kernels of a packed type, by way of the batch header they get."""
    at = read_ahead_offset(name) // 8
    header[at : at + 2] = ahead.near, ahead.far


@dataclass(frozen=True)
class Product:
    """`n_rows` rows by matrices [n_out, N_IN] that lie one behind the other, ready to run."""

    kind: PackedType
    n_rows: int
    n_out: int  # of all matrices
    records: np.ndarray

    @property
    def n_bytes(self) -> int:
        """Bytes of all matrices."""
        return packed_bytes(self.kind, self.n_out, N_IN)

    @property
    def n_operations(self) -> int:
        """Multiplies and adds."""
        return 2 * self.n_rows * self.n_out * N_IN


class ProductBench:
    """Owns the memory all products share, `region_bytes` of it for matrices, and the team that computes them. A context
    manager."""

    def __init__(self, n_threads: int, region_bytes: int, max_rows: int = 1, most_out_bytes: int = 8 << 20) -> None:
        self.region_bytes = region_bytes
        self._out_bytes = most_out_bytes
        rows = round_up(max_rows, ROW_UNIT)
        scratch = thread_scratch_bytes(max_rows)
        self._region = Arena(region_bytes + 64 * LINE)
        self._region.bytes[:] = FILLER
        self._rows = Arena(rows * (quantized_stride(N_IN) + float_stride(N_IN)))
        self._rows.bytes[:] = FILLER
        tail = n_threads * scratch + 8 * HEADER_WORDS + LINE * (MOST_MATRICES + 8)
        self._out = Arena(most_out_bytes + tail)
        header_at = self._out.take(8 * HEADER_WORDS)
        self._header = self._out.view(header_at, 8 * HEADER_WORDS).view(np.int64)
        self._header[Header.SCRATCH] = self._out.take(n_threads * scratch)
        self._header[Header.SCRATCH_BYTES] = scratch
        self._work = [self._out.take(8) for _ in range(MOST_MATRICES)]
        self._out_at = self._out.take(most_out_bytes)
        self._team = Team(n_threads, 0, 0)

    def prepare(self, kind: PackedType, n_rows: int, n_bytes: int, *, offset: int = 0, n_matrices: int = 1) -> Product:
        """A product with `n_bytes` of the region from `offset` on, cut into matrices, but no more of it than there is
        room for results."""
        group = packed_bytes(kind, GROUP, N_IN)
        most_groups = self._out_bytes // (round_up(n_rows, ROW_UNIT) * 4 * GROUP)
        n_groups = max(1, min(n_bytes // (n_matrices * group), most_groups))
        header = self._header.ctypes.data
        records = []
        for i in range(n_matrices):
            weight = self._region.address + (offset + i * n_groups * group) // LINE * LINE
            arguments = (
                self._out_at, self._rows.address, weight, 0, 0, header + 8 * Header.N_ROWS, header, self._work[i],
                GROUP * n_groups, N_IN, 1.0,
            )  # fmt: skip
            records.append(encode_record(load_kernels([kernel_of(kind)])[kernel_of(kind)], WAIT_FLAG, arguments))
        words = np.frombuffer(b"".join(records), np.int64).copy()
        return Product(kind, n_rows, GROUP * n_groups * n_matrices, words)

    def time(self, product: Product, ahead: ReadAhead) -> float:
        """Seconds of one run."""
        put_read_ahead(self._header, product.kind.name, ahead)
        self._header[Header.N_ROWS] = product.n_rows
        self._header[Header.PASS] += 1
        n_steps = len(product.records) // RECORD_WORDS
        started = time.perf_counter()
        self._team.run(product.records.ctypes.data, n_steps)
        return time.perf_counter() - started

    def __enter__(self) -> ProductBench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._team.close()
