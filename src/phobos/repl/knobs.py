"""What `/set` sets: the sampling of the answers that follow, by the names of the command line's flags."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import Any

from phobos.chat.messages import SamplingParams
from phobos.errors import UsageError
from phobos.sampling_fields import FIELDS, LENGTH
from phobos.settings import SamplingDefaults

KNOBS = {field.flag_name: field for field in (*FIELDS, LENGTH)}
RESET = ("default", "off", "none")


def set_knob(sampling: SamplingDefaults, name: str, text: str) -> SamplingDefaults:
    """The values with one changed; `default` gives it back to the model. `UsageError` says what may be set."""
    key = name.lower().replace("_", "-")
    knob = KNOBS.get(key)
    if knob is None:
        near = difflib.get_close_matches(key, KNOBS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"available are {', '.join(KNOBS)}"
        raise UsageError(f"unknown setting {name!r}: {hint}")
    value: Any = None  # of the field's own type: whole numbers for whole knobs
    if text.lower() not in RESET:
        try:
            value = knob.parse(text)
        except ValueError as error:
            raise UsageError(f"{key} {error}: or write default") from error
    return replace(sampling, **{knob.name: None if knob is LENGTH and value == -1 else value})


def show_value(sampling: SamplingDefaults, name: str) -> str:
    """What a knob stands at."""
    value = getattr(sampling, KNOBS[name].name)
    return "default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def sampling_params(sampling: SamplingDefaults) -> SamplingParams:
    """The values as a request carries them."""
    return SamplingParams(**{field.name: getattr(sampling, field.name) for field in FIELDS})
