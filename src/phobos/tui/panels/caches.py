"""CACHES: what was reused, what each slot holds, and the compiled kernels."""

from __future__ import annotations

from textual.content import Content

from phobos.counters import SlotInfo, Snapshot
from phobos.tui.format import bytes_text, seconds_text, share_text, whole_text
from phobos.tui.lines import Lines
from phobos.tui.panels.panel import Panel, pair
from phobos.tui.plot import METER_STEPS, meter
from phobos.tui.rates import Moment
from phobos.tui.theme import Palette


class CachesPanel(Panel):
    """Prefix reuse first, then a line a slot, then guessed tokens and kernels."""

    TITLE = "CACHES"

    def draw(self, moment: Moment, width: int, height: int, palette: Palette) -> Lines:
        snapshot = moment.snapshot
        below = [line for part in (_archive, _drafts, _kernels) for line in part(snapshot, width, palette)]
        lines = _prefix(moment, width, palette, tall=height >= 8)
        slots = _slots(snapshot, max(0, height - len(lines) - len(below)), width, palette)
        return [*lines, *slots, *below]


def _prefix(moment: Moment, width: int, palette: Palette, *, tall: bool) -> Lines:
    snapshot, share = moment.snapshot, moment.hit_rate
    if share is None:
        return [pair("prefix", "no prompts yet", width, palette)]
    value = f" {share_text(share)} reused"
    room = max(4, width - 8 - len(value))
    ramp = palette.ramp(palette.good, METER_STEPS)
    bar = Content.assemble(("prefix  ", palette.dim), meter(share, room, ramp, palette.faint), (value, palette.text))
    tokens = f"{whole_text(snapshot.prompt_tokens_reused)} of {whole_text(snapshot.prompt_tokens)}"
    return [bar, *([pair("tokens", tokens, width, palette)] if tall else [])]


def _slots(snapshot: Snapshot, n_lines: int, width: int, palette: Palette) -> Lines:
    """A line a slot in order; where they do not fit, those in use and then those used last."""
    slots = snapshot.slots
    if len(slots) <= n_lines or not n_lines:
        return [_slot(slot, snapshot, width, palette) for slot in slots[:n_lines]]
    chosen = sorted(slots, key=lambda slot: (not slot.busy, -slot.last_used_s, slot.index))[: n_lines - 1]
    lines = [_slot(slot, snapshot, width, palette) for slot in sorted(chosen, key=lambda slot: slot.index)]
    return [*lines, Content.styled(f"… {len(slots) - len(chosen)} slots more", palette.dim)]


def _slot(slot: SlotInfo, snapshot: Snapshot, width: int, palette: Palette) -> Content:
    model = snapshot.model
    mark = ("● ", palette.accent) if slot.busy else ("○ ", palette.faint)
    age_s = snapshot.taken_s - slot.last_used_s
    age = f"{seconds_text(age_s):>8}" if slot.n_tokens and not slot.busy and age_s >= 1 and width >= 34 else ""
    value = f"{whole_text(slot.n_tokens):>7}" if slot.n_tokens or slot.busy else "  empty"
    label = f"slot {slot.index} "
    room = max(2, width - 2 - len(label) - len(value) - len(age))
    share = slot.n_tokens / model.n_ctx if model is not None and model.n_ctx else 0.0
    bar = meter(share, room, palette.ramp(palette.cache, METER_STEPS), palette.faint)
    return Content.assemble(mark, (label, palette.dim), bar, (value, palette.text), (age, palette.dim))


def _drafts(snapshot: Snapshot, width: int, palette: Palette) -> Lines:
    n, n_right = snapshot.draft_tokens, snapshot.draft_tokens_accepted
    return [pair("guessed", f"{share_text(n_right / n)} of {whole_text(n)} right", width, palette)] if n else []


def _archive(snapshot: Snapshot, width: int, palette: Palette) -> Lines:
    """Conversations that gave way: in memory, and on disk."""
    cache = snapshot.cache
    if cache is None or not (cache.n_archived or cache.n_files):
        return []
    parts = [f"{cache.n_archived} in {bytes_text(cache.archived_bytes)}"] if cache.n_archived else []
    parts += [f"{cache.n_files} on disk"] if cache.n_files else []
    return [pair("archive", " · ".join(parts), width, palette)]


def _kernels(snapshot: Snapshot, width: int, palette: Palette) -> Lines:
    load = snapshot.load
    if not load.kernels_compiled and not load.kernels_cached:
        return []
    value = f"{load.kernels_cached} cached · {load.kernels_compiled} compiled"
    return [pair("kernels", value, width, palette)]
