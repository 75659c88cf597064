"""What embeddings are as numbers: their norms, and how a reply writes them."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
_LARGEST, _NONE = 0, -1  # what `embd_normalize` may be, beside a norm's power
_LARGEST_VALUE = 32760.0


def to_vector(values: Sequence[float]) -> Vector:
    """What the engine read, of as many digits as the norms take."""
    return np.array(values, np.float64)


def are_numbers(vectors: Sequence[Vector]) -> bool:
    """Whether all are finite."""
    return all(bool(np.isfinite(vector).all()) for vector in vectors)


def normalize(values: Vector, power: int) -> Vector:
    """The vector with a norm of 1: the Euclidean one (2), another power's, none (-1); or its largest value (0) at
    what 16 bits hold."""
    if power == _NONE:
        return values
    sizes = np.abs(values)
    if power == _LARGEST:
        norm = sizes.max() / _LARGEST_VALUE
    else:
        largest = sizes.max()  # taken out first, so that no power of it is too large
        norm = largest * np.sum((sizes / largest) ** power) ** (1.0 / power) if largest > 0 else 0.0
    return values / norm if norm > 0 else values


def to_list(values: Vector) -> list[float]:
    """Numbers of as many digits as a float32 has."""
    return [float(str(value)) for value in values.astype(np.float32)]


def to_base64(values: Vector) -> str:
    """Their float32 bytes, the lowest first."""
    return base64.b64encode(values.astype("<f4").tobytes()).decode()
