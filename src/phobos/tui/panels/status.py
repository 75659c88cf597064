"""The status line: state, uptime, requests, tokens, address."""

from __future__ import annotations

from textual.content import Content

from phobos.tui.format import uptime_text, whole_text
from phobos.tui.lines import Lines
from phobos.tui.panels.panel import Panel
from phobos.tui.rates import Moment
from phobos.tui.theme import Palette


class StatusPanel(Panel):
    """One line without a box; from the right, facts give way where it is narrow."""

    def draw(self, moment: Moment, width: int, height: int, palette: Palette) -> Lines:
        snapshot = moment.snapshot
        colour = state_colour(snapshot.state, palette)
        mark = "◐" if palette.dark else "◑"
        badge = Content.assemble(
            (f"{mark} PHOBOS ", f"bold {palette.accent}"),
            (
                f" {snapshot.state} ",
                f"bold {palette.background} on {colour}" if not palette.sixteen else f"reverse {colour}",
            ),
        )
        n_requests = snapshot.requests_admitted
        requests = f"{whole_text(n_requests)} request{'s' if n_requests != 1 else ''}"
        if snapshot.queue_depth:
            requests += f" · {snapshot.queue_depth} waiting"
        facts = [
            ("up", uptime_text(snapshot.taken_s - snapshot.started_s)),
            ("", requests),
            ("in", whole_text(snapshot.prompt_tokens)),
            ("out", whole_text(snapshot.generated_tokens)),
            ("", snapshot.address),
        ]
        refused = snapshot.requests_failed + snapshot.requests_rejected
        if refused:
            facts.insert(2, ("", f"{refused} refused"))
        key, does = palette.accent, palette.dim
        keys = Content.assemble(("?", key), (" help  ", does), ("q", key), (" quit", does))
        line = badge
        for label, value in facts:
            if not value:
                continue
            fact = Content.assemble(("  ", ""), (f"{label} " if label else "", palette.dim), (value, palette.text))
            if line.cell_length + fact.cell_length + keys.cell_length + 2 > width:
                break
            line = line + fact
        gap = width - line.cell_length - keys.cell_length
        return [line + " " * gap + keys if gap >= 2 else line]


def state_colour(state: str, palette: Palette) -> str:
    """The colour a state is shown in."""
    return {
        "LOADING": palette.warn,
        "PREFILL": palette.prompt,
        "DECODE": palette.decode,
        "FAILED": palette.error,
        "STOPPING": palette.warn,
    }.get(state, palette.good)
