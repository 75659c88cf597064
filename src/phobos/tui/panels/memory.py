"""MEMORY: where the bytes are, and how full the contexts are."""

from __future__ import annotations

from textual.content import Content

from phobos.counters import Snapshot
from phobos.tui.format import bytes_text, share_text, whole_text
from phobos.tui.lines import Lines
from phobos.tui.panels.panel import Panel, columns, pair
from phobos.tui.plot import METER_STEPS, meter, stacked
from phobos.tui.rates import Moment
from phobos.tui.theme import Palette

Part = tuple[str, int, str]


class MemoryPanel(Panel):
    """A bar over all of the memory, its legend, and the fill of the contexts."""

    TITLE = "MEMORY"

    def draw(self, moment: Moment, width: int, height: int, palette: Palette) -> Lines:
        parts = memory_parts(moment.snapshot, palette)
        machine = moment.snapshot.machine
        total = machine.total_bytes if machine else None
        whole = total or sum(n for _, n, _ in parts)
        if not parts or not whole:
            return [Content.styled("not reported by this system", palette.dim)]
        bar = stacked([(n / whole, colour) for _, n, colour in parts], width, palette.faint)
        free = machine.free_bytes if machine else None
        legend = [*parts, *([("free", free, palette.faint)] if free is not None else [])]
        fill = context_fill(moment.snapshot, width, palette)
        if height >= len(legend) + 3:
            rows = [_legend_row(part, width, palette) for part in legend]
            spare = height >= len(rows) + len(fill) + 3
            total_row = [pair("total", bytes_text(total), width, palette)] if total and spare else []
            return [bar, *rows, *total_row, *([Content()] if height >= len(rows) + len(fill) + 2 else []), *fill]
        half = (width - 2) // 2
        if half < 17:
            first = {"weights": 0, "cache": 1, "free": 2}
            legend.sort(key=lambda part: first.get(part[0], 3))
            return [bar, *(_legend_row(part, width, palette) for part in legend[: height - 1 - len(fill)]), *fill]
        short = {"elsewhere": "other"}
        cells = [_legend_row((short.get(part[0], part[0]), *part[1:]), half, palette) for part in legend]
        rows = [columns(cells[i : i + 2], width) for i in range(0, len(cells), 2)]
        return [bar, *rows[: max(1, height - 1 - len(fill))], *fill]


def memory_parts(snapshot: Snapshot, palette: Palette) -> list[Part]:
    """The known parts in use as (name, bytes, colour): the model's own, the rest of this process, other programs.

    What the model reserved but has not touched yet is not resident, so the rest of the process cannot always be
    told; then it is left out.
    """
    parts: list[Part] = []
    model, machine = snapshot.model, snapshot.machine
    own = 0
    if model is not None:
        cache = snapshot.cache
        held = model.cache_bytes if cache is None else cache.held_bytes
        archived = 0 if cache is None else cache.archived_bytes
        own = model.weights_bytes + held + archived + model.scratch_bytes
        parts += [
            ("weights", model.weights_bytes, palette.weights),
            ("cache", held, palette.cache),
            *([("archive", archived, palette.archive)] if archived else []),
            ("scratch", model.scratch_bytes, palette.scratch),
        ]
    if machine is not None and machine.process_bytes is not None:
        if machine.process_bytes > own:
            parts.append(("process", machine.process_bytes - own, palette.process))
        if machine.total_bytes is not None and machine.free_bytes is not None:
            others = machine.total_bytes - machine.free_bytes - machine.process_bytes
            parts.append(("elsewhere", max(0, others), palette.elsewhere))
    return parts


def context_fill(snapshot: Snapshot, width: int, palette: Palette) -> Lines:
    """One line: how much of what all slots may hold is filled; nothing without slots."""
    model, slots, cache = snapshot.model, snapshot.slots, snapshot.cache
    if model is None or not slots or model.n_ctx <= 0:
        return []
    if cache is not None and cache.bound_bytes > 0:
        held, room = cache.held_bytes, cache.bound_bytes
        value = f" {bytes_text(held)} / {bytes_text(room)}"
    else:
        held, room = sum(slot.n_tokens for slot in slots), model.n_ctx * len(slots)
        value = f" {whole_text(held)} / {whole_text(room)}"
    label, share = "context ", f" {share_text(held / room)}"
    if width < len(label) + len(value) + 10:
        value = share
    bar = meter(
        held / room, max(4, width - len(label) - len(value)), palette.ramp(palette.cache, METER_STEPS), palette.faint
    )
    return [Content.assemble((label, palette.dim), bar, (value, palette.text))]


def _legend_row(part: Part, width: int, palette: Palette) -> Content:
    name, n_bytes, colour = part
    return Content.assemble(("▆ ", colour), pair(name, bytes_text(n_bytes), width - 2, palette))
