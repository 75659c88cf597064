"""CARD: the processor or graphics card that computes."""

from __future__ import annotations

from textual.content import Content

from phobos.tui.format import rate_text, share_text
from phobos.tui.lines import Lines
from phobos.tui.panels.panel import Panel, pair
from phobos.tui.plot import METER_STEPS, area, meter
from phobos.tui.rates import Moment
from phobos.tui.theme import Palette


class CardPanel(Panel):
    """Name and features, then load and memory bandwidth as meters, as far as they are known."""

    TITLE = "CARD"

    def draw(self, moment: Moment, width: int, height: int, palette: Palette) -> Lines:
        card = moment.snapshot.card
        lines: Lines = []
        if card is None:
            lines.append(Content.styled("no card in use yet", palette.dim))
        else:
            lines.append(Content.styled(card.name, f"bold {palette.text}"))
            kind = {"cpu": "processor", "cuda": "graphics card"}.get(card.kind, card.kind)
            threads = f"{card.n_threads} thread{'s' if card.n_threads != 1 else ''}"
            if height >= 6:
                lines.append(pair("kind", kind, width, palette))
                lines += [pair("features", card.features, width, palette)] if card.features else []
                lines.append(pair("threads", str(card.n_threads), width, palette))
            else:
                lines.append(Content.styled(" · ".join(filter(None, (card.features, threads))), palette.dim))
        if moment.load is not None:
            lines.append(_gauge("load", moment.load, share_text(moment.load), width, palette))
        lines += _bandwidth(moment, width, palette)
        n_spare = height - len(lines) - 1
        if n_spare >= 2 and moment.load_history:
            ramp = palette.ramp(palette.process, n_spare, 0.45)
            lines += [Content(), *area(moment.load_history, width, n_spare, 1.0, ramp, palette.faint)]
        return lines


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
