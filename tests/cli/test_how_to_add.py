"""The steps of `docs/how-to-add.md` name files that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACES = ("src/phobos", "tests", "docs", ".")


def test_every_file_it_names_exists() -> None:
    text = (ROOT / "docs" / "how-to-add.md").read_text()
    named = {name for name in re.findall(r"`([\w/.-]+\.(?:py|md|yaml))`", text) if "NAME" not in name}
    assert len(named) > 20
    known = {path.name for folder in ("src", "tests", "docs") for path in (ROOT / folder).rglob("*")}
    lost = {
        name
        for name in named
        if not (any((ROOT / place / name).exists() for place in PLACES) if "/" in name else name in known)
    }
    assert lost == set()
