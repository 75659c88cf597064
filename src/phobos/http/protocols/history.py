"""What every protocol's past turns need: calls and their results told apart, broken arguments mended, and what a model
of text cannot read left out and listed."""

from __future__ import annotations

import json

import msgspec

from phobos.errors import RequestError
from phobos.http.transport.wire import quoted

# Parts that are no text, by their types in all protocols.
OTHER_PARTS = frozenset(("image_url", "image", "input_image", "document", "file", "input_file", "input_audio"))


class CallBook:
    """Which calls a conversation has made, and which of them have no answer yet. An id may be used again once it was
    answered; what it stands for then goes by another, so that each call has its own."""

    def __init__(self) -> None:
        self._open: set[str] = set()
        self._times: dict[str, int] = {}

    def note_call(self, call_id: str, place: str) -> str:
        """A call is made; the id it goes by. Raises `RequestError` for an id whose call is not answered yet."""
        if call_id in self._open:
            raise RequestError(
                f"{place}: the call id {quoted(call_id)} is used twice", code="invalid_tool_call", param=place
            )
        self._times[call_id] = self._times.get(call_id, 0) + 1
        self._open.add(call_id)
        return self._own(call_id)

    def note_result(self, call_id: str | None, place: str) -> str:
        """A call is answered; the id it goes by. Raises `RequestError` where no open call has this id."""
        if call_id is None:
            raise RequestError(f"{place} is required on a tool's result", code="invalid_tool_result", param=place)
        if call_id not in self._open:
            reason = "is answered twice" if call_id in self._times else "answers no call made before it"
            raise RequestError(f"{place} {quoted(call_id)} {reason}", code="invalid_tool_result", param=place)
        self._open.discard(call_id)
        return self._own(call_id)

    def _own(self, call_id: str) -> str:
        n_times = self._times[call_id]
        return call_id if n_times == 1 else f"{call_id}_{n_times}"


class LeftOut:
    """What of a conversation is left out, by its place. What the user shows last must be read: it is refused."""

    def __init__(self) -> None:
        self.places: list[str] = []
        self._latest: list[tuple[str, str]] = []

    def begin_user(self) -> None:
        """A message of the user's begins: what the one before showed is past."""
        self.places += [place for place, _ in self._latest]
        self._latest = []

    def replace(self, kind: str, place: str, *, by_user: bool) -> str:
        """The text that stands for a part which is none."""
        if by_user:
            self._latest.append((place, kind))
        else:
            self.places.append(place)
        return f"[{kind.removesuffix('_url').removeprefix('input_')} left out: this model reads text only]"

    def check(self) -> None:
        """Raises `RequestError` where the user's latest message shows what this model cannot read."""
        for place, kind in self._latest:
            raise unreadable(kind, place)


def unreadable(kind: object, place: str) -> RequestError:
    """A part that this model does not read."""
    return RequestError(
        f"{place}.type {quoted(kind)} is not supported: this model reads text only",
        code="unsupported_content",
        param=f"{place}.type",
    )


def mend_arguments(text: str) -> str:
    """The JSON text of an object: as it was sent where it is one, closed where it was cut off, else the text as the
    value of `arguments`."""
    for attempt in (text, _close(text)):
        try:
            if isinstance(msgspec.json.decode(attempt or "{}"), dict):
                return attempt or "{}"
        except (msgspec.DecodeError, RecursionError):
            continue
    return json.dumps({"arguments": text}, ensure_ascii=False)


def _close(text: str) -> str:
    """JSON that was cut off, with what is open closed and what is missing null."""
    open_brackets: list[str] = []
    in_string = escaped = False
    for char in text:
        if in_string:
            in_string = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            in_string = True
        elif char in "{[":
            open_brackets.append("}" if char == "{" else "]")
        elif char in "}]" and open_brackets:
            open_brackets.pop()
    if in_string:
        text = (text[:-1] if escaped else text) + '"'
    text = text.rstrip().removesuffix(",")
    if text.endswith(":"):
        text += " null"
    return text + "".join(reversed(open_brackets))


def invalid_message(fault: str, param: str) -> RequestError:
    """A turn that is not as its protocol has it."""
    return RequestError(fault, code="invalid_message", param=param)
