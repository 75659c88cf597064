"""Finding spellings: leftmost, longest, and the same as looking at every position."""

from hypothesis import given, settings
from hypothesis import strategies as st

from phobos.gguf.spellings import SpellingFinder


def find_naively(spellings: list[str], text: str) -> list[tuple[int, int]]:
    found, at = [], 0
    while at < len(text):
        best = max((len(s) for s in spellings if s and text.startswith(s, at)), default=0)
        if best:
            found.append((at, at + best))
        at += max(best, 1)
    return found


WORDS = st.text(alphabet="<|ab> ", max_size=5)


@settings(max_examples=500, deadline=None)
@given(st.lists(WORDS, max_size=6), st.text(alphabet="<|ab> ", max_size=30))
def test_equals_the_naive_search(spellings: list[str], text: str) -> None:
    finder = SpellingFinder(spellings)
    assert list(finder.find(text)) == find_naively(spellings, text)
    assert "".join(piece for piece, _ in finder.split(text)) == text
    assert all(piece in finder.spellings for piece, is_spelling in finder.split(text) if is_spelling)


def test_the_longest_wins() -> None:
    finder = SpellingFinder(["<a>", "<a>b", "\n", "\n\n"])
    assert list(finder.split("x<a>b\n\n\n")) == [("x", False), ("<a>b", True), ("\n\n", True), ("\n", True)]
