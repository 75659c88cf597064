"""Which ops of a program run as one launch, and which buffers then need no memory.

A gated product: gate = x @ W, up = x @ V, out = activation(gate) * up, where both weights are of one packed type,
nothing else is done to gate and up, and `out` is read only as the quantized input of products.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from phobos.kernels.cpu.layout import BLOCK
from phobos.kernels.cpu.weights import Weight, takes_codes
from phobos.kernels.float_readers import find_float_readers, input_matrices
from phobos.program.steps import Activate, Experts, Glu, LayerNorm, MatMul, Program, RmsNorm, reads_of, writes_of


@dataclass(frozen=True)
class GatedProduct:
    """Three neighbouring ops that run as one launch."""

    gate: MatMul
    up: MatMul
    glu: Glu


def find_coded(program: Program, weights: Mapping[str, Weight]) -> frozenset[str]:
    """Buffers of which only the quantized copy is read, so that their floats need not be stored."""
    floats = find_float_readers(program, lambda name: takes_codes(weights, name))
    inputs = {
        op.x
        for op in program.ops
        if (isinstance(op, MatMul) and takes_codes(weights, op.weight))
        or (isinstance(op, Experts) and all(takes_codes(weights, name) for name in input_matrices(op)))
    }
    return frozenset(x.name for x in inputs if x.name not in floats and x.width % BLOCK == 0)


def find_gated_products(program: Program, weights: Mapping[str, Weight]) -> dict[int, GatedProduct]:
    """Gated products, by the place of their first op."""
    coded = find_coded(program, weights)
    found = {}
    for i, (gate, up, glu) in enumerate(zip(program.ops, program.ops[1:], program.ops[2:], strict=False)):
        if isinstance(gate, MatMul) and isinstance(up, MatMul) and isinstance(glu, Glu):
            product = GatedProduct(gate, up, glu)
            if glu.out.name in coded and _is_one_launch(product, weights):
                found[i] = product
    others = {
        name
        for i, op in enumerate(program.ops)
        if not isinstance(op, Glu) or i - 2 not in found
        for name in reads_of(op)
    }
    return {i: product for i, product in found.items() if not {product.gate.out.name, product.up.out.name} & others}


def _is_one_launch(product: GatedProduct, weights: Mapping[str, Weight]) -> bool:
    gate, up, glu = product.gate, product.up, product.glu
    return (
        (glu.gate, glu.up, up.x) == (gate.out, up.out, gate.x)
        and takes_codes(weights, gate.weight)
        and weights[gate.weight].kind == weights[up.weight].kind
        and all(op.bias is None and op.residual is None and op.scale == 1.0 for op in (gate, up))
    )


def find_unstored(program: Program, weights: Mapping[str, Weight]) -> frozenset[str]:
    """Buffers whose floats are never written: gates and ups within one launch, and what all that makes it quantizes at
    once and only products read."""
    products = find_gated_products(program, weights)
    inside = {name for product in products.values() for name in (product.gate.out.name, product.up.out.name)}
    stored: set[str] = set()
    for i, op in enumerate(program.ops):
        if i not in products and i - 1 not in products:
            inside -= writes_of(op)
        if not (isinstance(op, LayerNorm | Glu | Activate) or (isinstance(op, RmsNorm) and op.residual is None)):
            stored |= writes_of(op)
    return frozenset(inside | (find_coded(program, weights) - stored))
