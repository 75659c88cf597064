"""What cards say of themselves, from a made-up management library."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from phobos.counters import CardInfo, Counters
from phobos.host.nvml import CardUse, CardWatch

GIB = 1 << 30


class RefusalError(Exception):
    """The library's own error."""


class MadeUp:
    """A library that knows one card; `missing` names functions that refuse, `asked` counts questions."""

    NVMLError = RefusalError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, *missing: str) -> None:
        self.missing, self.asked, self.load = missing, 0, 40

    def _answer(self, name: str, value: Any) -> Any:
        self.asked += 1
        if name in self.missing:
            raise RefusalError("not supported")
        return value

    def nvmlDeviceGetHandleByPciBusId(self, bus_id: bytes) -> str:  # noqa: N802
        if bus_id != b"0000:41:00.0":
            raise RefusalError("not found")
        return "card"

    def nvmlDeviceGetTemperature(self, card: str, sensor: int) -> int:  # noqa: N802
        return self._answer("temperature", 61)

    def nvmlDeviceGetUtilizationRates(self, card: str) -> SimpleNamespace:  # noqa: N802
        return self._answer("load", SimpleNamespace(gpu=self.load, memory=7))

    def nvmlDeviceGetMemoryInfo(self, card: str) -> SimpleNamespace:  # noqa: N802
        return self._answer("memory", SimpleNamespace(used=3 * GIB, total=8 * GIB, free=5 * GIB))

    def nvmlDeviceGetPowerUsage(self, card: str) -> int:  # noqa: N802
        return self._answer("power", 123_400)

    def nvmlDeviceGetEnforcedPowerLimit(self, card: str) -> int:  # noqa: N802
        return self._answer("limit", 250_000)


ALL = CardUse(0.4, 3 * GIB, 8 * GIB, 61, 123.4, 250.0)


def test_readings() -> None:
    assert CardWatch(MadeUp).read(["0000:41:00.0"]) == (ALL,)
    assert CardWatch(MadeUp).read(["0000:99:00.0", "0000:41:00.0"]) == (CardUse(), ALL)
    assert CardWatch(MadeUp).read([]) == ()


def test_the_newer_way_to_ask_for_the_temperature() -> None:
    library: Any = MadeUp("temperature")
    library.nvmlDeviceGetTemperatureV = lambda card, sensor: 59
    assert CardWatch(lambda: library).read(["0000:41:00.0"])[0].temperature_c == 59


@pytest.mark.parametrize(
    ("missing", "fields"),
    [
        ("temperature", ("temperature_c",)),
        ("load", ("load",)),
        ("memory", ("memory_used", "memory_total")),
        ("power", ("power_w",)),
        ("limit", ("power_limit_w",)),
    ],
)
def test_what_a_card_does_not_know_is_missing(missing: str, fields: tuple[str, ...]) -> None:
    (use,) = CardWatch(lambda: MadeUp(missing)).read(["0000:41:00.0"])
    for name in vars(ALL):
        assert getattr(use, name) == (None if name in fields else getattr(ALL, name))


def test_without_the_library_nothing_is_asked_twice() -> None:
    n_tries = []

    def fail() -> Any:
        n_tries.append(1)
        raise ModuleNotFoundError("no pynvml")

    watch = CardWatch(fail)
    assert watch.read(["0000:41:00.0"]) == watch.read(["0000:41:00.0"]) == ()
    assert len(n_tries) == 1


def test_a_reading_serves_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    library, clock = MadeUp(), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    watch = CardWatch(lambda: library)
    first = watch.read(["0000:41:00.0"])
    library.load, n_asked = 90, library.asked
    clock[0] += 0.9
    assert watch.read(["0000:41:00.0"]) == first and library.asked == n_asked
    clock[0] += 0.2
    assert watch.read(["0000:41:00.0"])[0].load == 0.9


def test_a_snapshot_tells_of_the_cards_in_use() -> None:
    def snapshot(card: CardInfo | None, load: Callable[[], Any] = MadeUp) -> tuple[CardUse, ...]:
        return Counters(card=card, watch=CardWatch(load)).snapshot().card_uses

    assert snapshot(None) == snapshot(CardInfo("a processor", "cpu", "", 2)) == ()
    assert snapshot(CardInfo("a card", "cuda", "", 1, bus_ids=("0000:41:00.0",))) == (ALL,)
