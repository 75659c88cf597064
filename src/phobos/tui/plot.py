"""Plots and meters in braille and block characters; each function returns rows of styled text and keeps no state."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

from textual.content import Content

#: Braille cells by the dots filled from below in the left and the right column (0..4 each).
_CELLS = tuple(
    tuple(chr(0x2800 | left | right) for right in (0, 0x80, 0xA0, 0xB0, 0xB8)) for left in (0, 0x40, 0x44, 0x46, 0x47)
)
_EIGHTHS = " ▏▎▍▌▋▊▉█"

Part = tuple[str, str]


def nice_ceiling(value: float) -> float:
    """The next of 1, 1.5, 2, 3, 4, 5, 6, 8 times a power of ten: a scale that does not jump at every sample."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8) if step * power >= value * 0.999), 10 * power)


def area(
    values: Sequence[float], width: int, height: int, scale: float, ramp: Sequence[str], rail: str
) -> list[Content]:
    """The newest `2 * width` of `values` (oldest first) as a filled braille area, newest at the right.

    `scale` is the value at the top; `ramp` has a colour a row, bottom first; `rail` colours the line at zero.
    A value above zero shows at least one dot.
    """
    n_columns, n_dots = 2 * width, 4 * height
    shown = values[-n_columns:] if n_columns else ()
    dots = [0 if value <= 0 else max(1, min(n_dots, round(value / scale * n_dots))) for value in shown]
    return list(_area((0,) * (n_columns - len(dots)) + tuple(dots), height, tuple(ramp), rail))


@lru_cache(16)
def _area(dots: tuple[int, ...], height: int, ramp: tuple[str, ...], rail: str) -> tuple[Content, ...]:
    """Columns `dots` high as rows of cells, top row first."""
    pairs = list(zip(dots[::2], dots[1::2], strict=True))
    rows = []
    for level in range(height - 1, 0, -1):
        filled = [max(0, min(4, n - 4 * level)) for n in range(4 * height + 1)]
        text = "".join([_CELLS[filled[left]][filled[right]] for left, right in pairs])
        rows.append(Content.styled(text, ramp[level]))
    cells = [_CELLS[min(4, left)][min(4, right)] for left, right in pairs]
    rows.append(Content.assemble(*_base_row(cells, ramp[0], rail)))
    return tuple(rows)


def _base_row(cells: Sequence[str], colour: str, rail: str) -> list[Part]:
    """The lowest row: where nothing is filled, the rail."""
    return merge(("⣀", rail) if cell == _CELLS[0][0] else (cell, colour) for cell in cells)


#: Colours of a meter along its length: more look the same, and each is a piece of its own to draw.
METER_STEPS = 8


def meter(share: float, width: int, ramp: Sequence[str], rail: str) -> Content:
    """A bar `width` cells long filled to `share` (0..1), coloured along its length by `ramp`."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    if share > 0 and eighths == 0:
        eighths = 1
    n_full, rest = divmod(eighths, 8)
    half = rest >= 4 or (eighths > 0 and n_full == 0)
    return _meter(n_full, half and n_full < width, width, tuple(ramp), rail)


@lru_cache(64)
def _meter(n_full: int, half: bool, width: int, ramp: tuple[str, ...], rail: str) -> Content:
    """`n_full` filled cells, half a one where `half`, and the rail."""
    cells = [("━" if i < n_full else "╸", ramp[i * len(ramp) // max(1, width)]) for i in range(n_full + half)]
    return Content.assemble(*merge(cells), ("─" * (width - n_full - half), rail))


def merge(cells: Iterable[Part]) -> list[Part]:
    """Neighbours of the same colour as one piece."""
    parts: list[Part] = []
    for text, colour in cells:
        if parts and parts[-1][1] == colour:
            parts[-1] = (parts[-1][0] + text, colour)
        else:
            parts.append((text, colour))
    return parts


def blocks(share: float, width: int, colour: str, rail: str) -> Content:
    """A solid bar in eighths of a cell."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    n_full, rest = divmod(eighths, 8)
    bar = "█" * n_full + (_EIGHTHS[rest] if rest else "")
    return Content.assemble((bar, f"{colour} on {rail}"), (" " * (width - len(bar)), f"{colour} on {rail}"))


def stacked(parts: Sequence[tuple[float, str]], width: int, rail: str) -> Content:
    """Shares of a whole side by side: `parts` are (share 0..1, colour); a share above zero gets at least a cell."""
    cells = [0 if share <= 0 else max(1, round(share * width)) for share, _ in parts]
    while sum(cells) > width:
        cells[cells.index(max(cells))] -= 1
    drawn: list[Part] = [("▆" * n, colour) for n, (_, colour) in zip(cells, parts, strict=True)]
    return Content.assemble(*drawn, ("▂" * (width - sum(cells)), rail))
