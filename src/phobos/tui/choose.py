"""Whether the dashboard is drawn, decided purely from flags, environment and terminal."""

from __future__ import annotations

from collections.abc import Mapping

from phobos.errors import UsageError

#: Variables whose reports print straight to the terminal and would draw over the dashboard.
REPORT_VARIABLES = ("PHOBOS_VRAM", "PHOBOS_PASS_REPORT")


def dashboard_reason_off(
    *, no_tui: bool, tui: bool, stdout_is_terminal: bool, environ: Mapping[str, str]
) -> str | None:
    """Why the dashboard is off, as one sentence, or `None` when it is drawn.

    `no_tui` and `tui` are the flags; `tui` draws it whatever else is so. Both at once are a `UsageError`.
    """
    if no_tui and tui:
        raise UsageError("--tui and --no-tui contradict each other: give one of them")
    if no_tui:
        return "the dashboard is off: --no-tui was given"
    if tui:
        return None
    if not stdout_is_terminal:
        return "the dashboard is off: standard output is not a terminal (--tui forces it)"
    for name in REPORT_VARIABLES:
        if environ.get(name):
            return f"the dashboard is off: {name} is set and its report prints to the terminal"
    if environ.get("TERM") == "dumb":
        return "the dashboard is off: the terminal says it is dumb (TERM=dumb; --tui forces it)"
    return None
