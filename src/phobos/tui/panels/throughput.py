"""THROUGHPUT: tokens per second, large, with peaks and history; prompt at the left, decode at the right."""

from __future__ import annotations

from textual.content import Content

from phobos.tui.bigtext import big
from phobos.tui.format import UNKNOWN, rate_text
from phobos.tui.lines import Lines
from phobos.tui.panels.panel import Panel
from phobos.tui.plot import area, nice_ceiling
from phobos.tui.rates import HISTORY_STEP_S, Moment, Rate
from phobos.tui.theme import Palette

_NUMBER_WIDTH = 17
#: From this height on the plot is under the number and as wide as its half.
_STACKED_FROM = 9


class ThroughputPanel(Panel):
    """Two halves of equal build. Where it is low and wide, the plot stands beside the number, else below it."""

    TITLE = "THROUGHPUT"

    def draw(self, moment: Moment, width: int, height: int, palette: Palette) -> Lines:
        gap = 3
        half = (width - gap) // 2
        left = _half("PROMPT", moment.prompt, half, height, palette.prompt, palette)
        right = _half("DECODE", moment.decode, half, height, palette.decode, palette)
        return [
            Content.assemble(a.pad_right(half - a.cell_length), " " * gap, b) for a, b in zip(left, right, strict=True)
        ]


def _half(name: str, rate: Rate, width: int, height: int, colour: str, palette: Palette) -> Lines:
    """Exactly `height` lines."""
    label, axis = _label(name, rate, width, colour, palette), _axis(rate, width, width, palette)
    if height < 5:
        return [label, *_number(rate, colour, palette), axis][:height]
    if height < _STACKED_FROM:
        return [label, *_beside(rate, width, height - 1, colour, palette)]
    spare = 1 if height >= 11 else 0
    plot = _plot(rate, width, height - 5 - spare, colour, palette)
    return [label, *_number(rate, colour, palette), *([Content()] * spare), *plot, axis]


def _beside(rate: Rate, width: int, height: int, colour: str, palette: Palette) -> Lines:
    """Number at the left, plot at the right of it, axis under both; `height` is 4 at least."""
    number = _number(rate, colour, palette)
    number_width = max(_NUMBER_WIDTH, number[0].cell_length + 2)
    n_rows = height - 1
    above = (n_rows - len(number)) // 2
    number = [*[Content()] * above, *number, *[Content()] * (n_rows - len(number) - above)]
    plot_width = max(0, width - number_width)
    plot = _plot(rate, plot_width, n_rows, colour, palette)
    padded = [row.pad_right(max(0, number_width - row.cell_length)) for row in number]
    rows = [Content.assemble(left, right) for left, right in zip(padded, plot, strict=True)]
    return [*rows, _axis(rate, width, plot_width, palette)]


def _label(name: str, rate: Rate, width: int, colour: str, palette: Palette) -> Content:
    light = "●" if rate.active else "○"
    left = Content.assemble((f"{light} ", colour if rate.active else palette.faint), (name, f"bold {colour}"))
    right = Content.assemble(("tok/s", palette.dim)) if width < 26 else Content.styled("tokens per second", palette.dim)
    return Content.assemble(left, " " * max(1, width - left.cell_length - right.cell_length), right)


def _number(rate: Rate, colour: str, palette: Palette) -> Lines:
    """The rate in large digits, dim while nothing of its kind runs: then it is the last one measured."""
    text = rate_text(rate.value)
    style = colour if rate.active else palette.dim
    return [Content.styled(row, palette.faint if text == UNKNOWN else style) for row in big(text)]


def _plot(rate: Rate, width: int, height: int, colour: str, palette: Palette) -> Lines:
    shown = rate.history[-2 * width :] if width else ()
    scale = nice_ceiling(max(shown, default=0.0))
    return area(rate.history, width, height, scale, palette.ramp(colour, height, 0.45), palette.faint)


def _axis(rate: Rate, width: int, plot_width: int, palette: Palette) -> Content:
    """The plot's span of time under its left end, the peak at the right."""
    peak = Content.assemble(("peak ", palette.dim), (rate_text(rate.peak), palette.text))
    span = f"{2 * plot_width * HISTORY_STEP_S:.0f} s"
    if width - plot_width + len(span) + 1 + peak.cell_length > width:
        span = ""  # no room for it under a narrow plot
    left = Content.styled(" " * (width - plot_width) + span, palette.dim)
    return Content.assemble(left, " " * max(1, width - left.cell_length - peak.cell_length), peak)
