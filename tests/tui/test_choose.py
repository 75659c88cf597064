"""When the dashboard is off, and the sentence that says why."""

from __future__ import annotations

import pytest

from phobos.errors import UsageError
from phobos.tui.choose import dashboard_reason_off


@pytest.mark.parametrize(
    ("no_tui", "tui", "terminal", "environ", "said"),
    [
        (False, False, True, {}, None),
        (True, False, True, {}, "--no-tui"),
        (False, False, False, {}, "not a terminal"),
        (False, True, False, {}, None),
        (False, False, True, {"PHOBOS_VRAM": "1"}, "PHOBOS_VRAM"),
        (False, False, True, {"PHOBOS_PASS_REPORT": "3"}, "PHOBOS_PASS_REPORT"),
        (False, False, True, {"PHOBOS_VRAM": ""}, None),
        (False, True, True, {"PHOBOS_VRAM": "1"}, None),
        (False, False, True, {"TERM": "dumb"}, "TERM=dumb"),
        (True, False, False, {"PHOBOS_VRAM": "1"}, "--no-tui"),
    ],
)
def test_reason(no_tui: bool, tui: bool, terminal: bool, environ: dict[str, str], said: str | None) -> None:
    reason = dashboard_reason_off(no_tui=no_tui, tui=tui, stdout_is_terminal=terminal, environ=environ)
    if said is None:
        assert reason is None
    else:
        assert reason is not None
        assert reason.startswith("the dashboard is off: ")
        assert said in reason
        assert "\n" not in reason


def test_both_flags_contradict() -> None:
    with pytest.raises(UsageError, match="--no-tui"):
        dashboard_reason_off(no_tui=True, tui=True, stdout_is_terminal=True, environ={})
