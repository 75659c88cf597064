"""What `/set` sets: the sampling of the answers that follow, by the names of the command line's flags."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import Any

from phobos.chat.messages import SamplingParams
from phobos.errors import UsageError
from phobos.settings import SamplingDefaults


@dataclass(frozen=True)
class Knob:
    """One value: its field in `SamplingDefaults`, its range, and what it does."""

    field: str
    low: float
    high: float
    summary: str
    whole: bool = False


KNOBS = {
    "temp": Knob("temperature", 0, 2, "0 always takes the likeliest token"),
    "top-k": Knob("top_k", 0, 1 << 31, "draw among so many of the likeliest; 0 for all", whole=True),
    "top-p": Knob("top_p", 0, 1, "draw among the likeliest that sum to this"),
    "min-p": Knob("min_p", 0, 1, "leave out tokens less likely than this share of the likeliest"),
    "typical": Knob("typical_p", 0, 1, "locally typical sampling"),
    "presence-penalty": Knob("presence_penalty", -2, 2, "against tokens that occurred"),
    "frequency-penalty": Knob("frequency_penalty", -2, 2, "against tokens, by how often they occurred"),
    "repeat-penalty": Knob("repetition_penalty", 0.01, 2, "divides the score of tokens that occurred; 1 is off"),
    "seed": Knob("seed", -1, (1 << 63) - 1, "equal seeds give equal answers; -1 is random", whole=True),
    "n-predict": Knob("max_tokens", -1, 1 << 31, "most tokens of an answer; -1 for as many as fit", whole=True),
}
RESET = ("default", "off", "none")


def set_knob(sampling: SamplingDefaults, name: str, text: str) -> SamplingDefaults:
    """The values with one changed; `default` gives it back to the model. `UsageError` says what may be set."""
    key = name.lower().replace("_", "-")
    knob = KNOBS.get(key)
    if knob is None:
        near = difflib.get_close_matches(key, KNOBS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(KNOBS)}"
        raise UsageError(f"there is nothing called {name} to set: {hint}")
    value: Any = None  # of the field's own type: whole numbers for whole knobs
    if text.lower() in RESET:
        return replace(sampling, **{knob.field: value})
    try:
        value = int(text) if knob.whole else float(text)
    except ValueError as error:
        kind = "a whole number" if knob.whole else "a number"
        raise UsageError(f"{key} is {kind}, not {text!r}: or write default") from error
    if not knob.low <= value <= knob.high:
        raise UsageError(f"{key} goes from {knob.low:g} to {knob.high:g}, not {text}")
    if knob.whole and value == -1:
        value = None
    return replace(sampling, **{knob.field: value})


def show_value(sampling: SamplingDefaults, name: str) -> str:
    """What a knob stands at."""
    value = getattr(sampling, KNOBS[name].field)
    return "default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def sampling_params(sampling: SamplingDefaults) -> SamplingParams:
    """The values as a request carries them."""
    return SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        typical_p=sampling.typical_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        seed=sampling.seed,
    )
