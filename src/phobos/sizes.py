"""Bytes, counts and times as people write and read them."""

from __future__ import annotations

import re

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)


def format_bytes(n_bytes: float) -> str:
    """Decimal units with three figures: `98.4 MB`."""
    value, unit = float(n_bytes), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    if unit == 0:
        return f"{value:.0f} B"
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {_UNITS[unit]}"


def format_count(n: float) -> str:
    """A rounded count: `135M`, `1.54B`, `8192`."""
    for limit, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if n >= limit:
            value = n / limit
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}{suffix}"
    return f"{n:.0f}"


def format_seconds(seconds: float) -> str:
    """A duration: `0.31 s`, `12 s`, `3 min 05 s`, `2 h 05 min`."""
    if seconds < 9.95:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def parse_bytes(text: str) -> int:
    """The bytes meant by `4194304`, `4M`, `4MiB` (powers of 1024) or `4MB` (powers of 1000); `ValueError` else."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size: write bytes, or a number with K, M or G")
    number, prefix, binary = match.groups()
    decimal = text.strip().lower().endswith("b") and not binary
    step = 1000 if decimal else 1024
    exponent = " kmgt".index(prefix.lower()) if prefix else 0
    return round(float(number) * float(step**exponent))
