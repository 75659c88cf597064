"""Numbers as the panels write them: short, of steady width, with a dash where a value is unknown."""

from __future__ import annotations

UNKNOWN = "–"


def bytes_text(n_bytes: int | None) -> str:
    """`98.4 MB`, `1.12 GB`; decimal units as drives and model hubs use them."""
    if n_bytes is None:
        return UNKNOWN
    for limit, unit in ((1e3, "B"), (1e6, "kB"), (1e9, "MB"), (1e12, "GB")):
        if abs(n_bytes) < limit:
            return f"{_three(n_bytes / (limit / 1e3))} {unit}"
    return f"{_three(n_bytes / 1e12)} TB"


def count_text(n: int | None) -> str:
    """`134.5 M`, `1.54 B` for parameters."""
    if n is None:
        return UNKNOWN
    for limit, unit in ((1e3, ""), (1e6, " k"), (1e9, " M")):
        if n < limit:
            return f"{_three(n / (limit / 1e3))}{unit}"
    return f"{_three(n / 1e9)} B"


def whole_text(n: int | None) -> str:
    """`49,152`."""
    return UNKNOWN if n is None else f"{n:,}"


def rate_text(per_s: float | None) -> str:
    """A rate in at most four digits: `9.87`, `41.2`, `312`, `2,410`."""
    if per_s is None:
        return UNKNOWN
    if per_s < 9.995:
        return f"{per_s:.2f}"
    return f"{per_s:.1f}" if per_s < 99.95 else f"{per_s:,.0f}"


def share_text(share: float | None) -> str:
    """`87%`."""
    return UNKNOWN if share is None else f"{share * 100:.0f}%"


def seconds_text(seconds: float | None) -> str:
    """`38 ms`, `2.41 s`, `3:07`."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}" if seconds < 3600 else uptime_text(seconds)


def uptime_text(seconds: float) -> str:
    """`0:03:12`, `2d 4:00:01`."""
    days, rest = divmod(int(max(0.0, seconds)), 86400)
    clock = f"{rest // 3600}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}d {clock}" if days else clock


def _three(value: float) -> str:
    """Three significant digits, without a fraction from 100 on."""
    if value == int(value) and value < 1000:
        return str(int(value))
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
