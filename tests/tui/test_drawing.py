"""Numbers, plots, large digits, colours and the planet: pure functions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.color import Color
from textual.theme import BUILTIN_THEMES

from dashboard_moments import CARD, decode
from phobos.counters import Counters
from phobos.host.nvml import CardUse
from phobos.tui.bigtext import big
from phobos.tui.format import bytes_text, count_text, rate_text, seconds_text, share_text, uptime_text
from phobos.tui.panels.caches import CachesPanel
from phobos.tui.panels.card import CardPanel
from phobos.tui.planet import Sky
from phobos.tui.plot import area, meter, nice_ceiling, stacked
from phobos.tui.rates import Moment, RateMeter
from phobos.tui.theme import DARK, LIGHT, NIGHT, NOON, PLAIN, SIXTEEN, THEMES, choose_theme, palette_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (bytes_text(None), "–"),
        (bytes_text(0), "0 B"),
        (bytes_text(98_362_432), "98.4 MB"),
        (bytes_text(1_117_320_768), "1.12 GB"),
        (bytes_text(3 * 10**12), "3 TB"),
        (count_text(134_515_008), "135 M"),
        (count_text(1_543_714_304), "1.54 B"),
        (rate_text(None), "–"),
        (rate_text(9.871), "9.87"),
        (rate_text(99.96), "100"),
        (rate_text(2410.4), "2,410"),
        (seconds_text(0.038), "38 ms"),
        (seconds_text(2.413), "2.41 s"),
        (seconds_text(59.96), "0:59"),
        (seconds_text(187.0), "3:07"),
        (seconds_text(7200.0), "2:00:00"),
        (share_text(0.874), "87%"),
        (uptime_text(192.0), "0:03:12"),
        (uptime_text(2 * 86400 + 14401), "2d 4:00:01"),
    ],
)
def test_numbers(text: str, expected: str) -> None:
    assert text == expected


@given(st.floats(1e-3, 1e9))
def test_scale_holds_the_value_and_wastes_at_most_half(value: float) -> None:
    assert value <= nice_ceiling(value) * 1.002
    assert nice_ceiling(value) <= 2.001 * value


@given(st.lists(st.floats(0, 1e4), max_size=90), st.integers(0, 40), st.integers(1, 8))
def test_area_has_its_size_and_shows_every_value_above_zero(values: list[float], width: int, height: int) -> None:
    rows = area(values, width, height, 1e4, ["red"] * height, "blue")
    assert [row.cell_length for row in rows] == [width] * height
    shown = values[-2 * width :] if width else []
    for i, value in enumerate(reversed(shown)):
        cell = ord(rows[-1].plain[width - 1 - i // 2]) - 0x2800
        filled = cell & (0x80 if i % 2 == 0 else 0x40)
        assert value <= 0 or filled


def test_area_is_as_high_as_the_value() -> None:
    rows = area([10.0, 5.0], 1, 2, 10.0, ["red", "red"], "blue")
    assert [ord(row.plain) - 0x2800 for row in rows] == [0x47, 0x47 | 0xB8]


@given(st.floats(0, 1), st.integers(1, 60))
def test_meter_and_stack_have_their_width(share: float, width: int) -> None:
    ramp = ("red",) * 3
    assert meter(share, width, ramp, "blue").cell_length == width
    assert stacked([(share, "red"), (1 - share, "green")], width, "blue").cell_length == width


def test_a_small_share_is_visible_and_none_is_not() -> None:
    assert meter(0.001, 10, ("red",), "blue").plain[0] == "╸"
    assert not [span for span in meter(0.0, 10, ("red",), "blue").spans if span.style == "red"]
    assert stacked([(1e-9, "red"), (0.5, "green")], 10, "blue").spans[0].style == "red"


def test_large_digits_are_three_rows_of_one_width() -> None:
    rows = big("1,204.5")
    assert len({len(row) for row in rows}) == 1
    assert big("8")[0] == "█▀█"


@pytest.mark.parametrize(
    ("wanted", "colours", "hint", "theme"),
    [
        (None, "truecolor", "", NIGHT),
        (None, "256", "0;15", NOON),
        (None, "256", "15;0", NIGHT),
        ("light", "truecolor", "15;0", NOON),
        ("dark", "truecolor", "0;15", NIGHT),
        ("light", "standard", "", PLAIN),
        (None, None, "", NIGHT),
    ],
)
def test_theme_to_start_with(wanted: str | None, colours: str | None, hint: str, theme: str) -> None:
    assert choose_theme(wanted, colours, {"COLORFGBG": hint} if hint else {}) == theme


def contrast(a: str, b: str) -> float:
    """The contrast ratio of WCAG 2."""

    def light(name: str) -> float:
        parts = [value / 255 for value in Color.parse(name).rgb]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(a), light(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("palette", [DARK, LIGHT])
def test_text_can_be_read_on_its_background(palette: object) -> None:
    for name in ("text", "dim", "title", "accent", "prompt", "decode", "good", "warn", "error"):
        assert contrast(getattr(palette, name), palette.background) >= 4.5, name  # type: ignore[attr-defined]


def test_every_theme_has_a_palette_of_colours_textual_knows() -> None:
    for theme in (*THEMES, *BUILTIN_THEMES.values()):
        palette = palette_of(theme)
        for name in ("background", "text", "dim", "faint", "prompt", "decode", "weights", "elsewhere"):
            Color.parse(getattr(palette, name))
        assert len(palette.ramp(palette.decode, 5)) == 5


def test_sixteen_colours_use_only_those_of_the_terminal() -> None:
    for name, value in vars(SIXTEEN).items():
        assert not isinstance(value, str) or value.startswith("ansi_"), name
    for row in Sky(80, 24).frame(0.6, SIXTEEN):
        assert all(str(span.style).startswith("ansi_") for span in row.spans)


@pytest.mark.parametrize("size", [(60, 18), (80, 24), (200, 60)])
def test_the_moon_passes_from_behind_mars_to_its_front(size: tuple[int, int]) -> None:
    sky = Sky(*size)
    for along in (0.0, 0.3, 0.6, 1.0):
        rows = sky.frame(along, DARK)
        assert [row.cell_length for row in rows] == [size[0]] * size[1]
    first, last = sky.moon(0.0), sky.moon(1.0)
    assert last.x < sky.mars.x < first.x
    assert last.radius > first.radius
    assert sky.frame(0.5, DARK) == Sky(*size).frame(0.5, DARK)


def test_guessed_tokens_show_once_there_are_any() -> None:
    counters = Counters()
    draw = lambda: [line.plain for line in CachesPanel().draw(RateMeter().observe(counters.snapshot()), 40, 10, DARK)]  # noqa: E731
    assert not any("guessed" in line for line in draw())
    counters.draft_tokens, counters.draft_tokens_accepted = 1500, 1230
    assert draw()[-1].split() == ["guessed", "82%", "of", "1,500", "right"]


def test_readings_of_cards() -> None:
    """One card's as meters, several cards' a line each; what is unknown is left out."""
    full = CardUse(0.87, 12_100_000_000, 24_000_000_000, 63, 211.4, 450.0)
    card = replace(CARD, kind="cuda", name="A Card", features="mma")

    def draw(*uses: CardUse) -> list[str]:
        moment = Moment(replace(decode(), card=card, card_uses=uses))
        lines = CardPanel.draw(None, moment, 60, 12, DARK)  # type: ignore[arg-type]
        return [" ".join(line.plain.split()) for line in lines]

    lines = draw(full)
    for label, value in (("card", "87%"), ("VRAM", "12.1 GB of 24 GB"), ("power", "211 of 450 W"), ("heat", "63 °C")):
        assert [line for line in lines if line.startswith(label + " ") and line.endswith(value)], (label, lines)
    assert not [line for line in lines if line.startswith("threads")]
    several = draw(full, CardUse(), CardUse(load=0.0))
    assert [line for line in several if line.startswith("card ")] == [
        "card 1 87% · 12.1 GB · 63 °C · 211 W",
        "card 2 –",
        "card 3 0%",
    ]
    for label in ("card ", "VRAM", "power", "heat"):
        assert not [line for line in draw(CardUse()) + draw() if line.startswith(label)], "nothing is known"


@pytest.mark.parametrize(
    ("now", "limit", "shown"),
    [
        (20.0, 44.0, "20.0 of 44.0 GB/s"),
        (20.0, None, "memory 20.0 GB/s"),
        (20.0, 3.4, "memory 20.0 GB/s"),  # measured on a busy machine: no limit
        (None, 44.0, "memory limit 44.0 GB/s"),
        (None, None, None),
    ],
)
def test_bandwidth_and_its_limit(now: float | None, limit: float | None, shown: str | None) -> None:
    moment = Moment(replace(decode(), card=replace(CARD, bandwidth_limit_gbs=limit)), bandwidth_gbs=now)
    lines = [" ".join(line.plain.split()) for line in CardPanel.draw(None, moment, 40, 8, DARK)]  # type: ignore[arg-type]
    found = [line for line in lines if "memory" in line]
    assert len(found) == (shown is not None)
    assert shown is None or shown in found[0]
