"""The moving end of the output: some lines at the bottom that are drawn again, under all that is printed for good.

The region never grows beyond the screen, so what has scrolled away is never touched and nothing is printed twice. A
frame is one write, wrapped in the marks for a synchronized update, and only lines that changed are in it. Owner: the
chat's main thread.
"""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console

from phobos.repl.blocks import BlockPrinter

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"
_CLEAR_LINE, _CLEAR_BELOW = "\x1b[K", "\x1b[J"
_SPARE_ROWS = 2  # the row the cursor waits in, and one for comfort


class Painter:
    """See the module. Between frames the cursor stands at the start of the row under the region."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: list[str] = []
        self._width = console.width

    @property
    def room(self) -> int:
        """How many lines the region may have."""
        return max(3, self._console.height - _SPARE_ROWS)

    def paint(self, region: list[str], settled: list[str] | None = None) -> None:
        """Draw the region anew; `settled` lines go above it and are printed for good."""
        width = self._console.width
        region = region[-self.room :]
        lines = [*(settled or ()), *region]
        same, back = 0, len(self._shown)
        if width == self._width:
            while same < min(len(lines), len(self._shown)) and lines[same] == self._shown[same]:
                same += 1
        else:  # the terminal has wrapped what was drawn: count the rows it takes now
            back = sum(max(1, -(-cell_len(BlockPrinter.plain(line)) // width)) for line in self._shown)
            back = min(back, self._console.height - 1)
            self._width = width
        up = back - same
        parts = [f"\x1b[{up}A" if up else "", "\r"]
        parts += [f"{line}{_CLEAR_LINE}\n" for line in lines[same:]]
        if same != len(lines) or len(lines) != len(self._shown) or up:
            self._write("".join(parts) + _CLEAR_BELOW)
        self._shown = region

    def settle(self, lines: list[str]) -> None:
        """Put these lines in the region's place for good."""
        self.paint([], lines)

    def _write(self, text: str) -> None:
        self._console.file.write(f"{_BEGIN}{text}{_END}")
        self._console.file.flush()

    def hide_cursor(self, hidden: bool) -> None:
        """Hide or show the cursor."""
        self._console.file.write(HIDE_CURSOR if hidden else SHOW_CURSOR)
        self._console.file.flush()
