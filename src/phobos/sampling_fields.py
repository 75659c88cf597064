"""The sampling fields, each declared once: type, range, default, flags, help, and its names elsewhere.

`SamplingValues` is the table: an attribute is a field, and its declaration says the rest. The command line's flags, the
chat's `/set`, the request bodies of every protocol, `/props`, a model file's own defaults and the checks of the
documentation read `FIELDS`, which is made from it. How a value changes a draw is the kernel's affair
(`kernels/sampling.py`). `docs/how-to-add.md` tells how to add one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any


@dataclass(frozen=True)
class SamplingField:
    """One field. `llama` is its name on llama-server's own routes where that is another, `file_key` its key in a model
    file (`general.sampling.*`), `without` what happens without it, in words, where the default does not tell."""

    name: str
    low: float
    high: float
    default: float
    flags: tuple[str, ...]
    summary: str
    excludes_low: bool = False
    llama: str | None = None
    file_key: str | None = None
    without: str | None = None

    @property
    def whole(self) -> bool:
        """Whether its values are whole numbers, as its default is one."""
        return isinstance(self.default, int)

    @property
    def flag_name(self) -> str:
        """Its flag without dashes, which is also what the chat's `/set` calls it."""
        return self.flags[0].removeprefix("--")

    @property
    def llama_name(self) -> str:
        """Its name on llama-server's own routes."""
        return self.llama or self.name

    def holds(self, value: float) -> bool:
        """Whether the value is in range; NaN is not."""
        return (self.low < value if self.excludes_low else self.low <= value) and value <= self.high

    def parse(self, text: str) -> float:
        """The value a person wrote. Raises `ValueError` with what it must be, to be read after the field's name."""
        try:
            value = int(text) if self.whole else float(text)
        except ValueError:
            raise ValueError(f"must be a {'whole number' if self.whole else 'number'}, not {text!r}") from None
        if not self.holds(value):
            ends = "above {} and at most {}" if self.excludes_low else "from {} to {}"
            raise ValueError(f"must be {ends.format(self.low, self.high)}, not {text}")
        return value

    def describe_default(self) -> str:
        """What holds where neither a request nor a flag says anything."""
        own = self.without or f"{self.default:g}"
        return own if self.file_key is None else f"the model's own, else {own}"


def _declare(flags: str, summary: str, low: int, high: int, default: float, **further: Any) -> Any:
    declared = SamplingField("", low, high, default, tuple(flags.split()), summary, **further)
    return field(default=None, metadata={"field": declared})


@dataclass(frozen=True)
class SamplingValues:
    """What one place (a request, the flags, a model file) says of each field; `None`: nothing."""

    temperature: float | None = _declare(
        "--temp --temperature", "0 is greedy: always the most likely token.", 0, 2, 0.8, file_key="temp"
    )
    top_k: int | None = _declare(
        "--top-k", "Sample from the N most likely tokens; 0 or -1 for all.", -1, 1 << 31, 40, file_key="top_k"
    )
    top_p: float | None = _declare(
        "--top-p", "Sample from the most likely tokens that sum to X.", 0, 1, 0.95, file_key="top_p"
    )
    min_p: float | None = _declare(
        "--min-p", "Drop tokens less likely than X times the most likely.", 0, 1, 0.05, file_key="min_p"
    )
    typical_p: float | None = _declare("--typical --typical-p", "Locally typical sampling; 1 is off.", 0, 1, 1.0)
    presence_penalty: float | None = _declare(
        "--presence-penalty", "Penalty for tokens that have occurred.", -2, 2, 0.0
    )
    frequency_penalty: float | None = _declare(
        "--frequency-penalty", "Penalty for each time a token has occurred.", -2, 2, 0.0
    )
    repetition_penalty: float | None = _declare(
        "--repeat-penalty --repetition-penalty", "Divides the logit of tokens that have occurred; 1 is off.", 0, 2, 1.0,
        excludes_low=True, llama="repeat_penalty", file_key="penalty_repeat",
    )  # fmt: skip
    seed: int | None = _declare(
        "--seed -s", "Equal seeds give equal answers; -1 is random.", -1, (1 << 63) - 1, -1, without="random"
    )


FIELDS: tuple[SamplingField, ...] = tuple(replace(d.metadata["field"], name=d.name) for d in fields(SamplingValues))

#: The most tokens of an answer: set by flag and `/set` as the fields are; each protocol names and bounds it in its way.
LENGTH = SamplingField("max_tokens", -1, 1 << 31, -1, ("--n-predict", "--predict", "-n"),
    "Longest answer in tokens; -1 for as many as fit.", without="as many as fit")  # fmt: skip


def resolve(*layers: SamplingValues) -> dict[str, Any]:
    """Every field's value by its name: that of the first layer which says one, else Phobos's own."""
    values = {}
    for one in FIELDS:
        said = (getattr(layer, one.name) for layer in layers)
        values[one.name] = next((value for value in said if value is not None), one.default)
    return values
