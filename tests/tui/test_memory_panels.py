"""The memory of conversations, as the panels tell it."""

from __future__ import annotations

from phobos.counters import CacheInfo, Counters, ModelInfo, SlotInfo
from phobos.tui.panels.caches import CachesPanel
from phobos.tui.panels.memory import context_fill, memory_parts
from phobos.tui.rates import RateMeter
from phobos.tui.theme import DARK, LIGHT, SIXTEEN


def test_the_memory_of_conversations_is_told() -> None:
    counters = Counters(
        model=ModelInfo("m", "llama", "Q4_0", 1, 4096, 2, 300, "plain", 1000, 40_000_000, 100),
        slots=(SlotInfo(0, 100, True, 0.0), SlotInfo(1, 0, False, 0.0)),
    )
    plain = counters.snapshot()
    assert ("cache", 40_000_000, DARK.cache) in memory_parts(plain, DARK)
    counters.cache = CacheInfo(1_000_000, 4_000_000, 2_500_000, 8_000_000, n_archived=3, n_files=12)
    told = counters.snapshot()
    parts = {name: n_bytes for name, n_bytes, _ in memory_parts(told, DARK)}
    assert (parts["cache"], parts["archive"]) == (1_000_000, 2_500_000)
    (fill,) = context_fill(told, 40, DARK)
    assert fill.plain.endswith(" 1 MB / 4 MB")
    lines = [line.plain for line in CachesPanel().draw(RateMeter().observe(told), 40, 10, DARK)]
    assert any(line.startswith("archive") and line.endswith("3 in 2.50 MB · 12 on disk") for line in lines)
    assert not any("archive" in line.plain for line in CachesPanel().draw(RateMeter().observe(plain), 40, 10, DARK))


def test_where_slots_do_not_fit_those_in_use_are_shown_and_then_those_used_last() -> None:
    slots = [SlotInfo(i, 50, busy=i == 6, last_used_s=float(i % 4)) for i in range(8)]
    snapshot = Counters(slots=tuple(slots)).snapshot()

    def shown(height: int) -> list[str]:
        lines = CachesPanel().draw(RateMeter().observe(snapshot), 40, height, DARK)[1:]
        return [" ".join(line.plain.split()[:3]) for line in lines]

    assert shown(5) == ["○ slot 3", "● slot 6", "○ slot 7", "… 5 slots"]
    assert shown(9)[0] == "○ slot 0" and shown(20) == shown(9)
    assert shown(2) == ["… 8 slots"] and shown(1) == []


def test_each_part_of_the_memory_has_a_colour_of_its_own() -> None:
    for palette in (DARK, LIGHT, SIXTEEN):
        colours = [palette.weights, palette.cache, palette.archive, palette.scratch, palette.process, palette.elsewhere]
        assert len(set(colours)) == len(colours)
