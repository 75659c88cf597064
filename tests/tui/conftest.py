"""Fixtures of the dashboard's tests: an app over a made-up snapshot, in a terminal of no particular kind."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from dashboard_stage import Stage


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """True colour and a fixed time zone, whatever the tests are run from."""
    for name in ("NO_COLOR", "COLORFGBG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@pytest.fixture
def stage() -> Callable[..., Stage]:
    """Makes a `Stage` for a state's name."""
    return Stage
