"""Calls in no family's syntax: an answer that is nothing but JSON objects of an offered tool's name and arguments.

Some models write calls so whatever their template says, bare or in a fence, one or several, in a row or in a list. As
nothing marks such a call, only the answer's end makes one of it: until then its text is held back, but no longer than
it can still become one. Objects with other members are none: they may be a tool's definition, or just an answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from phobos.chat.dialects.dialect import Parse, Turn
from phobos.chat.dialects.forms.json_calls import as_object
from phobos.chat.dialects.reader import Mismatch, Reader, copy_string, copy_value

FENCE = "```"
STARTS = ("{", "[", FENCE)
_MEMBERS = ("name", "arguments", "id", "type")


def read_bare_calls(reader: Reader, turn: Turn, names: Sequence[str], max_calls: int) -> Parse[None]:
    """Read a whole answer. Raises `Mismatch` at the first character that does not fit, or at the end of a text that is
    not all there or holds more than `max_calls`."""
    calls: list[tuple[str, str]] = []
    while True:
        yield from reader.spaces()
        if calls and not (yield from reader.peek()):
            break
        yield from _read_block(reader, names, calls)
        if len(calls) > max_calls:
            raise Mismatch
    for name, arguments in calls:
        turn.start(name)
        turn.add(arguments)


def _read_block(reader: Reader, names: Sequence[str], calls: list[tuple[str, str]]) -> Parse[None]:
    """Objects in a row or in a list, in a fence or not, which the end of the answer closes too."""
    fenced = yield from reader.skip(FENCE)
    if fenced:
        yield from reader.skip("json")
        yield from reader.spaces()
    listed = yield from reader.skip("[")
    while True:
        yield from reader.spaces()
        calls.append((yield from _read_object(reader, names)))
        yield from reader.spaces()
        goes_on = yield from reader.skip(",")
        if not goes_on and (listed or (yield from reader.peek()) != "{"):
            break
    if listed:
        yield from reader.literal("]")
        yield from reader.spaces()
    if fenced and (yield from reader.peek()):
        yield from reader.literal(FENCE)


def _read_object(reader: Reader, names: Sequence[str]) -> Parse[tuple[str, str]]:
    """One call: its name and the text of its arguments."""
    yield from reader.literal("{")
    is_doubled = yield from reader.skip("{")  # some templates show it so, by a slip
    name, arguments = "", ""
    left = list(_MEMBERS)
    while True:
        yield from reader.spaces()
        member = yield from _read_word(reader, left)
        left.remove(member)
        yield from reader.spaces()
        yield from reader.literal(":")
        yield from reader.spaces()
        if member == "name":
            name = yield from _read_word(reader, names)
        elif member == "arguments":
            arguments = yield from _read_arguments(reader)
        elif member == "type":
            yield from reader.literal('"function"')
        else:
            yield from copy_string(reader, lambda text: None)
        yield from reader.spaces()
        if not (yield from reader.skip(",")):
            break
    yield from reader.literal("}}" if is_doubled else "}")
    if is_doubled:
        yield from reader.skip("}")  # and their models lose count
    if not name or not arguments:
        raise Mismatch
    return name, arguments


def _read_arguments(reader: Reader) -> Parse[str]:
    """The text of an object, which may be written as a string, or be null."""
    if (yield from reader.peek()) not in ("{", '"', "n"):
        raise Mismatch
    parts: list[str] = []
    yield from copy_value(reader, parts.append)
    return as_object("".join(parts))


def _read_word(reader: Reader, words: Sequence[str]) -> Parse[str]:
    """A string that is one of these, which need no escapes; the first character that leads to none is a mismatch."""
    yield from reader.literal('"')
    read = ""
    while True:
        char = yield from reader.take()
        if char == '"' and read in words:
            return read
        read += char
        if not any(word.startswith(read) for word in words):
            raise Mismatch
