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
    shares = _share_out(sizes, rooms)
    return _starts(shares, 0) if _fits(shares, 0) else None


def place_most(sizes: Sequence[int], rooms: Sequence[int]) -> tuple[int, ...] | None:
    """As `place_pieces`, of as many of the last pieces as fit; starts count all pieces. None where not even the last
    ones fit."""
    shares = _share_out(sizes, rooms)
    first = next((i for i in range(len(sizes)) if _fits(shares, i)), None)
    return None if first is None else _starts(shares, first)


#: For card d and piece i: of cards d, d + 1, ... that hold pieces i, i + 1, ..., how full the fullest is, and where
#: card d + 1 begins. What is not possible is left out.
_Shares = list[dict[int, tuple[float, int]]]


def _share_out(sizes: Sequence[int], rooms: Sequence[int]) -> _Shares:
    """The best way for each card and piece, from the last card on."""
    n, n_cards, ends = len(sizes), len(rooms), [0, *accumulate(sizes)]
    shares: _Shares = [{} for _ in rooms]
    for d in reversed(range(n_cards)):
        if rooms[d] <= 0:
            return shares
        for i in range(n):
            if d == n_cards - 1:
                shares[d][i] = ((ends[n] - ends[i]) / rooms[d], n)
                continue
            following = shares[d + 1]
            options = [
                (max((ends[j] - ends[i]) / rooms[d], following[j][0]), j) for j in range(i + 1, n) if j in following
            ]
            if options:
                shares[d][i] = min(options)
    return shares


def _fits(shares: _Shares, first: int) -> bool:
    return bool(shares) and first in shares[0] and shares[0][first][0] <= 1


def _starts(shares: _Shares, first: int) -> tuple[int, ...]:
    starts = [first]
    for share in shares[:-1]:
        starts.append(share[starts[-1]][1])
    return tuple(starts)
