"""The ring of log lines: what comes in, what is given out, from many threads."""

from __future__ import annotations

import logging
import threading

from phobos.printable import printable
from phobos.tui.log import LogRing


def record(message: str, *values: object, exc_info: object = None) -> logging.LogRecord:
    return logging.LogRecord("some.part", logging.WARNING, __file__, 1, message, values, exc_info)  # type: ignore[arg-type]


def test_records_become_lines_with_level_and_source() -> None:
    ring = LogRing()
    ring.handle(record("%d of %s", 3, "four"))
    (line,) = ring.last(5)
    assert (line.text, line.level, line.source) == ("3 of four", logging.WARNING, "some.part")
    assert line.plain().endswith("warning some.part: 3 of four")


def test_tracebacks_follow_line_by_line() -> None:
    ring = LogRing()
    try:
        raise ValueError("made to fail")
    except ValueError as error:
        ring.handle(record("it failed", exc_info=(type(error), error, error.__traceback__)))
    texts = [line.text for line in ring.last(50)]
    assert texts[0] == "it failed"
    assert texts[-1] == "ValueError: made to fail"


def test_a_broken_format_is_shown_as_it_is() -> None:
    ring = LogRing()
    ring.handle(record("%d apples", "many"))
    assert ring.last(1)[0].text == "%d apples"


def test_control_characters_cannot_reach_the_terminal() -> None:
    ring = LogRing()
    ring.add("\x1b[2J\x1b[Hgone\x07\x9b1m\rback")
    assert all(line.text.isprintable() for line in ring.last(9))
    assert "gone" in ring.last(9)[0].text
    assert printable("a\tb") == "a   b"


def test_since_gives_each_line_once() -> None:
    ring = LogRing()
    ring.add("one\ntwo\n\n")
    lines, seen = ring.since(0)
    assert [line.text for line in lines] == ["one", "two"]
    assert ring.since(seen) == ((), seen)
    ring.add("three")
    lines, seen = ring.since(seen)
    assert [line.text for line in lines] == ["three"]


def test_since_skips_what_is_no_longer_held() -> None:
    ring = LogRing(capacity=3)
    for i in range(10):
        ring.add(str(i))
    lines, seen = ring.since(2)
    assert [line.text for line in lines] == ["7", "8", "9"]
    assert seen == 10
    assert ring.last(0) == ()


def test_many_threads_lose_nothing() -> None:
    ring = LogRing(capacity=10_000)

    def write(name: int) -> None:
        for i in range(200):
            ring.add(f"{name} {i}")

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    taken: list[str] = []
    seen = 0
    while any(thread.is_alive() for thread in threads) or len(taken) < seen:
        lines, seen = ring.since(seen)
        taken += [line.text for line in lines]
    lines, seen = ring.since(seen)
    taken += [line.text for line in lines]
    assert sorted(taken) == sorted(f"{n} {i}" for n in range(8) for i in range(200))
