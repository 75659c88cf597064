"""NETWORK: the layers as a strip, coloured by kind, with a light that moves on with every pass."""

from __future__ import annotations

from textual.content import Content

from phobos.counters import ModelInfo
from phobos.tui.lines import Lines
from phobos.tui.panels.panel import Panel
from phobos.tui.plot import merge
from phobos.tui.rates import Moment
from phobos.tui.theme import Palette


class NetworkPanel(Panel):
    """The layers share the width. The light is not a measurement of where the engine is: it moves one step further
    for each moment in which passes ran, and stands still otherwise."""

    TITLE = "NETWORK"

    def __init__(self) -> None:
        super().__init__()
        self._light = 0

    def watch_moment(self) -> None:
        if self.moment is not None and self.moment.n_passes:
            self._light += 1
        super().watch_moment()

    def draw(self, moment: Moment, width: int, height: int, palette: Palette) -> Lines:
        model = moment.snapshot.model
        if model is None:
            return [Content.styled("no model loaded", palette.dim)]
        kinds = model.layer_kinds or ("layer",) * model.n_layers
        if not kinds:
            return []
        colours = kind_colours(kinds, palette)
        legend = _legend(model, kinds, colours, palette)
        room = width - 12 if height >= 2 else width - 12 - legend.cell_length - 2
        if room < 8:
            room, legend = width - 12, Content()
        strip = self._strip(kinds, colours, room, palette, active=moment.n_passes > 0)
        line = Content.assemble(("embed ", palette.dim), strip, (" head", palette.dim))
        return [line, legend] if height >= 2 else [Content.assemble(line, "  ", legend)]

    def _strip(
        self, kinds: tuple[str, ...], colours: dict[str, str], room: int, palette: Palette, *, active: bool
    ) -> Content:
        n_layers = len(kinds)
        n_shown = min(n_layers, room)
        parts: list[tuple[str, str]] = []
        lit = self._light % n_shown if active and n_shown else -1
        for i in range(n_shown):
            kind = kinds[i * n_layers // n_shown]
            ramp = palette.ramp(colours[kind], 5, 0.45)
            distance = lit - i
            colour = palette.text if distance == 0 else ramp[4 - min(4, distance)] if 0 < distance < 4 else ramp[1]
            n_cells = (i + 1) * room // n_shown - i * room // n_shown
            parts.append(("▇" * (n_cells - 1) + " " if n_cells > 1 else "▇", colour))
        return Content.assemble(*merge(parts))


def kind_colours(kinds: tuple[str, ...], palette: Palette) -> dict[str, str]:
    """A colour a kind, in order of first appearance."""
    wheel = (palette.decode, palette.prompt, palette.cache, palette.scratch, palette.process)
    return {kind: wheel[i % len(wheel)] for i, kind in enumerate(dict.fromkeys(kinds))}


def _legend(model: ModelInfo, kinds: tuple[str, ...], colours: dict[str, str], palette: Palette) -> Content:
    parts: list[tuple[str, str]] = []
    for kind, colour in colours.items():
        parts += [("▇ ", colour), (f"{kinds.count(kind)} {kind}   ", palette.dim)]
    if not model.layer_kinds:
        parts[-1] = (f"{model.n_layers} layers", palette.dim)
    return Content.assemble(*parts)
