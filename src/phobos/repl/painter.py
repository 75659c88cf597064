"""The moving end of the output: some lines at the bottom that are drawn again, under all that is printed for good.

The region never grows beyond the screen, so what has scrolled away is never touched and nothing is printed twice. A
frame is one write, wrapped in the marks for a synchronized update, and only lines that changed are in it. Owner: the
chat's main thread.
"""

from __future__ import annotations

import time

from rich.cells import cell_len
from rich.console import Console

from phobos.repl.blocks import BlockPrinter

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"
_CLEAR_LINE, _CLEAR_BELOW = "\x1b[K", "\x1b[J"
REST_S = 0.1  # a window that kept its size so long is not being resized
_SPARE_ROWS = 2  # the row the cursor waits in, and one for comfort


class Painter:
    """See the module. Between frames the cursor stands at the start of the row under the region."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: list[str] = []
        self._settled: list[str] = []  # lines to print for good that no frame has carried yet
        self._size = self._seen = console.size
        self._changed_s = float("-inf")

    @property
    def room(self) -> int:
        """How many lines the region may have."""
        return max(3, self._console.height - _SPARE_ROWS)

    def paint(self, region: list[str], settled: list[str] | None = None, *, now: bool = False) -> None:
        """Draw the region anew; `settled` lines go above it and are printed for good.

        While the window is being resized nothing is drawn, unless it must be `now`: where the lines of the last frame
        stand is only known once the terminal has come to rest.
        """
        self._settled += settled or ()
        if self._is_resizing():
            if not now:
                return
            time.sleep(REST_S)
        size = self._console.size
        region = region[-self.room :]
        lines = [*self._settled, *region]
        same, back = 0, len(self._shown)
        if size.width == self._size.width:
            while same < min(len(lines), len(self._shown)) and lines[same] == self._shown[same]:
                same += 1
        else:  # the terminal has wrapped what was drawn: count the rows it takes now
            back = sum(max(1, -(-cell_len(BlockPrinter.plain(line)) // size.width)) for line in self._shown)
            back = min(back, size.height - 1)
        up = back - same
        if same == len(lines) and not up:
            self._shown, self._settled = region, []
            return
        parts = [f"\x1b[{up}A" if up else "", "\r"]
        parts += [f"{line}{_CLEAR_LINE}\n" for line in lines[same:]]
        if not now and self._console.size != size:
            return  # too late: where the cursor must go has just changed
        self._write("".join(parts) + _CLEAR_BELOW)
        self._shown, self._settled, self._size = region, [], size

    def _is_resizing(self) -> bool:
        size, now_s = self._console.size, time.monotonic()
        if size != self._seen:
            self._seen, self._changed_s = size, now_s
        return now_s - self._changed_s < REST_S

    def _write(self, text: str) -> None:
        self._console.file.write(f"{_BEGIN}{text}{_END}")
        self._console.file.flush()

    def hide_cursor(self, hidden: bool) -> None:
        """Hide or show the cursor."""
        self._console.file.write(HIDE_CURSOR if hidden else SHOW_CURSOR)
        self._console.file.flush()
