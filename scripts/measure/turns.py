"""What differences and ratios of two things measured in turns come to: their median, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median

_NORMAL_95 = 1.96


def bounds_of_median(values: Iterable[float]) -> tuple[float, float, float]:
    """The median and its interval of 95%, from order statistics; of few values, the least and the greatest."""
    ordered = sorted(values)
    n = len(ordered)
    rank = max(1, math.floor(n / 2 - _NORMAL_95 * math.sqrt(n) / 2))
    return median(ordered), ordered[rank - 1], ordered[n - rank]
