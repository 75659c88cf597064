"""Elementary functions of 16 floats, from fused multiply-adds only, so that they have one bit pattern everywhere.

Exponential: Cody-Waite reduction by ln 2 in two parts and a degree-6 minimax-like polynomial (relative error under
2e-7 over the reduced range). The rest are made from it.
"""

from __future__ import annotations

import numpy as np

from phobos.kernels.cpu.code.simd import (
    absolute,
    as_float,
    fma,
    inlined,
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


@inlined
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


@inlined
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


# pi / 2 in three parts, the first two short enough that a million times them is exact
_HALF_PI = (1.57079632673412561417, 6.07710050630396597660e-11, 2.02226624879595063154e-21)


@inlined
def cosine_sine(angle):
    """(cos, sin) of a float64 below a million, within 1e-15: reduced to an eighth turn, then Taylor's series."""
    k = np.floor(angle * 0.63661977236758134308 + 0.5)
    r = ((angle - k * _HALF_PI[0]) - k * _HALF_PI[1]) - k * _HALF_PI[2]
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


@inlined
def silu(x):
    """x / (1 + e ** -x)."""
    return x / (splat(_ONE) + exponential(zeros() - x))


@inlined
def gelu_tanh(x):
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x³)))."""
    inner = splat(np.float32(0.7978845608)) * fma(x * x * x, splat(np.float32(0.044715)), x)
    return splat(np.float32(0.5)) * x * (splat(_ONE) + hyperbolic_tangent(inner))


@inlined
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


@inlined
def relu(x):
    """max(x, 0)."""
    return maximum(x, zeros())


@inlined
def relu_squared(x):
    """max(x, 0)²."""
    positive = maximum(x, zeros())
    return positive * positive


@inlined
def sigmoid(x):
    """1 / (1 + e ** -x)."""
    return splat(_ONE) / (splat(_ONE) + exponential(zeros() - x))


@inlined
def identity(x):
    """x."""
    return x


@inlined
def softplus(x):
    """ln(1 + e ** x): the larger of x and 0, plus ln(1 + u) with u = e ** -|x| by the series of the inverse hyperbolic
    tangent of u / (2 + u), at most 1/3 (relative error under 1e-7)."""
    u = exponential(zeros() - absolute(x))
    s = u / (splat(np.float32(2)) + u)
    z = s * s
    p = splat(np.float32(2 / 15))
    p = fma(p, z, splat(np.float32(2 / 13)))
    p = fma(p, z, splat(np.float32(2 / 11)))
    p = fma(p, z, splat(np.float32(2 / 9)))
    p = fma(p, z, splat(np.float32(2 / 7)))
    p = fma(p, z, splat(np.float32(2 / 5)))
    p = fma(p, z, splat(np.float32(2 / 3)))
    p = fma(p, z, splat(np.float32(2)))
    return maximum(x, zeros()) + s * p
