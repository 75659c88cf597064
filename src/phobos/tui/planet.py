"""The moon Phobos over Mars, in braille dots over tinted cells: the picture of the opening and the loading screen.

A `Sky` is drawn once for a size (stars and Mars); `frame` adds the moon and gives rows of text. Everything is
computed from the size alone, so a picture is the same each time. Units: dots, two across and four down in a cell;
a dot is about as wide as high. Light falls from the upper left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

from textual.content import Content

from phobos.tui.theme import Palette

Vector = tuple[float, float, float]
Shade = Callable[[float, float, float], float]

_LIGHT: Vector = (-0.62, -0.48, 0.62)
_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
#: Ordered thresholds of a 4x4 dither.
_BAYER = ((0, 8, 2, 10), (12, 4, 14, 6), (3, 11, 1, 9), (15, 7, 13, 5))
_N_TONES = 24
SPACE = "#0b0709"

_MARS = ((0.0, (18, 7, 8)), (0.3, (92, 30, 18)), (0.62, (196, 84, 44)), (0.86, (236, 148, 96)), (1.0, (255, 224, 196)))
_MOON = ((0.0, (20, 16, 17)), (0.35, (92, 78, 72)), (0.7, (176, 158, 146)), (1.0, (250, 238, 226)))
#: Craters of the moon: direction of the centre and radius on the unit sphere; the first is Stickney.
_CRATERS: tuple[tuple[Vector, float], ...] = (
    ((-0.55, -0.05, 0.83), 0.46),
    ((0.45, 0.55, 0.70), 0.26),
    ((0.25, -0.62, 0.74), 0.21),
    ((0.86, -0.10, 0.50), 0.24),
    ((-0.20, 0.80, 0.56), 0.18),
    ((-0.62, -0.66, 0.42), 0.17),
    ((0.10, 0.16, 0.98), 0.13),
    ((-0.90, 0.40, 0.16), 0.22),
)


@dataclass(frozen=True)
class Disc:
    """A body's place: centre and radius in dots."""

    x: float
    y: float
    radius: float


@dataclass(frozen=True)
class Cell:
    """One drawn cell: its braille dots and the tone (0.._N_TONES-1) of a body's colours; `body` "" is sky.

    `ground` is the colour behind a cell the body covers in part."""

    dots: int
    tone: int
    body: str
    ground: str = SPACE


_EMPTY = Cell(0, 0, "")


class Sky:
    """Stars and Mars for `width` by `height` cells, and the moon's path across them."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        w, h = 2.0 * width, 4.0 * height
        self.mars = Disc(0.70 * w, 0.66 * h, min(0.54 * h, 0.30 * w))
        self.moon_radius = max(6.0, min(28.0, 0.18 * h, 0.10 * w))
        self._cells: dict[tuple[int, int], Cell] = _stars(width, height)
        self._cells.update(_body(self.mars, self.mars.radius, _mars_shade, "mars", width, height))

    def moon(self, along: float) -> Disc:
        """The moon at `along` (0..1) of its path: out from behind the right limb, in front of Mars, towards us."""
        angle = math.radians(-38 + 196 * along)
        reach_x, reach_y = 1.55 * self.mars.radius, 0.42 * self.mars.radius
        x = self.mars.x + reach_x * math.cos(angle) - 0.12 * along * self.width
        y = self.mars.y - 0.30 * self.mars.radius + reach_y * math.sin(angle)
        return Disc(x, y, self.moon_radius * (0.55 + 0.45 * math.sin(math.pi * min(1.0, 0.12 + 0.62 * along))))

    def frame(self, along: float, palette: Palette) -> list[Content]:
        """The picture with the moon at `along`, a line a row of cells."""
        moon = self.moon(along)
        cells = dict(self._cells)
        shade = _moon_shade(1.1 - 1.5 * along)
        drawn = _body(moon, 1.12 * moon.radius, shade, "moon", self.width, self.height)
        hidden = along < 0.2  # still behind the planet's limb
        for place, cell in drawn.items():
            under = cells.get(place, _EMPTY)
            if not (hidden and under.body.startswith("mars")):
                cells[place] = replace(cell, ground=_STYLES["mars"][under.tone][1]) if under.body == "mars" else cell
        return [self._row(cells, y, palette) for y in range(self.height)]

    def _row(self, cells: dict[tuple[int, int], Cell], y: int, palette: Palette) -> Content:
        parts: list[tuple[str, str]] = []
        for x in range(self.width):
            cell = cells.get((x, y), _EMPTY)
            style = cell_style(cell, palette)
            if parts and parts[-1][1] == style:
                parts[-1] = (parts[-1][0] + chr(0x2800 + cell.dots), style)
            else:
                parts.append((chr(0x2800 + cell.dots), style))
        return Content.assemble(*parts)


def cell_style(cell: Cell, palette: Palette) -> str:
    """The colours of a cell: dots in the body's tone over a darker one; sixteen colours show dots alone."""
    if palette.sixteen:
        return "ansi_bright_red" if cell.body.startswith("mars") else "ansi_default" if cell.body else ""
    colour, ground = _STYLES[cell.body.removesuffix("-limb")][cell.tone]
    return f"{colour} on {cell.ground if cell.body.endswith('-limb') else ground}"


def _stars(width: int, height: int) -> dict[tuple[int, int], Cell]:
    """A dot in about one cell of forty."""
    cells = {}
    for y in range(height):
        for x in range(width):
            roll = _hash(x, y, 7)
            if roll < 0.026:
                dots = _BITS[int(roll * 7919) % 4][int(roll * 104729) % 2]
                cells[x, y] = Cell(dots, int(_hash(x, y, 11) ** 2 * (_N_TONES - 1)), "star")
    return cells


def _body(disc: Disc, extent: float, shade: Shade, body: str, width: int, height: int) -> dict[tuple[int, int], Cell]:
    """The cells a body covers. `shade(x, y, cell_noise)` gives the light 0..1 at a point in radii, or below 0 off
    the body."""
    cells = {}
    first_x, last_x = max(0, int((disc.x - extent) // 2)), min(width - 1, int((disc.x + extent) // 2))
    first_y, last_y = max(0, int((disc.y - extent) // 4)), min(height - 1, int((disc.y + extent) // 4))
    for y in range(first_y, last_y + 1):
        for x in range(first_x, last_x + 1):
            cell = _cell(x, y, disc, shade, body)
            if cell is not None:
                cells[x, y] = cell
    return cells


def _cell(x: int, y: int, disc: Disc, shade: Shade, body: str) -> Cell | None:
    dots, inside, total, n_inside = 0, 0, 0.0, 0
    texture = (
        _texture((2 * x + 1 - disc.x) / disc.radius, (4 * y + 2 - disc.y) / disc.radius) if body == "mars" else 0.0
    )
    for row in range(4):
        for column in range(2):
            dot_x, dot_y = 2 * x + column, 4 * y + row
            light = shade((dot_x + 0.5 - disc.x) / disc.radius, (dot_y + 0.5 - disc.y) / disc.radius, texture)
            if light < 0:
                continue
            n_inside += 1
            inside |= _BITS[row][column]
            total += light
            if light > (_BAYER[dot_y % 4][dot_x % 4] + 0.5) / 17:
                dots |= _BITS[row][column]
    if n_inside == 0:
        return None
    tone = min(_N_TONES - 1, int(total / n_inside * _N_TONES))
    if n_inside < 8:  # at the limb a tinted cell would show the grid: its dots alone draw the edge
        return Cell(inside if total > 0.1 * n_inside else dots, tone, body + "-limb")
    return Cell(dots, tone, body)


def _mars_shade(x: float, y: float, texture: float) -> float:
    square = x * x + y * y
    if square > 1.0:
        return -1.0
    z = math.sqrt(1.0 - square)
    light = max(0.0, x * _LIGHT[0] + y * _LIGHT[1] + z * _LIGHT[2])
    cap = 0.35 if y < -0.86 + 0.05 * math.sin(9 * x) else 0.0
    return min(1.0, light * (0.72 + 0.55 * texture) + cap * light + 0.03)


def _texture(x: float, y: float) -> float:
    """Dark plains and bright dust on the sphere, -0.5..0.5."""
    square = x * x + y * y
    z = math.sqrt(max(0.0, 1.0 - square))
    u, v = 1.6 * math.atan2(x, z + 0.15), 2.2 * y
    value = _noise(1.7 * u + 3, 1.7 * v) + 0.5 * _noise(3.9 * u, 3.9 * v + 5) + 0.25 * _noise(8.3 * u, 8.3 * v)
    band = 0.18 * math.sin(5 * v + 2 * u)
    return value / 1.75 - 0.5 + band


def _moon_shade(turn: float) -> Shade:
    """The moon turned by `turn` radians: a rough, cratered, not quite round body."""
    cos, sin = math.cos(turn), math.sin(turn)
    craters = [((cx * cos + cz * sin, cy, cz * cos - cx * sin), radius) for (cx, cy, cz), radius in _CRATERS]
    craters = [crater for crater in craters if crater[0][2] > -0.3]

    def shade(x: float, y: float, _: float) -> float:
        angle = math.atan2(y, x)
        edge = 1.0 + 0.07 * math.sin(2 * angle + 0.6) + 0.035 * math.sin(5 * angle + 2) + 0.02 * math.sin(9 * angle)
        x, y = x / edge, 1.13 * y / edge
        square = x * x + y * y
        if square > 1.0:
            return -1.0
        normal_x, normal_y, z = x, y, math.sqrt(1.0 - square)
        normal_z = z
        for (cx, cy, cz), radius in craters:
            dx, dy, dz = x - cx, y - cy, z - cz
            distance = math.sqrt(dx * dx + dy * dy + dz * dz) / radius
            if distance < 1.25:
                depth = 1.5 * (distance if distance < 0.85 else -1.6 * (1.25 - distance))
                normal_x -= depth * dx / radius
                normal_y -= depth * dy / radius
                normal_z -= depth * dz / radius
        length = math.sqrt(normal_x * normal_x + normal_y * normal_y + normal_z * normal_z) or 1.0
        light = (normal_x * _LIGHT[0] + normal_y * _LIGHT[1] + normal_z * _LIGHT[2]) / length
        return min(1.0, max(0.02, 1.05 * light - 0.06))

    return shade


def _noise(x: float, y: float) -> float:
    """Value noise, 0..1."""
    cell_x, cell_y = math.floor(x), math.floor(y)
    part_x, part_y = x - cell_x, y - cell_y
    part_x, part_y = part_x * part_x * (3 - 2 * part_x), part_y * part_y * (3 - 2 * part_y)
    top = _hash(cell_x, cell_y, 1) * (1 - part_x) + _hash(cell_x + 1, cell_y, 1) * part_x
    bottom = _hash(cell_x, cell_y + 1, 1) * (1 - part_x) + _hash(cell_x + 1, cell_y + 1, 1) * part_x
    return top * (1 - part_y) + bottom * part_y


def _hash(x: int, y: int, seed: int) -> float:
    """A fixed scatter of whole points over 0..1."""
    mixed = (x * 374761393 + y * 668265263 + seed * 2246822519) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 13)) * 1274126177) & 0xFFFFFFFF
    return ((mixed ^ (mixed >> 16)) & 0xFFFFFF) / 0x1000000


def _tone(stops: tuple[tuple[float, tuple[int, int, int]], ...], at: float) -> str:
    at = max(0.0, min(1.0, at))
    for (low, low_rgb), (high, high_rgb) in pairwise(stops):
        if at <= high:
            part = (at - low) / (high - low)
            mixed = (round(a + (b - a) * part) for a, b in zip(low_rgb, high_rgb, strict=True))
            return "#" + "".join(f"{value:02x}" for value in mixed)
    return SPACE


def _styles() -> dict[str, tuple[tuple[str, str], ...]]:
    """Colours of dots and ground for each body and tone."""
    tones = [i / (_N_TONES - 1) for i in range(_N_TONES)]
    starlight = ((0.0, (70, 60, 62)), (1.0, (255, 246, 236)))
    return {
        "": ((SPACE, SPACE),) * _N_TONES,
        "star": tuple((_tone(starlight, t), SPACE) for t in tones),
        "mars": tuple((_tone(_MARS, 0.12 + t), _tone(_MARS, 0.76 * t)) for t in tones),
        "moon": tuple((_tone(_MOON, 0.10 + t), _tone(_MOON, 0.70 * t)) for t in tones),
    }


_STYLES = _styles()
