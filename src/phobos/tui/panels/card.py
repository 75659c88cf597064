"""CARD: the processor or graphics card that computes."""

from __future__ import annotations

from textual.content import Content

from phobos.host.nvml import CardUse
from phobos.tui.format import UNKNOWN, bytes_text, rate_text, share_text
from phobos.tui.lines import Lines
from phobos.tui.panels.panel import Panel, pair
from phobos.tui.plot import METER_STEPS, area, meter
from phobos.tui.rates import Moment
from phobos.tui.theme import Palette


class CardPanel(Panel):
    """Name and features, then load and memory bandwidth as meters, and what graphics cards say of themselves, as far as
    they are known."""

    TITLE = "DEVICE"

    def draw(self, moment: Moment, width: int, height: int, palette: Palette) -> Lines:
        card = moment.snapshot.card
        lines: Lines = []
        if card is None:
            lines.append(Content.styled("no device in use yet", palette.dim))
        else:
            lines.append(Content.styled(card.name, f"bold {palette.text}"))
            kind = {"cpu": "processor", "cuda": "graphics card"}.get(card.kind, card.kind)
            threads = f"{card.n_threads} thread{'s' if card.n_threads != 1 else ''}"
            if height >= 6:
                lines.append(pair("kind", kind, width, palette))
                lines += [pair("features", card.features, width, palette)] if card.features else []
                lines += [pair("threads", str(card.n_threads), width, palette)] if card.kind == "cpu" else []
            else:
                facts = (card.features, threads if card.kind == "cpu" else "")
                lines.append(Content.styled(" · ".join(filter(None, facts)), palette.dim))
        lines += _readings(moment.snapshot.card_uses, width, palette)
        if moment.load is not None:
            lines.append(_gauge("load", moment.load, share_text(moment.load), width, palette))
        lines += _bandwidth(moment, width, palette)
        n_spare = height - len(lines) - 1
        if n_spare >= 2 and moment.load_history:
            ramp = palette.ramp(palette.process, n_spare, 0.45)
            lines += [Content(), *area(moment.load_history, width, n_spare, 1.0, ramp, palette.faint)]
        return lines


def _readings(uses: tuple[CardUse, ...], width: int, palette: Palette) -> Lines:
    """What one card says of itself as meters; of several a line each."""
    if len(uses) != 1:
        return [pair(f"card {i + 1}", _sum_up(use), width, palette) for i, use in enumerate(uses)]
    use, lines = uses[0], []
    if use.load is not None:
        lines.append(_gauge("card", use.load, share_text(use.load), width, palette))
    if use.memory_used is not None and use.memory_total:
        value = f"{bytes_text(use.memory_used)} of {bytes_text(use.memory_total)}"
        lines.append(_gauge("VRAM", use.memory_used / use.memory_total, value, width, palette))
    if use.power_w is not None and use.power_limit_w:
        value = f"{use.power_w:.0f} of {use.power_limit_w:.0f} W"
        lines.append(_gauge("power", min(1.0, use.power_w / use.power_limit_w), value, width, palette))
    if use.temperature_c is not None:
        lines.append(pair("heat", f"{use.temperature_c} °C", width, palette))
    return lines


def _sum_up(use: CardUse) -> str:
    """A card's readings in one line; a dash where it says nothing."""
    facts = (
        share_text(use.load) if use.load is not None else "",
        bytes_text(use.memory_used) if use.memory_used is not None else "",
        f"{use.temperature_c} °C" if use.temperature_c is not None else "",
        f"{use.power_w:.0f} W" if use.power_w is not None else "",
    )
    return " · ".join(filter(None, facts)) or UNKNOWN


def _bandwidth(moment: Moment, width: int, palette: Palette) -> Lines:
    card = moment.snapshot.card
    now, limit = moment.bandwidth_gbs, card.bandwidth_limit_gbs if card else None
    if now is not None and limit and now <= limit:  # one that is exceeded was measured on a busy machine
        return [_gauge("memory", now / limit, f"{rate_text(now)} of {rate_text(limit)} GB/s", width, palette)]
    if now is not None:
        return [pair("memory", f"{rate_text(now)} GB/s", width, palette)]
    return [pair("memory limit", f"{rate_text(limit)} GB/s", width, palette)] if limit else []


def _gauge(label: str, share: float, value: str, width: int, palette: Palette) -> Content:
    """Label, meter, value; the meter gives way where it is narrow."""
    room = width - 8 - len(value) - 1
    if room < 4:
        return pair(label, value, width, palette)
    n_good = METER_STEPS * 5 // 8
    ramp = (*palette.ramp(palette.good, n_good), *(palette.warn,) * (METER_STEPS - n_good))
    return Content.assemble(
        (f"{label:<8}", palette.dim), meter(share, room, ramp, palette.faint), (f" {value}", palette.text)
    )
