"""Colours: Mars at night, Mars at noon, and sixteen colours, as Textual themes and as the palette panels draw with.

A `Palette` holds colour names Textual understands. Under any other theme (the command palette offers Textual's)
it is made from that theme's own colours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from textual.color import Color
from textual.theme import BUILTIN_THEMES, Theme


@dataclass(frozen=True)
class Palette:
    """The colours by what they mean."""

    background: str
    text: str
    dim: str
    faint: str  # rails, empty parts of meters
    title: str
    accent: str
    prompt: str
    decode: str
    good: str
    warn: str
    error: str
    weights: str
    cache: str
    archive: str
    scratch: str
    process: str
    elsewhere: str
    dark: bool = True
    sixteen: bool = False

    def ramp(self, colour: str, n_steps: int, start: float = 0.5) -> tuple[str, ...]:
        """`n_steps` colours rising from a part `start` of `colour` over the background to all of it."""
        return _ramp(self.background, colour, n_steps, start, self.sixteen)


DARK = Palette(
    background="#100b0d",
    text="#f0e4da",
    dim="#a08a7d",
    faint="#3a2a27",
    title="#e8a27c",
    accent="#ff7a45",
    prompt="#5cc8d0",
    decode="#ff7a45",
    good="#93cf7c",
    warn="#f4bd50",
    error="#ff5d5a",
    weights="#d8613a",
    cache="#edb64a",
    archive="#b48ac0",
    scratch="#8dbd76",
    process="#6fa3c7",
    elsewhere="#7d6760",
)
LIGHT = Palette(
    background="#fbf6f0",
    text="#2b1d18",
    dim="#7d6557",
    faint="#e6d8cb",
    title="#9c3d19",
    accent="#c4481b",
    prompt="#08717d",
    decode="#c4481b",
    good="#3d7d2c",
    warn="#8a5700",
    error="#c01f2e",
    weights="#c4481b",
    cache="#c98a0c",
    archive="#86529a",
    scratch="#568c3f",
    process="#3878a4",
    elsewhere="#a8958a",
    dark=False,
)
SIXTEEN = Palette(
    background="ansi_default",
    text="ansi_default",
    dim="ansi_default",
    faint="ansi_bright_black",
    title="ansi_yellow",
    accent="ansi_bright_red",
    prompt="ansi_cyan",
    decode="ansi_bright_red",
    good="ansi_green",
    warn="ansi_yellow",
    error="ansi_red",
    weights="ansi_red",
    cache="ansi_yellow",
    archive="ansi_cyan",
    scratch="ansi_green",
    process="ansi_blue",
    elsewhere="ansi_magenta",
    sixteen=True,
)

NIGHT, NOON, PLAIN = "phobos-night", "phobos-noon", "phobos-16"


def _theme(name: str, palette: Palette, surface: str, border: str) -> Theme:
    return Theme(
        name=name,
        primary=palette.accent,
        secondary=palette.prompt,
        accent=palette.accent,
        warning=palette.warn,
        error=palette.error,
        success=palette.good,
        foreground=palette.text,
        background=palette.background,
        surface=surface,
        panel=surface,
        dark=palette.dark,
        ansi=palette.sixteen,
        variables={
            **(BUILTIN_THEMES["ansi-dark"].variables if palette.sixteen else {}),
            "panel-border": border,
            "panel-title": palette.title,
            "dim": palette.dim,
            "faint": palette.faint,
            "scrollbar": border,
            "scrollbar-hover": palette.accent,
            "scrollbar-active": palette.accent,
            "scrollbar-background": palette.background,
            "scrollbar-background-hover": palette.background,
            "scrollbar-background-active": palette.background,
            "scrollbar-corner-color": palette.background,
        },
    )


THEMES = (
    _theme(NIGHT, DARK, "#1a1214", "#4d302a"),
    _theme(NOON, LIGHT, "#f3e9df", "#d6b7a4"),
    _theme(PLAIN, SIXTEEN, "ansi_default", "ansi_bright_black"),
)
_PALETTES = {NIGHT: DARK, NOON: LIGHT, PLAIN: SIXTEEN}


def choose_theme(wanted: str | None, color_system: str | None, environ: Mapping[str, str]) -> str:
    """The theme to start with.

    `wanted` is "dark", "light" or `None`: then the terminal's own hint (`COLORFGBG`) decides, else dark.
    `color_system` is Rich's word for what the terminal shows; sixteen colours get the theme made of those.
    """
    if color_system == "standard":
        return PLAIN
    if wanted is None:
        background = environ.get("COLORFGBG", "").rpartition(";")[2]
        wanted = "light" if background in ("7", "15") else "dark"
    return NOON if wanted == "light" else NIGHT


def palette_of(theme: Theme) -> Palette:
    """The palette to draw with under `theme`."""
    own = _PALETTES.get(theme.name)
    if own is not None:
        return own
    if theme.ansi:
        return SIXTEEN
    source = DARK if theme.dark else LIGHT
    made = theme.to_color_system().generate()
    background, text = made["background"], made["foreground"]
    return replace(
        source,
        background=background,
        text=text,
        dim=_blend(background, text, 0.6),
        faint=_blend(background, text, 0.18),
        title=made["primary"],
        accent=made["primary"],
        prompt=made["secondary"],
        decode=made["accent"],
        good=made["success"],
        warn=made["warning"],
        error=made["error"],
        weights=made["primary"],
        cache=made["warning"],
        archive=_blend(made["warning"], made["secondary"], 0.5),
        scratch=made["success"],
        process=made["secondary"],
        elsewhere=_blend(background, text, 0.4),
    )


def _blend(low: str, high: str, share: float) -> str:
    return Color.parse(low).blend(Color.parse(high), share).hex


@lru_cache(256)
def _ramp(background: str, colour: str, n_steps: int, start: float, sixteen: bool) -> tuple[str, ...]:
    if sixteen or n_steps < 2:
        return (colour,) * n_steps
    return tuple(_blend(background, colour, start + (1 - start) * i / (n_steps - 1)) for i in range(n_steps))
