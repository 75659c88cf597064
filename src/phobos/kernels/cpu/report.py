"""What `PHOBOS_PASS_REPORT=N` prints: the census of one pass.

A reported pass runs its launches one at a time, each by the whole team, so the sum is a little more than the pass takes
otherwise. Lines go to standard error, columns by blanks, one line a kernel and shape.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from phobos.errors import UsageError
from phobos.kernels.cpu.lowering.launches import Launch
from phobos.kernels.cpu.weights import Weight
from phobos.program.steps import MatMul


@dataclass
class _Row:
    n: int = 0
    seconds: float = 0.0
    n_bytes: int = 0
    operations: int = 0


def requested_pass() -> int | None:
    """The number of the pass to report, counted from 1."""
    text = os.environ.get("PHOBOS_PASS_REPORT", "")
    if not text:
        return None
    if not text.isdecimal():
        raise UsageError(f"PHOBOS_PASS_REPORT={text} is not a pass number: give one counted from 1")
    return int(text)


def print_census(
    number: int,
    launches: Sequence[Launch],
    weights: Mapping[str, Weight],
    rows_of: Callable[[Launch], int],
    run_launch: Callable[[int], None],
) -> None:
    """Run the launches one by one and print what each kind took, the longest first."""
    table: dict[tuple[str, str], _Row] = {}
    for index, launch in enumerate(launches):
        started = time.perf_counter()
        run_launch(index)
        seconds = time.perf_counter() - started
        shape, n_bytes, operations = _size(launch, weights, rows_of(launch))
        row = table.setdefault((launch.kernel.partition(":")[2], shape), _Row())
        row.n += 1
        row.seconds += seconds
        row.n_bytes += n_bytes
        row.operations += operations
    total = sum(row.seconds for row in table.values())
    lines = [f"pass {number}: {len(launches)} steps, {total * 1e6:.0f} us"]
    lines.append(f"{'kernel':<28}{'shape':<24}{'n':>5}{'us':>10}{'share':>8}{'GB/s':>8}{'Gop/s':>9}")
    for (kernel, shape), row in sorted(table.items(), key=lambda item: -item[1].seconds):
        rates = (
            f"{row.n_bytes / row.seconds / 1e9:8.1f}{row.operations / row.seconds / 1e9:9.0f}" if row.n_bytes else ""
        )
        lines.append(f"{kernel:<28}{shape:<24}{row.n:>5}{row.seconds * 1e6:>10.0f}{row.seconds / total:>8.1%}{rates}")
    print("\n".join(lines), file=sys.stderr, flush=True)


def _size(launch: Launch, weights: Mapping[str, Weight], n_rows: int) -> tuple[str, int, int]:
    """(shape, bytes of weights, operations) of a launch; only products have the last two."""
    op = launch.op
    if isinstance(op, MatMul) and launch.kernel.startswith(("matmul:", "gated:")):
        n_matrices = 2 if launch.kernel.startswith("gated:") else 1  # gate and up are of one type and shape
        width = n_matrices * op.out.width
        shape = f"{n_rows}x{op.x.width}x{width}"
        return shape, n_matrices * weights[op.weight].n_bytes, 2 * n_rows * op.x.width * width
    return f"{n_rows} rows", 0, 0
