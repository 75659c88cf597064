"""Measure the products of every packed type beside the machine's own limits.

    python scripts/measure/tensor_types.py [--threads N] [--types Q4_K,Q2_K] [--repeats N]

For each type a matrix of half a gigabyte meets one row of activations (GB of packed bytes a second, and 10⁹ weights a
second) and, in part, 8 and 512 rows (10⁹ operations a second, a multiply and an add counting two). The types are
measured in turn, `--repeats` times over, and the medians are printed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass

import numpy as np

from phobos.gguf.quants import TABLE, GGMLType
from phobos.kernels.cpu.compiling.compiler import encode_record, load_kernels
from phobos.kernels.cpu.layout import (
    GROUP,
    HEADER_WORDS,
    LINE,
    ROW_UNIT,
    Header,
    float_stride,
    quantized_stride,
    round_up,
    thread_scratch_bytes,
)
from phobos.kernels.cpu.limits import measure_limits
from phobos.kernels.cpu.memory import Arena
from phobos.kernels.cpu.packed_types import PACKED, packed_bytes
from phobos.kernels.cpu.team import Team
from phobos.kernels.workers import usable_threads

N_IN = 4096
MATRIX_BYTES = 512 << 20  # more than caches hold
PART_BYTES = 8 << 20  # of the matrix, that several rows meet
ROWS = (1, 8, 512)
FILLER = 0x2C  # as a half, as a byte and as a code a number like any other: what is measured does not depend on it


@dataclass(frozen=True)
class Product:
    """A type's product with `n_rows` rows, ready to run."""

    kind: GGMLType
    n_rows: int
    n_out: int
    n_bytes: int
    record: np.ndarray


class Bench:
    """Owns the memory all products share, and the team that computes them."""

    def __init__(self, n_threads: int) -> None:
        most_rows = round_up(max(ROWS), ROW_UNIT)
        scratch = thread_scratch_bytes(max(ROWS))
        out_bytes = max(n_rows * 4 * self._n_out(kind, n_rows) for kind in PACKED for n_rows in ROWS)
        self._matrix = Arena(MATRIX_BYTES + LINE)
        self._matrix.bytes[:] = FILLER
        self._rows = Arena(most_rows * (quantized_stride(N_IN) + float_stride(N_IN)))
        self._rows.bytes[:] = FILLER
        self._out = Arena(out_bytes + n_threads * scratch + 8 * HEADER_WORDS + 8 * LINE)
        header_at = self._out.take(8 * HEADER_WORDS)
        self._header = self._out.view(header_at, 8 * HEADER_WORDS).view(np.int64)
        self._header[Header.SCRATCH] = self._out.take(n_threads * scratch)
        self._header[Header.SCRATCH_BYTES] = scratch
        self._work = self._out.take(8)
        self._out_at = self._out.take(out_bytes)
        self._team = Team(n_threads, 0, 0)

    @staticmethod
    def _n_out(kind: GGMLType, n_rows: int) -> int:
        """Outputs of a matrix of the wanted size."""
        group = packed_bytes(PACKED[kind], GROUP, N_IN)
        return GROUP * ((MATRIX_BYTES if n_rows == 1 else PART_BYTES) // group)

    def prepare(self, kind: GGMLType, n_rows: int) -> Product:
        """The step record of a product."""
        name = f"matmul:matmul_{PACKED[kind].name}"
        n_out = self._n_out(kind, n_rows)
        header = self._header.ctypes.data
        arguments = (
            self._out_at, self._rows.address, self._matrix.address, 0, 0, header + 8 * Header.N_ROWS, header,
            self._work, n_out, N_IN, 1.0,
        )  # fmt: skip
        record = np.frombuffer(encode_record(load_kernels([name])[name], 0, arguments), np.int64).copy()
        return Product(kind, n_rows, n_out, packed_bytes(PACKED[kind], n_out, N_IN), record)

    def time(self, product: Product) -> float:
        """Seconds of one run."""
        self._header[Header.N_ROWS] = product.n_rows
        self._header[Header.PASS] += 1
        started = time.perf_counter()
        self._team.run(product.record.ctypes.data, 1)
        return time.perf_counter() - started

    def close(self) -> None:
        """Stop the team."""
        self._team.close()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=usable_threads())
    parser.add_argument("--types", default=",".join(kind.name for kind in PACKED))
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    kinds = [GGMLType[name] for name in given.types.split(",")]
    limits = measure_limits(given.threads)
    bench = Bench(given.threads)
    products = [bench.prepare(kind, n_rows) for kind in kinds for n_rows in ROWS]
    seconds: dict[tuple[GGMLType, int], list[float]] = {}
    for repeat in range(given.repeats + 1):
        for product in products:
            taken = bench.time(product)
            if repeat:
                seconds.setdefault((product.kind, product.n_rows), []).append(taken)
    bench.close()
    able = f"reads {limits.read_gbs:.1f} GB/s, multiplies {limits.int8_gops:.0f} Gop/s (int8)"
    print(f"{given.threads} threads; this machine {able}\n")
    print("| type | bits in the file | packed | GB/s | of limit | 10⁹ weights/s | 8 rows, Gop/s | 512 rows, Gop/s |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for first in range(0, len(products), len(ROWS)):
        one, *several = products[first : first + len(ROWS)]
        quant, taken = TABLE[one.kind], statistics.median(seconds[one.kind, 1])
        n_weights = one.n_out * N_IN
        gbs = one.n_bytes / taken / 1e9
        cells = [one.kind.name, f"{8 * quant.n_bytes / quant.block:.2f}", f"{8 * one.n_bytes / n_weights:.2f}"]
        cells += [f"{gbs:.1f}", f"{gbs / limits.read_gbs:.0%}", f"{n_weights / taken / 1e9:.1f}"]
        for p in several:
            n_operations = 2 * p.n_out * N_IN * p.n_rows
            cells.append(f"{n_operations / statistics.median(seconds[p.kind, p.n_rows]) / 1e9:.0f}")
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
