"""Text of others (model files, clients, file names) made safe to show: nothing of it commands a terminal.

Names and sentences are one line of characters that can be seen. Texts of models keep their line breaks, tabs and the
joiners that writing systems need, and lose control characters only.
"""

from __future__ import annotations

import re

STAND_IN = "\N{REPLACEMENT CHARACTER}"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """A line without control characters and others that cannot be seen; tabs become spaces."""
    text = text.expandtabs(4)
    return text if text.isprintable() else "".join(c if c.isprintable() else STAND_IN for c in text)


def clean(text: str) -> str:
    """A text without control characters; tabs and line breaks stay."""
    return _CONTROL.sub(lambda found: "" if found[0] == "\r" else STAND_IN, text)
