"""Elementary functions of 16 floats, from fused multiply-adds only, so that they have one bit pattern everywhere.

Exponential: Cody-Waite reduction by ln 2 in two parts and a degree-6 minimax-like polynomial (relative error under
2e-7 over the reduced range). The rest are made from it.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from phobos.kernels.cpu.simd import (
    absolute,
    as_float,
    fma,
    maximum,
    minimum,
    round_to_int,
    shift_left,
    splat,
    splat_i32,
    to_float,
    where_below,
    zeros,
)

_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(-0.693359375)
_LN2_LOW = np.float32(2.12194440e-4)
_LOWEST = np.float32(-87.0)
_HIGHEST = np.float32(88.0)
_C2, _C3, _C4, _C5, _C6 = (np.float32(c) for c in (0.5, 0.16666667, 0.041665795, 0.0083334519, 0.0013981999))
_ONE = np.float32(1.0)


@njit
def exponential(x):
    """e ** x; 0 below -87."""
    clamped = minimum(maximum(x, splat(_LOWEST)), splat(_HIGHEST))
    n = round_to_int(clamped * splat(_LOG2_E))
    steps = to_float(n)
    r = fma(steps, splat(_LN2_LOW), fma(steps, splat(_LN2_HIGH), clamped))
    p = fma(splat(_C6), r, splat(_C5))
    p = fma(p, r, splat(_C4))
    p = fma(p, r, splat(_C3))
    p = fma(p, r, splat(_C2))
    p = fma(p, r, splat(_ONE))
    p = fma(p, r, splat(_ONE))
    power = as_float(shift_left(n + splat_i32(np.int32(127)), np.int32(23)))
    return where_below(x, splat(_LOWEST), zeros(), p * power)


@njit
def hyperbolic_tangent(x):
    """tanh x: near zero by its odd series, so that small values keep their bits; else by the exponential."""
    size = absolute(x)
    square = x * x
    series = fma(square, splat(np.float32(-0.053968254)), splat(np.float32(0.13333333)))
    series = fma(square, series, splat(np.float32(-0.33333333)))
    small = fma(x * square, series, x)
    e = exponential(splat(np.float32(-2.0)) * size)
    large = (splat(_ONE) - e) / (splat(_ONE) + e)
    signed = where_below(x, zeros(), zeros() - large, large)
    return where_below(size, splat(np.float32(0.3)), small, signed)


@njit
def silu(x):
    """x / (1 + e ** -x)."""
    return x / (splat(_ONE) + exponential(zeros() - x))


@njit
def gelu_tanh(x):
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x³)))."""
    inner = splat(np.float32(0.7978845608)) * fma(x * x * x, splat(np.float32(0.044715)), x)
    return splat(np.float32(0.5)) * x * (splat(_ONE) + hyperbolic_tangent(inner))


@njit
def gelu(x):
    """x Φ(x) with erf by Abramowitz and Stegun 7.1.26 (absolute error under 1.5e-7)."""
    z = absolute(x) * splat(np.float32(0.70710678))
    t = splat(_ONE) / fma(splat(np.float32(0.3275911)), z, splat(_ONE))
    p = fma(splat(np.float32(1.061405429)), t, splat(np.float32(-1.453152027)))
    p = fma(p, t, splat(np.float32(1.421413741)))
    p = fma(p, t, splat(np.float32(-0.284496736)))
    p = fma(p, t, splat(np.float32(0.254829592)))
    erf = splat(_ONE) - p * t * exponential(zeros() - z * z)
    signed = where_below(x, zeros(), zeros() - erf, erf)
    return splat(np.float32(0.5)) * x * (splat(_ONE) + signed)


@njit
def relu(x):
    """max(x, 0)."""
    return maximum(x, zeros())


@njit
def relu_squared(x):
    """max(x, 0)²."""
    positive = maximum(x, zeros())
    return positive * positive
