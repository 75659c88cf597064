"""Elementary functions of a float, from fused multiply-adds and divisions only, so that every card gives the same bits.

The formulas are those of `cpu/elementary.py`: Cody-Waite reduction and a polynomial for the exponential (relative error
under 2e-7), the rest made from it.
"""

from __future__ import annotations

import math

import numpy as np
from numba import cuda

from phobos.kernels.cuda.code.intrinsics import device, round_to_int, word_as_float

_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(-0.693359375)
_LN2_LOW = np.float32(2.12194440e-4)
_LOWEST = np.float32(-87.0)
_HIGHEST = np.float32(88.0)
_C2, _C3, _C4, _C5, _C6 = (np.float32(c) for c in (0.5, 0.16666667, 0.041665795, 0.0083334519, 0.0013981999))
_ONE, _HALF, _TWO = np.float32(1), np.float32(0.5), np.float32(2)
_SMALL = np.float32(0.3)


@device
def exponential(x):
    """e ** x; 0 below -87."""
    clamped = min(max(x, _LOWEST), _HIGHEST)
    n = round_to_int(clamped * _LOG2_E)
    steps = np.float32(n)
    r = cuda.fma(steps, _LN2_LOW, cuda.fma(steps, _LN2_HIGH, clamped))
    p = cuda.fma(_C6, r, _C5)
    p = cuda.fma(p, r, _C4)
    p = cuda.fma(p, r, _C3)
    p = cuda.fma(p, r, _C2)
    p = cuda.fma(p, r, _ONE)
    p = cuda.fma(p, r, _ONE)
    power = word_as_float(np.uint32((n + 127) << 23))
    return np.float32(0) if x < _LOWEST else p * power


@device
def hyperbolic_tangent(x):
    """tanh x: near zero by its odd series, so that small values keep their bits; else by the exponential."""
    size = abs(x)
    square = x * x
    series = cuda.fma(square, np.float32(-0.053968254), np.float32(0.13333333))
    series = cuda.fma(square, series, np.float32(-0.33333333))
    small = cuda.fma(x * square, series, x)
    e = exponential(-_TWO * size)
    large = (_ONE - e) / (_ONE + e)
    signed = -large if x < np.float32(0) else large
    return small if size < _SMALL else signed


@device
def sigmoid(x):
    """1 / (1 + e ** -x)."""
    return _ONE / (_ONE + exponential(-x))


@device
def silu(x):
    """x / (1 + e ** -x)."""
    return x / (_ONE + exponential(-x))


@device
def gelu_tanh(x):
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x³)))."""
    inner = np.float32(0.7978845608) * cuda.fma(x * x * x, np.float32(0.044715), x)
    return _HALF * x * (_ONE + hyperbolic_tangent(inner))


@device
def gelu(x):
    """x Φ(x) with erf by Abramowitz and Stegun 7.1.26 (absolute error under 1.5e-7)."""
    z = abs(x) * np.float32(0.70710678)
    t = _ONE / cuda.fma(np.float32(0.3275911), z, _ONE)
    p = cuda.fma(np.float32(1.061405429), t, np.float32(-1.453152027))
    p = cuda.fma(p, t, np.float32(1.421413741))
    p = cuda.fma(p, t, np.float32(-0.284496736))
    p = cuda.fma(p, t, np.float32(0.254829592))
    erf = _ONE - p * t * exponential(-(z * z))
    signed = -erf if x < np.float32(0) else erf
    return _HALF * x * (_ONE + signed)


@device
def relu(x):
    """max(x, 0)."""
    return max(x, np.float32(0))


@device
def relu_squared(x):
    """max(x, 0)²."""
    positive = max(x, np.float32(0))
    return positive * positive


@device
def identity(x):
    """x."""
    return x


ACTIVATIONS = {"silu": silu, "gelu_tanh": gelu_tanh, "gelu": gelu, "relu": relu, "relu_squared": relu_squared}
GATES = {**ACTIVATIONS, "sigmoid": sigmoid, "identity": identity}

# pi / 2 in three parts, the first two short enough that a million times them is exact
_HALF_PI_1, _HALF_PI_2, _HALF_PI_3 = 1.57079632673412561417, 6.07710050630396597660e-11, 2.02226624879595063154e-21


@device
def cosine_sine(angle):
    """(cos, sin) of a float64 below a million, within 1e-15: reduced to an eighth turn, then Taylor's series."""
    k = math.floor(angle * 0.63661977236758134308 + 0.5)
    r = ((angle - k * _HALF_PI_1) - k * _HALF_PI_2) - k * _HALF_PI_3
    z = r * r
    sine = -1.0 / 1307674368000.0
    for n in (6227020800.0, -39916800.0, 362880.0, -5040.0, 120.0, -6.0, 1.0):
        sine = sine * z + 1.0 / n
    sine *= r
    cosine = 1.0 / 20922789888000.0
    for n in (-87178291200.0, 479001600.0, -3628800.0, 40320.0, -720.0, 24.0, -2.0, 1.0):
        cosine = cosine * z + 1.0 / n
    quadrant = np.int64(k) & 3
    if quadrant == 0:
        return cosine, sine
    if quadrant == 1:
        return -sine, cosine
    if quadrant == 2:
        return -cosine, -sine
    return sine, -cosine
