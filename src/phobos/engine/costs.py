"""What a pass takes by the number of its rows, learnt from the passes themselves.

A pass reads the weights once whatever its rows, so several cost little more than one; how much more is a matter of
machine, model and kernels, and goes in steps. Sizes not seen yet are judged from those that were. A machine has other
work at times: a pass much slower than thought counts less, and what is known of a size that is seldom seen fades.
"""

from __future__ import annotations

SMOOTHING = 0.25  # weight of the newest measurement
FIRST = 0.5  # weight of a size's first one, against what was thought before
SLOPE = 0.15  # of a pass of one row, that each further row is thought to cost
SLOWEST = 2.0  # times as long as thought: a slower pass counts as one that took so long
FADING = 1 / 32  # of what is known of a size, with each pass of another


class PassCosts:
    """Seconds of a pass without prompt rows, by its rows. Owned by the engine thread."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def note(self, n_rows: int, seconds: float) -> None:
        """A pass of `n_rows` rows took `seconds`."""
        thought = self.estimate(n_rows)
        if thought is None:
            self._seconds[n_rows] = seconds
            return
        weight = SMOOTHING if n_rows in self._seconds else FIRST
        self._seconds[n_rows] = thought + weight * (min(seconds, SLOWEST * thought) - thought)
        least = min(self._seconds)
        for n in self._seconds:
            if n not in (n_rows, least):
                self._seconds[n] += FADING * (self._judge(n) - self._seconds[n])

    def estimate(self, n_rows: int) -> float | None:
        """Seconds of a pass of `n_rows` rows; None while nothing is known."""
        if not self._seconds or n_rows in self._seconds:
            return self._seconds.get(n_rows)
        return self._judge(n_rows)

    def _judge(self, n_rows: int) -> float:
        """Seconds of a pass, from the other sizes that were seen."""
        below = max((n for n in self._seconds if n < n_rows), default=None)
        above = min((n for n in self._seconds if n > n_rows), default=None)
        if below is not None and above is not None:
            low, high = self._seconds[below], self._seconds[above]
            return low + (high - low) * (n_rows - below) / (above - below)
        known = below if below is not None else above
        assert known is not None
        return self._seconds[known] * (1 + SLOPE * (n_rows - 1)) / (1 + SLOPE * (known - 1))
