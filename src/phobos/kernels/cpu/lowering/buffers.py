"""How much memory a lowered program writes beside the cache, by the name of each piece.

Buffers of the program under their names, quantized copies as "NAME.q8", and what attention and products with many
matrices leave from launch to launch. The scratch of the latter is shared by all such ops, which run one after another.
"""

from __future__ import annotations

from collections.abc import Mapping

from phobos.kernels.backend import BackendLimits
from phobos.kernels.cpu.layout import (
    BLOCK,
    ROW_UNIT,
    SPAN,
    SPLIT_ROWS,
    Order,
    float_stride,
    quantized_stride,
    round_up,
)
from phobos.kernels.cpu.lowering import fusion
from phobos.kernels.cpu.weights import Weight, takes_codes
from phobos.program.steps import Attention, Buffer, Experts, HeadMatMul, MatMul, Program, RopeTable

ORDER, ACTIVE, SOURCES, PLACES = "mix.order", "mix.active", "mix.sources", "mix.places"


def buffer_sizes(program: Program, weights: Mapping[str, Weight], limits: BackendLimits) -> dict[str, int]:
    """Bytes of all that a pass writes beside the cache: buffers in whole tiles of rows, their quantized copies, and
    what attention and experts leave from launch to launch."""

    def rows(buffer: Buffer) -> int:
        return round_up(limits.max_outputs if buffer.per_output else limits.max_rows, ROW_UNIT)

    n_spans = round_up(limits.n_ctx, SPAN) // SPAN
    sizes = {b.name: rows(b) * float_stride(b.width) for b in program.buffers}
    for op in program.ops:
        if isinstance(op, MatMul) and takes_codes(weights, op.weight):
            sizes[op.x.name + ".q8"] = rows(op.x) * quantized_stride(op.x.width)
        if isinstance(op, Attention):
            state = 128 + 4 * op.layer.v_dim
            sizes["parts"] = max(sizes.get("parts", 0), SPLIT_ROWS * op.n_heads * n_spans * state)
        if isinstance(op, Experts | HeadMatMul):
            for name, n_bytes in scratch_sizes(op, weights, limits.max_rows).items():
                sizes[name] = max(sizes.get(name, 0), n_bytes)
        if isinstance(op, RopeTable):
            sizes[f"{op.out.name}.frequencies"] = 8 * len(op.frequencies)
    return sizes | dict.fromkeys(fusion.find_unstored(program, weights), 0)


def scratch_sizes(op: Experts | HeadMatMul, weights: Mapping[str, Weight], max_rows: int) -> dict[str, int]:
    """Bytes of each piece of scratch; products read whole tiles of rows."""
    max_rows = round_up(max_rows, ROW_UNIT)
    if isinstance(op, HeadMatMul):
        n_pairs, n_matrices = max_rows * op.n_heads + ROW_UNIT, op.n_heads
        width, hidden, out = op.x.width // op.n_heads, 0, op.out.width // op.n_heads
    else:
        n_pairs, n_matrices = max_rows * (op.route.width // 2) + ROW_UNIT, op.n_experts
        width, hidden, out = op.x.width, op.n_ff, op.out.width
    sizes = {
        ORDER: Order.STARTS + 4 * (n_matrices + 1),
        ACTIVE: 4 * n_matrices,
        SOURCES: 4 * n_pairs,
        PLACES: 4 * n_pairs,
        "mix.in": n_pairs * float_stride(width),
        "mix.out": n_pairs * float_stride(out),
    }
    if width % BLOCK == 0:
        sizes["mix.in.q8"] = n_pairs * quantized_stride(width)
    if isinstance(op, Experts):
        sizes |= {name: n_pairs * float_stride(hidden) for name in ("mix.gate", "mix.up", "mix.hidden")}
        if hidden % BLOCK == 0:
            sizes["mix.hidden.q8"] = n_pairs * quantized_stride(hidden)
        if takes_codes(weights, op.gate or op.up) or takes_codes(weights, op.up):
            sizes[f"{op.x.name}.q8"] = max_rows * quantized_stride(width)
    return sizes
