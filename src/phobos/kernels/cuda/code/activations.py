"""Activations, gated and plain, which can write a quantized record as well as or instead of floats.

A thread a value. Grid: x along a row, y by row. `codes`, `out`: 0 for none; `count_at` is the address of a number of
rows, of which each is `parts` here.
"""

from __future__ import annotations

import numpy as np

from phobos.kernels.cuda.code.elementary import ACTIVATIONS, GATES, sigmoid
from phobos.kernels.cuda.code.intrinsics import device, load_f32, load_i32, place_of_thread
from phobos.kernels.cuda.code.norm import put_value
from phobos.kernels.cuda.declaration import Int, kernel
from phobos.kernels.cuda.layout import THREADS


def _make_gate(activation):
    @device
    def gate_of(gate, up):
        return activation(gate) * up

    return gate_of


@device
def _swiglu_oai(gate, up):
    """g * sigmoid(1.702 g) * (u + 1), with g at most 7 and u within 7 of 0."""
    seven = np.float32(7)
    g = min(gate, seven)
    u = max(min(up, seven), -seven)
    return g * sigmoid(np.float32(1.702) * g) * (u + np.float32(1))


ALL_GATES = {**{name: _make_gate(activation) for name, activation in GATES.items()}, "swiglu_oai": _swiglu_oai}


def _make_glu(name, gate_of):
    def glu(out: Int, codes: Int, gate: Int, up: Int, count_at: Int, parts: Int, width: Int):
        row, i = place_of_thread()
        if row < load_i32(count_at) * parts and i < width:
            at = 4 * (width * row + i)
            put_value(out, codes, width, row, i, gate_of(load_f32(gate + at), load_f32(up + at)))

    glu.__name__ = f"glu_{name}"
    return kernel(THREADS)(glu)


def _make_activate(name, activation):
    def activate(out: Int, codes: Int, x: Int, count_at: Int, parts: Int, width: Int):
        row, i = place_of_thread()
        if row < load_i32(count_at) * parts and i < width:
            put_value(out, codes, width, row, i, activation(load_f32(x + 4 * (width * row + i))))

    activate.__name__ = f"activate_{name}"
    return kernel(THREADS)(activate)


for _name, _gate in ALL_GATES.items():
    globals()[f"glu_{_name}"] = _make_glu(_name, _gate)
for _name, _activation in ACTIVATIONS.items():
    globals()[f"activate_{_name}"] = _make_activate(_name, _activation)
