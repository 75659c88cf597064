"""Stop strings: nothing of one gets out, however the text is cut."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from phobos.chat.events import TokenLogprob
from phobos.engine.stops import Cell, StopMatcher

texts = st.text("ab \n", max_size=24)
stops = st.lists(st.text("ab \n", min_size=1, max_size=4), max_size=4)


def entry(text: str) -> TokenLogprob:
    return TokenLogprob(1, text, text.encode(), -1.0, (TokenLogprob(1, text, text.encode(), -1.0),))


def run(
    pieces: list[str], stop: list[str], *, ignore_leading: bool = False, told: bool = False
) -> tuple[list[Cell], str | None]:
    matcher = StopMatcher(stop, ignore_leading=ignore_leading)
    out: list[Cell] = []
    for piece in pieces:
        out += matcher.push(Cell(piece, entry(piece) if told else None))
        if matcher.matched is not None:
            return out, matcher.matched
    return out + matcher.flush(), None


def run_slowly(text: str, stop: list[str], *, ignore_leading: bool = False) -> tuple[str, str | None]:
    """Character by character over the whole text."""
    seen = ""
    for char in text:
        seen += char
        ending = [s for s in stop if seen.endswith(s)]
        if ending:
            found = max(ending, key=len)
            before = seen[: -len(found)]
            if ignore_leading and not before.strip():
                seen = before
                continue
            return before, found
    return seen, None


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in itertools.pairwise(edges)]


@given(texts, stops, st.lists(st.integers(0, 24), max_size=8), st.booleans(), st.booleans())
def test_however_the_text_is_cut_the_same_comes_out(
    text: str, stop: list[str], places: list[int], ignore_leading: bool, told: bool
) -> None:
    cells, matched = run(cut(text, places), stop, ignore_leading=ignore_leading, told=told)
    expected, expected_stop = run_slowly(text, stop, ignore_leading=ignore_leading)
    assert ("".join(cell.text for cell in cells), matched) == (expected, expected_stop)
    if told:
        assert all(cell.entry is not None and cell.entry.text == cell.text for cell in cells)


@given(texts, stops, st.booleans())
def test_what_is_delivered_early_is_never_taken_back(text: str, stop: list[str], told: bool) -> None:
    matcher, out = StopMatcher(stop), ""
    for char in text:
        out += "".join(cell.text for cell in matcher.push(Cell(char, entry(char) if told else None)))
        assert run_slowly(text, stop)[0].startswith(out)


@given(texts, stops)
def test_nothing_is_held_back_without_need(text: str, stop: list[str]) -> None:
    matcher, out = StopMatcher(stop), ""
    for i, char in enumerate(text):
        out += "".join(cell.text for cell in matcher.push(Cell(char)))
        if matcher.matched is not None:
            return
        held = text[: i + 1][len(out) :]
        assert held == "" or any(s.startswith(held) and s != held for s in stop)


def test_a_stop_string_over_ten_tokens() -> None:
    cells, matched = run(list("ABCDEFGHIJ"), ["DEFGHIJ"])
    assert [cell.text for cell in cells] == ["A", "B", "C"]
    assert matched == "DEFGHIJ"


def test_an_entry_is_cut_where_the_stop_string_begins_in_its_token() -> None:
    cells, matched = run(["Hel", "lo wor", "ld"], ["world"], told=True)
    assert matched == "world"
    assert [cell.text for cell in cells] == ["Hel", "lo "]
    last = cells[-1].entry
    assert last is not None
    assert (last.text, last.data, last.top[0].text) == ("lo ", b"lo ", "lo ")


def test_an_entry_waits_whole_while_its_end_is_suspect() -> None:
    matcher = StopMatcher(["DEF"])
    assert matcher.push(Cell("loD", entry("loD"))) == []
    assert [cell.text for cell in matcher.push(Cell("x", entry("x")))] == ["loD", "x"]


def test_cells_without_text_go_out_with_the_character_they_lead_to() -> None:
    matcher = StopMatcher(["zz"])
    assert matcher.push(Cell("", entry(""))) == []
    assert [cell.text for cell in matcher.push(Cell("é", entry("é")))] == ["", "é"]


def test_leading_stop_strings_are_dropped_until_the_answer_begins() -> None:
    assert run(["<u>", " <u>", "Hi<u>"], ["<u>"], ignore_leading=True)[1] == "<u>"
    cells, _ = run(["<u>", " <u>", "Hi<u>"], ["<u>"], ignore_leading=True)
    assert "".join(cell.text for cell in cells) == " Hi"


def test_empty_stop_strings_stop_nothing() -> None:
    assert run(["abc"], [""]) == ([Cell("abc")], None)
