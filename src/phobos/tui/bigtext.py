"""Large digits and letters in half blocks: three rows of text from a five-dot-high face drawn for this."""

from __future__ import annotations

# Five rows a glyph, top to bottom, as it looks.
_FACE = {
    "0": ("###", "# #", "# #", "# #", "###"),
    "1": (" # ", "## ", " # ", " # ", "###"),
    "2": ("###", "  #", "###", "#  ", "###"),
    "3": ("###", "  #", "###", "  #", "###"),
    "4": ("# #", "# #", "###", "  #", "  #"),
    "5": ("###", "#  ", "###", "  #", "###"),
    "6": ("###", "#  ", "###", "# #", "###"),
    "7": ("###", "  #", "  #", "  #", "  #"),
    "8": ("###", "# #", "###", "# #", "###"),
    "9": ("###", "# #", "###", "  #", "###"),
    ".": (" ", " ", " ", " ", "#"),
    ",": (" ", " ", " ", "#", "#"),
    "–": ("   ", "   ", "###", "   ", "   "),
    " ": (" ", " ", " ", " ", " "),
    "P": ("####", "#  #", "####", "#   ", "#   "),
    "H": ("#  #", "#  #", "####", "#  #", "#  #"),
    "O": ("####", "#  #", "#  #", "#  #", "####"),
    "B": ("### ", "#  #", "### ", "#  #", "####"),
    "S": ("####", "#   ", "####", "   #", "####"),
}
_HALVES = {(False, False): " ", (True, False): "▀", (False, True): "▄", (True, True): "█"}


def big(text: str, spacing: int = 1) -> tuple[str, str, str]:
    """`text` as three rows of equal width; characters without a glyph are left out."""
    glyphs = [_FACE[c] for c in text if c in _FACE]
    dots = [(" " * spacing).join(glyph[row] for glyph in glyphs) for row in range(5)]
    dots.append(" " * len(dots[0]))
    rows = [
        "".join(_HALVES[above == "#", below == "#"] for above, below in zip(dots[row], dots[row + 1], strict=True))
        for row in (0, 2, 4)
    ]
    return rows[0], rows[1], rows[2]
