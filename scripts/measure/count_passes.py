"""Count what the CUDA backend moves and computes in one decode pass and one prompt pass of a model, kernel by kernel,
and how long a card would take at its roofs. Needs no card: `python scripts/measure/count_passes.py MODEL.gguf`.

Counted are the bytes that must come from or go to the card's memory at least once: weights, cached keys and values,
rows read and written. A kernel's time is the longer of bytes over bandwidth and operations over rate.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from phobos.archs import build_program
from phobos.gguf.reader import open_gguf
from phobos.kernels.backend import BackendLimits
from phobos.kernels.cuda.backend import describe_program
from phobos.kernels.cuda.cache import SlotCache
from phobos.kernels.cuda.card import GridLaunch
from phobos.kernels.cuda.layout import quantized_stride
from phobos.kernels.cuda.lowering.fusion import Fusion
from phobos.kernels.cuda.lowering.lower import Lowering
from phobos.kernels.cuda.states import SlotStates
from phobos.kernels.cuda.weights import Weight, place_weights, takes_codes
from phobos.program.steps import Attention, Buffer, Embed, HeadMatMul, MatMul, Op, Program, RotateStore

CONTEXT = 512  # positions in the cache of the decode pass
PROMPT_ROWS = 512
#: Published bandwidth (bytes/s), and operations/s of `dp4a` (multiprocessors x 64 a clock x 8 operations x boost clock)
#: and of `mma` with the float epilogue that goes with it: 4 operations a block of 32 inputs, 128 lanes a clock.
CARDS = {
    "RTX 4090": (1.008e12, 128 * 64 * 8 * 2.52e9, 128 * 128 * 16 * 2.52e9),
    "H200": (4.8e12, 132 * 64 * 8 * 1.98e9, 132 * 128 * 16 * 1.98e9),
}
LAUNCH_S = 1.5e-6  # of a kernel inside a recorded pass, roughly


class Ledger:
    """Stands in for a card: hands out addresses and takes no memory."""

    name, target = "ledger", (8, 0)

    def __init__(self) -> None:
        self._next = 256

    def allocate(self, n_bytes: int) -> int:
        start, self._next = self._next, self._next + -(-n_bytes // 256) * 256
        return start

    def upload(self, address: int, data: np.ndarray) -> None:
        """Nothing is sent."""

    def synchronize(self) -> None:
        """Nothing runs."""


@dataclass
class Count:
    """What launches of one kernel move and compute."""

    n: int = 0
    n_bytes: int = 0
    operations: int = 0
    is_tiled: bool = False


def _rows(buffer: Buffer, n_rows: int, n_outputs: int) -> int:
    return n_outputs if buffer.per_output else n_rows


def count_launch(
    launch: GridLaunch, op: Op | Fusion, weights: dict[str, Weight], n_rows: int, n_outputs: int, context: int
) -> tuple[int, int]:
    """(bytes, operations) of one launch of an op or of several."""
    kernel = launch.kernel.partition(":")[2]
    if isinstance(op, Fusion):
        each = [
            count_launch(replace(launch, kernel="matmul:matmul"), o, weights, n_rows, n_outputs, context)
            for o in op.ops
        ]
        first, rows = op.products[0], _rows(op.products[0].out, n_rows, n_outputs)
        again = (len(op.products) - 1) * rows * quantized_stride(first.x.width)
        if launch.kernel.startswith("matmul_stages"):  # results never leave the multiprocessor
            again += sum(2 * 4 * rows * product.out.width for product in op.products)
        return sum(n for n, _ in each) - again, sum(n for _, n in each)
    buffers = [value for value in vars(op).values() if isinstance(value, Buffer)]
    floats = sum(4 * _rows(b, n_rows, n_outputs) * b.width for b in buffers)
    if isinstance(op, MatMul | HeadMatMul) and kernel.startswith("matmul"):
        rows = _rows(op.out, n_rows, n_outputs)
        n_in = op.x.width
        x_bytes = rows * (quantized_stride(n_in) if takes_codes(weights, op.weight) else 4 * n_in)
        out_bytes = 4 * rows * op.out.width * (2 if isinstance(op, MatMul) and op.residual else 1)
        return weights[op.weight].n_bytes + out_bytes + x_bytes, 2 * rows * n_in * op.out.width
    if isinstance(op, Attention) and kernel.startswith("attention"):
        layer = op.layer
        seen = min(context, layer.window) if layer.window else context
        mean = seen if n_rows == 1 else seen // 2
        cached = 2 * seen * layer.n_kv_heads * (layer.k_dim + layer.v_dim)
        return floats + cached, 2 * n_rows * op.n_heads * mean * (layer.k_dim + layer.v_dim)
    if isinstance(op, RotateStore):
        return floats + sum(2 * n_rows * b.width for b in (op.k, op.v) if b is not None), 0
    if isinstance(op, Embed):
        return n_rows * (weights[op.weight].n_bytes // weights[op.weight].shape[0]) + floats, 0
    return floats, 0


def tile_bytes(launch: GridLaunch, products: Sequence[MatMul], weights: dict[str, Weight], n_rows: int) -> int:
    """Bytes that tiles of products on tensor cores ask the second cache for: weights once for each tile of rows,
    activations once for each tile of outputs."""
    rows, outputs = launch.grid[:2] if launch.kernel.startswith("matmul_stages") else launch.grid[1::-1]
    n_bytes = sum(weights[op.weight].n_bytes for op in products)
    return rows * n_bytes + outputs * n_rows * quantized_stride(products[0].x.width)


def count_tiles(lowering: Lowering, weights: dict[str, Weight], n_rows: int) -> tuple[int, int]:
    """(bytes, `mma` of 16 by 8 by 32) of all tiled products of a pass."""
    n_bytes = n_products = 0
    for launch, op in zip(*lowering.lower(n_rows, 1), strict=True):
        products = op.products if isinstance(op, Fusion) else (op,) if isinstance(op, MatMul) else ()
        if products and launch.kernel.startswith(("matmul_stages", "matmul_tile")):
            n_bytes += tile_bytes(launch, products, weights, n_rows)
            n_products += sum(n_rows * each.out.width * each.x.width // (16 * 8 * 32) for each in products)
    return n_bytes, n_products


def count_pass(
    program: Program, lowering: Lowering, weights: dict[str, Weight], n_rows: int, context: int
) -> dict[str, Count]:
    """Every kernel of a pass with one wanted output."""
    table: dict[str, Count] = {}
    for launch, op in zip(*lowering.lower(n_rows, 1), strict=True):
        module, _, kernel = launch.kernel.partition(":")
        is_tiled = module in ("matmul_stages", "matmul_tile")
        count = table.setdefault(kernel + " (mma)" * is_tiled, Count(is_tiled=is_tiled))
        n_bytes, operations = count_launch(launch, op, weights, n_rows, 1, context)
        count.n, count.n_bytes, count.operations = count.n + 1, count.n_bytes + n_bytes, count.operations + operations
    return table


def seconds(count: Count, bandwidth: float, dot_rate: float, tile_rate: float) -> float:
    """At the roofs, without launches."""
    return max(count.n_bytes / bandwidth, count.operations / (tile_rate if count.is_tiled else dot_rate))


def format_table(title: str, table: dict[str, Count]) -> list[str]:
    """Markdown."""
    heads = "".join(f" {name}, us |" for name in CARDS)
    lines = [f"**{title}**", "", f"| kernel | launches | MB | Gop |{heads}", f"|---|--:|--:|--:|{'--:|' * len(CARDS)}"]
    total = Count(*(sum(getattr(c, f) for c in table.values()) for f in ("n", "n_bytes", "operations")))
    sums = {name: sum(seconds(c, *roofs) for c in table.values()) for name, roofs in CARDS.items()}
    for kernel, c in sorted(table.items(), key=lambda item: -item[1].n_bytes):
        times = "".join(f" {1e6 * seconds(c, *roofs):.1f} |" for roofs in CARDS.values())
        lines.append(f"| `{kernel}` | {c.n} | {c.n_bytes / 1e6:.2f} | {c.operations / 1e9:.2f} |{times}")
    times = "".join(f" {1e6 * s:.0f} |" for s in sums.values())
    lines.append(f"| all | {total.n} | {total.n_bytes / 1e6:.1f} | {total.operations / 1e9:.1f} |{times}")
    return lines


def main(arguments: Sequence[str]) -> int:
    """Print the tables of a model."""
    path = Path(arguments[0])
    with open_gguf(path) as gguf:
        program = build_program(gguf)
        card: Any = Ledger()
        described = describe_program(gguf, program)
        weights = place_weights(card, described)
        read = sum(
            info.n_bytes // (info.shape[0] if name == "token_embd.weight" and "output.weight" in gguf.tensors else 1)
            for name, info in gguf.tensors.items()
        )
    limits = BackendLimits(4096, 4, PROMPT_ROWS + 4, 36, program.n_vocab)
    states = SlotStates(card, program.states, 4)
    lowering = Lowering(program, weights, SlotCache(card, program.layers, 4, 4096), states, card, limits)
    decode = count_pass(program, lowering, weights, 1, CONTEXT)
    prompt = count_pass(program, lowering, weights, PROMPT_ROWS, PROMPT_ROWS)
    print("\n".join(format_table(f"One decode pass, {CONTEXT} positions in the cache", decode)))
    print()
    print("\n".join(format_table(f"One prompt pass of {PROMPT_ROWS} rows", prompt)))
    print()
    n_bytes, n_products = count_tiles(lowering, weights, PROMPT_ROWS)
    print(
        f"The prompt's tiles read {n_bytes / 1e9:.2f} GB from the L2 cache, {n_bytes / n_products:.0f} bytes for "
        "each of their matrix instructions."
    )
    moved = sum(count.n_bytes for count in decode.values())
    n_launches = sum(count.n for count in decode.values())
    print(f"Of the decode pass's {moved / 1e6:.1f} MB, {read / moved:.1%} are the file's own weights.")
    for name, (bandwidth, *rates) in CARDS.items():
        ideal = sum(seconds(count, bandwidth, *rates) for count in decode.values())
        whole = ideal + n_launches * LAUNCH_S
        print(
            f"{name}: {1 / ideal:.0f} tok/s at the limits; with {LAUNCH_S * 1e6:.1f} us for each of {n_launches} "
            f"launches {1 / whole:.0f} tok/s, {read / whole / bandwidth:.0%} of the bandwidth."
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
