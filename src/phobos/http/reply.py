"""What a protocol is to the server: a parsed request as a `Job`, and a `ReplyForm` that makes its reply of events.

A form makes a `Fold` for a whole reply and a `Writer` for a stream. Both are fed the same events, so that both agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from phobos.chat.events import Event
from phobos.chat.messages import GenerationRequest
from phobos.http.served import ServedTokenizer
from phobos.http.transport.wire import Refusal, Response


@dataclass(frozen=True)
class ReplyFacts:
    """What a reply says about itself. `tokenizer` is None where it ended before there was a model."""

    request_id: str
    created: int
    model: str
    queue_wait_s: float
    tokenizer: ServedTokenizer | None


class Fold(Protocol):
    """Collects events into a whole reply."""

    def push(self, choice: int, event: Event) -> None:
        """Take one event."""

    def reply(self) -> dict[str, Any]:
        """The reply's body, once every choice has finished. Raises `RequestError` (502) for a bad result."""


class Writer(Protocol):
    """Turns events into the bytes of a stream."""

    def push(self, choice: int, event: Event) -> bytes:
        """The chunks of one event; may be empty."""

    def end(self) -> bytes:
        """What follows the last event."""

    def fail(self, refusal: Refusal) -> bytes:
        """What ends a stream that failed."""


class ReplyForm(Protocol):
    """How one protocol's replies are made; holds the parsed request."""

    heartbeat: bytes

    def fold(self, facts: ReplyFacts) -> Fold:
        """A collector for a whole reply."""

    def writer(self, facts: ReplyFacts) -> Writer:
        """A writer for a stream."""

    def error(self, refusal: Refusal) -> Response:
        """A refusal in this protocol's envelope."""


@dataclass(frozen=True)
class Job:
    """A parsed request: one `GenerationRequest` a prompt, each run `n` times. Choice = prompt index * n + copy.

    `ignored` are fields and parts that were left out, `thinking_field` is the one that asks for reasoning and is left
    out where a model has none.
    """

    requests: tuple[GenerationRequest, ...]
    stream: bool
    model: str | None
    form: ReplyForm
    ignored: tuple[str, ...] = ()
    thinking_field: str = ""

    @property
    def n_choices(self) -> int:
        """All choices of the reply."""
        return sum(request.n for request in self.requests)
