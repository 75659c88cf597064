"""Prompts and stop strings, as several protocols take them."""

from __future__ import annotations

from typing import Any

from phobos.errors import RequestError

MAX_STOPS = 16
MAX_PROMPTS = 128


def parse_stops(value: str | list[str] | None, field: str = "stop") -> tuple[str, ...]:
    """The stop strings. Raises `RequestError` naming the field."""
    stops = (value,) if isinstance(value, str) else tuple(value or ())
    if len(stops) > MAX_STOPS:
        raise RequestError(f"{field} holds {len(stops)} strings, and at most {MAX_STOPS} are taken", param=field)
    if "" in stops:
        raise RequestError(f"{field} holds an empty string", param=field)
    return stops


def parse_prompts(value: str | list[Any]) -> tuple[str | tuple[int, ...], ...]:
    """One prompt or several: text, ids, or a list of either."""
    if isinstance(value, str):
        return (value,)
    if not value:
        raise RequestError("prompt is an empty list", param="prompt")
    if all(isinstance(item, int) for item in value):
        return (tuple(value),)
    if any(isinstance(item, int) for item in value):
        raise RequestError("prompt mixes token ids with other kinds", param="prompt")
    if len(value) > MAX_PROMPTS:
        raise RequestError(f"prompt holds {len(value)} prompts, and at most {MAX_PROMPTS} are taken", param="prompt")
    if any(item == [] for item in value):
        raise RequestError("prompt holds an empty list", param="prompt")
    return tuple(item if isinstance(item, str) else tuple(item) for item in value)
