"""Activations, gated and plain, also fused with the quantization of their results.

Threads take whole rows, or with fewer rows than threads a share of each.
"""

from __future__ import annotations

import numpy as np

from phobos.kernels.cpu.code.access import load_i64, vload, vstore
from phobos.kernels.cpu.code.elementary import gelu, gelu_tanh, identity, relu, relu_squared, sigmoid, silu
from phobos.kernels.cpu.code.norm import is_mine, quantize_block, share_of
from phobos.kernels.cpu.code.simd import inlined, maximum, minimum, splat, zeros
from phobos.kernels.cpu.declaration import Int, Kernel, kernel
from phobos.kernels.cpu.layout import BLOCK


def _make_gate(activation):
    @inlined
    def gate_of(gate, up):
        return activation(gate) * up

    return gate_of


@inlined
def _swiglu_oai(gate, up):
    """g * sigmoid(1.702 g) * (u + 1), with g at most 7 and u within 7 of 0: of gpt-oss."""
    limit, one = splat(np.float32(7)), splat(np.float32(1))
    g = minimum(gate, limit)
    u = maximum(minimum(up, limit), zeros() - limit)
    return g * sigmoid(g * splat(np.float32(1.702))) * (u + one)


def _make_glu(name: str, gate_of) -> tuple[Kernel, Kernel]:
    def glu(out: Int, gate: Int, up: Int, n_rows_at: Int, width: Int, thread, n_threads):
        n_rows = load_i64(n_rows_at)
        n_vectors = (width + 15) // 16
        total = n_rows * n_vectors
        for i in range(total * thread // n_threads, total * (thread + 1) // n_threads):
            vstore(out + 64 * i, gate_of(vload(gate + 64 * i), vload(up + 64 * i)))

    def glu_quantize(out: Int, gate: Int, up: Int, n_rows_at: Int, width: Int, thread, n_threads):
        n_rows = load_i64(n_rows_at)
        stride = (width + 16 * (width // BLOCK) + 63) // 64 * 64
        first, last = share_of(width // BLOCK, n_rows, thread, n_threads)
        for row in range(n_rows):
            if is_mine(row, n_rows, thread, n_threads):
                at = 4 * width * row
                for b in range(first, last):
                    g, u = gate + at + 128 * b, up + at + 128 * b
                    low = gate_of(vload(g), vload(u))
                    high = gate_of(vload(g + 64), vload(u + 64))
                    quantize_block(out + stride * row, width, b, low, high)

    glu.__name__ = f"glu_{name}"
    glu_quantize.__name__ = f"glu_{name}_quantize"
    return kernel(glu), kernel(glu_quantize)


def _make_activate(name: str, activation) -> tuple[Kernel, Kernel]:
    def activate(out: Int, x: Int, n_rows_at: Int, width: Int, thread, n_threads):
        total = load_i64(n_rows_at) * ((width + 15) // 16)
        for i in range(total * thread // n_threads, total * (thread + 1) // n_threads):
            vstore(out + 64 * i, activation(vload(x + 64 * i)))

    def activate_quantize(out: Int, x: Int, n_rows_at: Int, width: Int, thread, n_threads):
        n_rows = load_i64(n_rows_at)
        stride = (width + 16 * (width // BLOCK) + 63) // 64 * 64
        first, last = share_of(width // BLOCK, n_rows, thread, n_threads)
        for row in range(n_rows):
            if is_mine(row, n_rows, thread, n_threads):
                for b in range(first, last):
                    at = x + 4 * width * row + 128 * b
                    low, high = activation(vload(at)), activation(vload(at + 64))
                    quantize_block(out + stride * row, width, b, low, high)

    activate.__name__ = f"activate_{name}"
    activate_quantize.__name__ = f"activate_{name}_quantize"
    return kernel(activate), kernel(activate_quantize)


glu_silu, glu_silu_quantize = _make_glu("silu", _make_gate(silu))
glu_gelu_tanh, glu_gelu_tanh_quantize = _make_glu("gelu_tanh", _make_gate(gelu_tanh))
glu_gelu, glu_gelu_quantize = _make_glu("gelu", _make_gate(gelu))
glu_relu, glu_relu_quantize = _make_glu("relu", _make_gate(relu))
glu_relu_squared, glu_relu_squared_quantize = _make_glu("relu_squared", _make_gate(relu_squared))
glu_sigmoid, glu_sigmoid_quantize = _make_glu("sigmoid", _make_gate(sigmoid))
glu_identity, glu_identity_quantize = _make_glu("identity", _make_gate(identity))
glu_swiglu_oai, glu_swiglu_oai_quantize = _make_glu("swiglu_oai", _swiglu_oai)
activate_silu, activate_silu_quantize = _make_activate("silu", silu)
activate_gelu_tanh, activate_gelu_tanh_quantize = _make_activate("gelu_tanh", gelu_tanh)
activate_gelu, activate_gelu_quantize = _make_activate("gelu", gelu)
activate_relu, activate_relu_quantize = _make_activate("relu", relu)
activate_relu_squared, activate_relu_squared_quantize = _make_activate("relu_squared", relu_squared)
