"""The snapshot: frozen, cheap, and honest about what the system does not say."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest

from dashboard_moments import request
from phobos.counters import Counters, read_machine
from phobos.host.machine import Memory


def test_snapshot_copies_what_the_writers_go_on_changing() -> None:
    counters = Counters()
    counters.recent.appendleft(request(1, "done"))
    taken = counters.snapshot()
    counters.recent.appendleft(request(2, "done"))
    counters.passes += 1
    assert (len(taken.recent), taken.passes) == (1, 0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        taken.passes = 5  # type: ignore[misc]


def test_snapshot_takes_less_than_a_hundredth_of_its_interval() -> None:
    counters = Counters()
    counters.recent.extend(request(i, "done") for i in range(64))
    counters.snapshot()
    began = time.thread_time()
    for _ in range(100):
        counters.snapshot()
    assert (time.thread_time() - began) / 100 < 0.002


def test_machine_tells_of_this_process() -> None:
    use = read_machine()
    assert use.n_cpus >= 1
    assert use.cpu_s > 0
    if Path("/proc/self/statm").exists():
        assert use.process_bytes is not None
        assert use.process_bytes > 5_000_000


def test_machine_that_says_nothing_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise OSError("no such file")

    monkeypatch.setattr(Path, "read_text", refuse)
    monkeypatch.setattr("phobos.host.machine.read_memory", lambda: Memory(None, None))
    use = read_machine()
    assert (use.process_bytes, use.free_bytes, use.total_bytes) == (None, None, None)
