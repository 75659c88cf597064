"""`phobos-cli bench --types`: products of tensor types beside the machine's own limits, no model needed.

For each type matrices of half a gigabyte meet one row of activations (GB of packed bytes a second, and 10⁹ weights a
second) and a part of them 8 and 512 rows (10⁹ operations a second, a multiply and an add counting two). Types and
probes of the limits run in turn; of each the fastest turn counts, since other programs only ever make one slower.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from phobos.errors import UsageError
from phobos.gguf.quants import TABLE, GGMLType
from phobos.host import machine
from phobos.kernels.cpu.features import CPU
from phobos.kernels.cpu.limits import MachineLimits, Prober
from phobos.kernels.cpu.packed_types import PACKED
from phobos.kernels.cpu.products import N_IN, Product, ProductBench
from phobos.kernels.cpu.read_ahead import Choice, choose
from phobos.kernels.workers import usable_threads

REGION_BYTES = 512 << 20  # more than caches hold
MATRIX_BYTES = 8 << 20  # of one of the matrices, as large as those of models
PART_BYTES = 8 << 20  # of the region, that several rows meet
MANY = (8, 512)  # rows
OUT_BYTES = 96 << 20


@dataclass(frozen=True)
class TypeResult:
    """A type's fastest turns: GB/s and their share of the limit, 10⁹ weights/s, 10⁹ operations/s of 8 and 512 rows."""

    type: str
    file_bits: float
    packed_bits: float
    gbs: float
    share: float
    weights_gps: float
    gops: tuple[float, ...]
    ahead: str


def read_types(text: str) -> tuple[GGMLType, ...]:
    """Types named "Q4_K,Q6_K", or "all" of them."""
    if text == "all":
        return tuple(PACKED)
    known = {kind.name: kind for kind in PACKED}
    names = [name.strip().upper() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise UsageError(
            f"--types {text} names no tensor type that is computed with: use all, or some of {', '.join(known)}"
        )
    return tuple(known[name] for name in names)


def measure_types(
    kinds: Sequence[GGMLType],
    n_threads: int,
    repeats: int,
    *,
    many: Sequence[int],
    region_bytes: int,
) -> tuple[MachineLimits, list[TypeResult]]:
    """Measure in turn; see above. `region_bytes`, a multiple of `MATRIX_BYTES`, are taken twice."""
    choices = choose([PACKED[kind] for kind in kinds], n_threads)
    with (
        Prober(n_threads, region_bytes) as prober,
        ProductBench(n_threads, region_bytes, max(many, default=1), OUT_BYTES) as bench,
    ):
        products = {
            kind: [
                bench.prepare(PACKED[kind], 1, region_bytes, n_matrices=region_bytes // MATRIX_BYTES),
                *(bench.prepare(PACKED[kind], n_rows, PART_BYTES) for n_rows in many),
            ]
            for kind in kinds
        }
        best = {(kind, product.n_rows): float("inf") for kind in kinds for product in products[kind]}
        for repeat in range(repeats + 1):
            prober.probe()
            for kind in kinds:
                for product in products[kind]:
                    taken_s = bench.time(product, choices[PACKED[kind].name].ahead)
                    if repeat:
                        best[kind, product.n_rows] = min(best[kind, product.n_rows], taken_s)
        limits = prober.best
    results = []
    for kind, (one, *several) in products.items():
        gops = tuple(p.n_operations / best[kind, p.n_rows] / 1e9 for p in several)
        results.append(_result(kind, one, best[kind, 1], limits, gops, choices[PACKED[kind].name]))
    return limits, results


def _result(
    kind: GGMLType, one: Product, taken_s: float, limits: MachineLimits, gops: tuple[float, ...], choice: Choice
) -> TypeResult:
    quant, n_weights, gbs = TABLE[kind], one.n_out * N_IN, one.n_bytes / taken_s / 1e9
    return TypeResult(
        kind.name,
        8 * quant.n_bytes / quant.block,
        8 * one.n_bytes / n_weights,
        gbs,
        gbs / limits.read_gbs,
        n_weights / taken_s / 1e9,
        gops,
        str(choice.ahead),
    )


def run_types(values: dict[str, Any]) -> int:
    """The command: measure and print."""
    n_threads = values["threads"] or usable_threads()
    limits, results = measure_types(
        read_types(values["types"]), n_threads, values["repetitions"], many=MANY, region_bytes=REGION_BYTES
    )
    if values["as_json"]:
        document = {
            "processor": machine.processor_name(),
            "path": CPU.name,
            "threads": n_threads,
            "limits": asdict(limits),
            "types": [asdict(result) for result in results],
        }
        print(json.dumps(document, indent=2))
        return 0
    able = f"reads {limits.read_gbs:.1f} GB/s, multiplies {limits.int8_gops:.0f} Gop/s (int8)"
    print(f"{machine.processor_name()}, {CPU.name}, {n_threads} threads; {able}\n")
    several = " | ".join(f"{n} rows, Gop/s" for n in MANY)
    print(f"| type | bits in the file | packed | GB/s | of limit | 10⁹ weights/s | {several} | reads ahead |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for r in results:
        cells = [r.type, f"{r.file_bits:.2f}", f"{r.packed_bits:.2f}", f"{r.gbs:.1f}", f"{r.share:.0%}"]
        cells += [f"{r.weights_gps:.1f}", *(f"{gops:.0f}" for gops in r.gops), r.ahead]
        print(f"| {' | '.join(cells)} |")
    return 0
