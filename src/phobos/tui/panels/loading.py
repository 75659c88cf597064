"""LOADING: how far the load has come, what it is at, and what it waited for longest."""

from __future__ import annotations

from textual.content import Content

from phobos.counters import LoadProgress
from phobos.printable import printable
from phobos.tui.format import seconds_text, share_text, whole_text
from phobos.tui.lines import Lines
from phobos.tui.panels.panel import Panel, pair
from phobos.tui.plot import meter
from phobos.tui.rates import Moment
from phobos.tui.theme import Palette


class LoadingPanel(Panel):
    """Progress, or the reason of a failed load."""

    TITLE = "LOADING"

    def watch_moment(self) -> None:
        failed = self.moment is not None and self.moment.snapshot.state == "FAILED"
        self.set_class(failed, "-failed")
        self.border_title = "FAILED" if failed else self.TITLE
        super().watch_moment()

    def draw(self, moment: Moment, width: int, height: int, palette: Palette) -> Lines:
        snapshot, load = moment.snapshot, moment.snapshot.load
        if snapshot.state == "FAILED":
            reason = load.error or snapshot.failure or "loading failed"
            rows = Content.styled(reason, f"bold {palette.error}").wrap(width)
            return [*rows, Content(), Content.styled("q quits; the log has more", palette.dim)]
        lines = [_stage(load, width, palette), _bar(load, width, palette)]
        if height >= 7:
            lines.append(Content())
        lines += _kernels(load, width, palette)
        lines.append(pair("elapsed", seconds_text(snapshot.taken_s - snapshot.started_s), width, palette))
        if snapshot.queue_depth:
            lines.append(pair("requests waiting", whole_text(snapshot.queue_depth), width, palette))
        return lines


def _stage(load: LoadProgress, width: int, palette: Palette) -> Content:
    stage = Content.styled(load.stage, f"bold {palette.text}")
    detail = Content.styled(printable(load.detail), palette.dim).truncate(
        max(0, width - stage.cell_length - 2), ellipsis=True
    )
    return Content.assemble(stage, " " * max(1, width - stage.cell_length - detail.cell_length), detail)


def _bar(load: LoadProgress, width: int, palette: Palette) -> Content:
    value = f" {share_text(load.fraction):>4}"
    room = max(4, width - len(value))
    return meter(load.fraction, room, palette.ramp(palette.accent, 24), palette.faint) + Content.styled(
        value, f"bold {palette.accent}"
    )


def _kernels(load: LoadProgress, width: int, palette: Palette) -> Lines:
    """Counts where a backend reports them, and the kernel that took longest."""
    lines: Lines = []
    if load.kernels_total or load.kernels_compiled or load.kernels_cached:
        of_all = f" of {whole_text(load.kernels_total)}" if load.kernels_total else ""
        done = load.kernels_compiled + load.kernels_cached
        value = f"{done}{of_all}: {load.kernels_compiled} compiled · {load.kernels_cached} from cache"
        lines.append(pair("kernels", value, width, palette))
    if load.slowest_kernel:
        value = f"{load.slowest_kernel} · {seconds_text(load.slowest_kernel_s)}"
        lines.append(pair("waited longest", value, width, palette))
    return lines
