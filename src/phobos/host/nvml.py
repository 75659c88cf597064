"""What graphics cards say of themselves, through NVIDIA's management library: load, memory, heat, power.

The library (`nvidia-ml-py`, part of the cuda extra) is imported when a card is first asked about. What it does not
know, or whatever fails, is `None`.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

READ_EVERY_S = 1.0  # a reading takes up to some milliseconds, and cards renew theirs no more often


@dataclass(frozen=True)
class CardUse:
    """One card now. `load` is the share of the last moments in which it computed (0..1); degrees Celsius, watts."""

    load: float | None = None
    memory_used: int | None = None  # bytes, of all programs
    memory_total: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None


def import_library() -> Any:
    """NVIDIA's module, started; whatever it raises where there is none, or no driver."""
    library = importlib.import_module("pynvml")
    library.nvmlInit()
    return library


class CardWatch:
    """Reads cards, at most once in `READ_EVERY_S`. Any thread may read."""

    def __init__(self, load_library: Callable[[], Any] = import_library) -> None:
        self._load_library = load_library
        self._library: Any = None
        self._failed = False
        self._last: tuple[float, tuple[str, ...], tuple[CardUse, ...]] = (-READ_EVERY_S, (), ())

    def read(self, bus_ids: Sequence[str]) -> tuple[CardUse, ...]:
        """The cards with these PCI bus ids, in order; nothing where they cannot be asked."""
        if self._failed or not bus_ids:
            return ()
        now_s, asked = time.monotonic(), tuple(bus_ids)
        taken_s, known, uses = self._last
        if now_s - taken_s < READ_EVERY_S and known == asked:
            return uses
        if self._library is None:
            try:
                self._library = self._load_library()
            except Exception:  # not installed, no driver, one of another version
                self._failed = True
                return ()
        uses = tuple(_read_card(self._library, bus_id) for bus_id in asked)
        self._last = (now_s, asked, uses)
        return uses


def _read_card(library: Any, bus_id: str) -> CardUse:
    def ask(name: str, *arguments: Any) -> Any:
        """What a function of the library says; None where it fails, or this version has no such function."""
        try:
            return getattr(library, name)(*arguments)
        except (library.NVMLError, AttributeError):
            return None

    card = ask("nvmlDeviceGetHandleByPciBusId", bus_id.encode())
    if card is None:
        return CardUse()
    heat = ask("nvmlDeviceGetTemperatureV", card, library.NVML_TEMPERATURE_GPU)
    if heat is None:  # of older drivers
        heat = ask("nvmlDeviceGetTemperature", card, library.NVML_TEMPERATURE_GPU)
    rates, memory = ask("nvmlDeviceGetUtilizationRates", card), ask("nvmlDeviceGetMemoryInfo", card)
    power_mw, limit_mw = ask("nvmlDeviceGetPowerUsage", card), ask("nvmlDeviceGetEnforcedPowerLimit", card)
    return CardUse(
        load=None if rates is None else rates.gpu / 100,
        memory_used=None if memory is None else int(memory.used),
        memory_total=None if memory is None else int(memory.total),
        temperature_c=heat,
        power_w=None if power_mw is None else power_mw / 1000,
        power_limit_w=None if limit_mw is None else limit_mw / 1000,
    )
