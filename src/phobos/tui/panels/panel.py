"""What all panels share: they are handed a moment and draw lines of text from it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from textual.content import Content
from textual.reactive import reactive

from phobos.tui.lines import Lines, LineView
from phobos.tui.rates import Moment
from phobos.tui.theme import Palette, palette_of


class Panel(LineView):
    """A titled box of lines. Subclasses give `TITLE` and `draw`, a pure function of the moment and the size."""

    TITLE = ""

    moment: reactive[Moment | None] = reactive(None, repaint=False, init=False)

    def __init__(self) -> None:
        super().__init__(id=type(self).__name__.removesuffix("Panel").lower())
        self.border_title = self.TITLE or None

    def draw(self, moment: Moment, width: int, height: int, palette: Palette) -> Lines:
        """The lines to show in `width` by `height` cells; more than fit are cut off."""
        raise NotImplementedError

    def watch_moment(self) -> None:
        """Repaint where the new moment looks different."""
        self.redraw()

    def draw_lines(self, width: int, height: int) -> Lines:
        if self.moment is None:
            return []
        lines = self.draw(self.moment, width, height, palette_of(self.app.current_theme))
        return [x if x.cell_length <= width else x.truncate(width, ellipsis=True) for x in lines[:height]]


@lru_cache(512)
def pair(label: str, value: str | Content, width: int, palette: Palette) -> Content:
    """A label at the left and its value at the right edge."""
    text = value if isinstance(value, Content) else Content.styled(value, palette.text)
    room = width - text.cell_length
    if room <= 1:
        return text.truncate(width, ellipsis=True)
    name = label if len(label) < room else label[: max(0, room - 2)] + "…"
    return Content.assemble((name, palette.dim), " " * (room - len(name)), text)


def columns(cells: Sequence[Content], width: int, gap: int = 2) -> Content:
    """Cells side by side in equal parts of `width`."""
    each = (width - gap * (len(cells) - 1)) // max(1, len(cells))
    return Content(" " * gap).join(_fit(cell, each) for cell in cells)


def _fit(cell: Content, width: int) -> Content:
    cut = cell.truncate(width, ellipsis=True)
    return cut.pad_right(width - cut.cell_length)
