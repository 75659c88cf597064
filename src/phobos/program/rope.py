"""Rotary position frequencies from a file's metadata: plain, linear, YaRN, and per-dimension factors.

Source: Su et al. 2021 (RoFormer); Peng et al. 2023 (YaRN); the factors tensors `rope_freqs.weight` (Llama 3) and
`rope_factors_long/short.weight` (LongRoPE, Ding et al. 2024) as GGUF files carry them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from phobos.errors import UnsupportedModelError
from phobos.gguf.quants import TABLE
from phobos.gguf.reader import GGUF

BETA_FAST, BETA_SLOW = 32.0, 1.0
SMALLEST_FACTOR, LARGEST_FACTOR = 1e-6, 1e9  # frequencies are divided by


@dataclass(frozen=True)
class Rope:
    """Frequencies [n_rot / 2] in radians a position, and the magnitude both cosine and sine are multiplied by."""

    frequencies: tuple[float, ...]
    magnitude: float


def read_rope(gguf: GGUF, n_rot: int, *, default_theta: float = 10000.0) -> Rope:
    """The rope of `gguf`'s architecture over `n_rot` dimensions, with the scaling its metadata names."""
    arch = gguf.architecture
    theta = gguf.get_float(f"{arch}.rope.freq_base", default_theta)
    plain = plain_frequencies(n_rot, theta)
    kind = gguf.get_str(f"{arch}.rope.scaling.type", "none")
    # Files made before the scaling keys carry one linear factor.
    linear = gguf.get_float(f"{arch}.rope.scale_linear", 0.0)
    factor = gguf.get_float(f"{arch}.rope.scaling.factor", linear or 1.0)
    if "rope_freqs.weight" in gguf.tensors:
        plain = plain / _factors(gguf, "rope_freqs.weight", n_rot)
    if "rope_factors_long.weight" in gguf.tensors:
        return _long_rope(gguf, plain, n_rot, factor)
    match kind:
        case "none":
            scaled = plain / factor if linear > 0 else plain
            return Rope(tuple(float(f) for f in scaled), 1.0)
        case "linear":
            return Rope(tuple(float(f) for f in plain / factor), 1.0)
        case "yarn":
            return _yarn(gguf, plain, n_rot, theta, factor)
        case _:
            raise UnsupportedModelError(
                f"the file asks for rope scaling {kind!r}; none, linear, yarn and factor tensors are supported"
            )


def plain_frequencies(n_rot: int, theta: float) -> np.ndarray:
    """theta ** (-2i / n_rot), float64 [n_rot / 2]."""
    return np.asarray(theta ** (-np.arange(0, n_rot, 2, dtype=np.float64) / n_rot))


def _factors(gguf: GGUF, name: str, n_rot: int) -> np.ndarray:
    info = gguf.tensors[name]
    if info.shape != (n_rot // 2,):
        raise UnsupportedModelError(f"tensor {name} has shape {info.shape} where {(n_rot // 2,)} is expected")
    with np.errstate(all="ignore"):  # what is no number is refused below
        factors = TABLE[info.type].dequantize(gguf.data(name)).astype(np.float64)
    if not ((factors >= SMALLEST_FACTOR) & (factors <= LARGEST_FACTOR)).all():
        raise UnsupportedModelError(
            f"tensor {name} holds values outside {SMALLEST_FACTOR:g} to {LARGEST_FACTOR:g}: fetch a sound copy of the "
            "model"
        )
    return factors


def _long_rope(gguf: GGUF, plain: np.ndarray, n_rot: int, factor: float) -> Rope:
    """The long factors are used throughout, as the context is sized for the long form."""
    arch = gguf.architecture
    factors = _factors(gguf, "rope_factors_long.weight", n_rot)
    n_ctx = gguf.get_int(f"{arch}.context_length")
    n_original = gguf.get_int(f"{arch}.rope.scaling.original_context_length", n_ctx)
    stretch = max(n_ctx / n_original, factor)
    magnitude = 1.0 if stretch <= 1 else math.sqrt(1 + math.log(stretch) / math.log(n_original))
    magnitude = gguf.get_float(f"{arch}.rope.scaling.attn_factor", magnitude)
    return Rope(tuple(float(f) for f in plain / factors), magnitude)


def _yarn(gguf: GGUF, plain: np.ndarray, n_rot: int, theta: float, factor: float) -> Rope:
    """High frequencies stay, low ones are divided by `factor`, a ramp between."""
    arch = gguf.architecture
    n_original = gguf.get_int(f"{arch}.rope.scaling.original_context_length", gguf.get_int(f"{arch}.context_length"))
    beta_fast = gguf.get_float(f"{arch}.rope.scaling.yarn_beta_fast", BETA_FAST)
    beta_slow = gguf.get_float(f"{arch}.rope.scaling.yarn_beta_slow", BETA_SLOW)

    def dimension_of(n_turns: float) -> float:
        return n_rot * math.log(n_original / (n_turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(0, math.floor(dimension_of(beta_fast)))
    high = min(n_rot - 1, math.ceil(dimension_of(beta_slow)))
    ramp = np.clip((np.arange(n_rot // 2) - low) / max(0.001, high - low), 0, 1)
    frequencies = plain * (1 - ramp) + plain / factor * ramp
    multiplier = gguf.get_float(f"{arch}.rope.scaling.yarn_log_multiplier", 0.0)
    growth = (1 + 0.1 * math.log(factor)) / (1 + 0.1 * multiplier * math.log(factor))
    magnitude = gguf.get_float(f"{arch}.rope.scaling.attn_factor", 1.0) * growth
    return Rope(tuple(float(f) for f in frequencies), magnitude)
