"""Which layers of a model lie on which device: decided from sizes alone, touching nothing.

A model is pieces, what lies between neighbouring borders where its program may be cut. Cards take the last pieces, in
their order, since the last holds the output matrix, the largest of all; the processor takes what is left before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def place_pieces(sizes: Sequence[int], rooms: Sequence[int]) -> tuple[int, ...] | None:
    """Where each card's pieces begin, so that every card takes at least one and the fullest is as empty as can be;
    `sizes` are of the pieces the cards are to hold, `rooms` of the cards, in bytes. None where they do not fit."""
    n, n_cards = len(sizes), len(rooms)
    if n < n_cards or min(rooms, default=0) <= 0:
        return None
    ends = [0, *accumulate(sizes)]
    # best[d][i]: of cards d, d + 1, ... that hold pieces i, i + 1, ...: how full the fullest is, and where d + 1 begins
    best: list[dict[int, tuple[float, int]]] = [{} for _ in rooms]
    for d in reversed(range(n_cards)):
        for i in range(n):
            if d == n_cards - 1:
                best[d][i] = ((ends[n] - ends[i]) / rooms[d], n)
                continue
            options = [
                (max((ends[j] - ends[i]) / rooms[d], best[d + 1][j][0]), j) for j in range(i + 1, n) if j in best[d + 1]
            ]
            if options:
                best[d][i] = min(options)
    if 0 not in best[0] or best[0][0][0] > 1:
        return None
    starts = [0]
    for d in range(n_cards - 1):
        starts.append(best[d][starts[-1]][1])
    return tuple(starts)


def place_most(sizes: Sequence[int], rooms: Sequence[int]) -> tuple[int, ...] | None:
    """As `place_pieces`, of as many of the last pieces as fit; starts count all pieces. None where not even the last
    ones fit."""
    for n_left in range(len(sizes)):
        starts = place_pieces(sizes[n_left:], rooms)
        if starts is not None:
            return tuple(n_left + start for start in starts)
    return None
