"""From a template to its dialect, or to none: a form counts only where it reads back every call that was rendered."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from phobos.chat.dialects.derived import markup
from phobos.chat.dialects.derived.probes import (
    FIRST,
    MARKER,
    ODD,
    THOUGHT,
    TOOLS,
    VALUES,
    Render,
    Turn,
    call_of,
    common_begin,
    cut_at_end_of_turn,
    render_calls,
    render_text,
)
from phobos.chat.dialects.dialect import THINK, CallForm, Dialect, Reasoning
from phobos.chat.dialects.scanner import Content, Scanner

NAME = "derived"
_FORMS = (markup.read_object_form, markup.read_named_form, markup.read_argument_form)


def derive_dialect(render: Render, source: str, known: Iterable[Reasoning] = ()) -> Dialect | None:
    """The dialect of the template that `render` runs, which returns None where it refuses; `source` is its text, and
    `known` are marks of thoughts to look for in it where it drops those of past turns. None where nothing that was
    found reads its calls."""
    around = render_text(render)
    one = render_calls(render, call_of(0, VALUES))
    if around is None or one is None:
        return None
    found = _find_reasoning(render, around[0], source)
    reasoning = found or next((each for each in known if each.begin in source and each.end in source), THINK)

    def bare(turn: Turn | None) -> Turn | None:
        return None if turn is None else Turn(_drop_empty(turn.text, reasoning), turn.calls)

    samples = markup.Samples(
        Turn(_drop_empty(one.text, reasoning), one.calls),
        bare(render_calls(render, call_of(0, VALUES), call_of(1, VALUES))),
        bare(render_calls(render, call_of(0, {}))),
        bare(render_calls(render, call_of(0, {"qaq": ODD}))),
        _drop_empty(around[0], reasoning),
        around[1],
    )
    for read_form in _FORMS:
        form = read_form(samples)
        if form is not None and _reads_back(form, samples):
            return Dialect(NAME, form, lambda template: False, reasoning)
    return None


def _drop_empty(text: str, reasoning: Reasoning) -> str:
    """Without the blocks of no thoughts that templates put before answers."""
    return re.sub(rf"{re.escape(reasoning.begin)}\s*{re.escape(reasoning.end)}\s*", "", text)


def _reads_back(form: CallForm, samples: markup.Samples) -> bool:
    """Whether the form reads all samples, each from where it is an answer to where the turn ends."""
    turns = (samples.one, samples.two, samples.empty, samples.odd)
    return all(_reads(form, turn, samples) for turn in turns if turn is not None)


def _reads(form: CallForm, turn: Turn, samples: markup.Samples) -> bool:
    """Behind the calls there may be what ends the turn, where that is not known."""
    answer = cut_at_end_of_turn(turn.text[common_begin(turn.text, samples.before) :], samples.behind)
    scanner = Scanner(Dialect(NAME, form, lambda template: False), TOOLS)
    pieces = [*scanner.push(answer), *scanner.flush()]
    while pieces and isinstance(pieces[-1], Content):
        pieces.pop()
    said = "".join(piece.text for piece in pieces if isinstance(piece, Content))
    try:
        found = [(name, json.loads(arguments)) for name, arguments in scanner.calls]
    except ValueError:
        return False
    return not said.strip() and found == [(call.name, json.loads(call.arguments)) for call in turn.calls]


def _find_reasoning(render: Render, header: str, source: str) -> Reasoning | None:
    """What stands round thoughts before a call; None where the template keeps none."""
    turn = render_calls(render, call_of(0, VALUES), reasoning=THOUGHT)
    if turn is None or THOUGHT not in turn.text:
        return None
    before, _, behind = turn.text.partition(THOUGHT)
    behind = behind.partition(FIRST)[0]
    opening = list(MARKER.finditer(before))
    closing = MARKER.match(behind.lstrip())
    if not opening or closing is None:
        return None
    begin, end = opening[-1].group(), closing.group()
    if begin == end or header.rstrip().endswith(begin) or begin not in source or end not in source:
        return None
    rest = behind.lstrip()[len(end) :]
    return Reasoning(
        begin,
        end,
        after_begin=before[opening[-1].end() :],
        before_end=behind[: len(behind) - len(behind.lstrip())],
        after_end=rest[: len(rest) - len(rest.lstrip())],
    )
