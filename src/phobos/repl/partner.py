"""Who answers: the interface of a chat's other side, whether its engine runs here or behind a server.

A partner takes a `GenerationRequest` and gives back the engine's own events, on a thread of its own; so the rest of
the chat does not know where the weights are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from phobos.chat.events import Sink, Submission
from phobos.chat.messages import GenerationRequest
from phobos.errors import PhobosError


@dataclass(frozen=True)
class PartnerInfo:
    """What is talked to. `where` is the server's address, empty for an engine of one's own; `n_ctx` is in tokens and
    None where a server does not tell."""

    model: str
    where: str = ""
    detail: str = ""
    n_ctx: int | None = None
    has_chat: bool = True
    can_think: bool = False


@dataclass(frozen=True)
class Token:
    """One token of a text."""

    token_id: int
    text: str


@dataclass(frozen=True)
class Verdict:
    """How likely each label is, in the order asked for; `confidence` is 0 for a tie of all and 1 for certainty."""

    labels: tuple[str, ...]
    probabilities: tuple[float, ...]
    confidence: float


class Partner(Protocol):
    """See the module. Used by the main thread; events come on another."""

    @property
    def info(self) -> PartnerInfo:
        """What is talked to."""

    @property
    def failure(self) -> PhobosError | None:
        """Why nothing more will come, once that is so."""

    def submit(self, request: GenerationRequest, sink: Sink) -> Submission:
        """Send a request; `sink` gets its events. Raises `PhobosError` where it cannot be sent."""

    def prompt_progress(self) -> tuple[int, int] | None:
        """Tokens of the prompt that are read, and all of them, while one is read and that is known."""

    def tokenize(self, text: str) -> list[Token]:
        """The tokens of a text. Raises `PhobosError` where the server has no such route."""

    def count_prompt(self, request: GenerationRequest) -> int:
        """How many tokens the request's prompt has."""

    def models(self) -> list[str]:
        """The models this partner can be changed to, or has."""

    def can_decide(self) -> bool:
        """Whether `decide` works here."""

    def decide(self, state: str, question: str, labels: Sequence[str]) -> Verdict:
        """Which label fits the text `state`, read from the model's own probabilities; nothing is generated."""

    def close(self) -> None:
        """Free what it holds."""
