"""What the listener needs from the engine, and no more: the interface scripted engines in tests implement too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from phobos.chat.events import Sink, Submission
from phobos.chat.messages import EmbedRequest, GenerationRequest, ScoreRequest
from phobos.counters import ModelInfo, SlotReport
from phobos.engine.capabilities import Capabilities
from phobos.errors import PhobosError
from phobos.settings import EngineSettings, SamplingDefaults

if TYPE_CHECKING:
    from phobos.engine.model import Prepared  # brings the backend with it, which a listener opens without


class ServedTokenizer(Protocol):
    """Text to ids and back."""

    @property
    def n_vocab(self) -> int:
        """Ids are 0 .. n_vocab - 1."""

    @property
    def bos_id(self) -> int | None:
        """The token that opens a text."""

    @property
    def eos_id(self) -> int | None:
        """The token that ends a text."""

    @property
    def end_ids(self) -> frozenset[int]:
        """All tokens that end a turn."""

    def encode(self, text: str, *, special: bool = False, bos: bool = False, continues: bool = False) -> list[int]:
        """Tokens of a text."""

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Text of tokens."""

    def piece(self, token_id: int, /) -> bytes:
        """The bytes of one token."""


class ServedTemplate(Protocol):
    """A chat template."""

    @property
    def source(self) -> str:
        """Its Jinja."""


class ServedModel(Capabilities, Protocol):
    """A loaded model."""

    @property
    def label(self) -> str:
        """`GGUF, <architecture>`."""

    @property
    def architecture(self) -> str:
        """The GGUF architecture name."""

    @property
    def created(self) -> int:
        """Unix seconds."""

    @property
    def n_ctx(self) -> int:
        """Tokens a slot holds."""

    @property
    def tokenizer(self) -> ServedTokenizer:
        """Its tokenizer."""

    @property
    def template(self) -> ServedTemplate | None:
        """Its chat template, or None."""

    @property
    def info(self) -> ModelInfo:
        """Sizes and names for people."""

    @property
    def settings(self) -> EngineSettings:
        """How it was loaded."""

    @property
    def sampling(self) -> SamplingDefaults:
        """What its file says of sampling."""

    def check(self, request: GenerationRequest) -> None:
        """Refuse at once what it cannot honour. Raises `RequestError`."""

    def prepare(self, request: GenerationRequest, *, any_length: bool = False) -> Prepared:
        """Check, render, tokenize and plan. Raises `RequestError`, also where it does not fit unless `any_length`."""

    def prepare_text(self, text: str | Sequence[int]) -> tuple[int, ...]:
        """The tokens of a text to be embedded. Raises `RequestError`."""


class SlotActions(Protocol):
    """What can be done with a slot by name; each call blocks, on any thread but the engine's."""

    def save(self, slot: int, filename: str) -> SlotReport:
        """Write what a slot holds to a file."""

    def restore(self, slot: int, filename: str) -> SlotReport:
        """Make a slot hold what a file has."""

    def erase(self, slot: int) -> SlotReport:
        """Empty a slot."""


class ServedEngine(Protocol):
    """A running engine."""

    @property
    def slot_actions(self) -> SlotActions:
        """What can be done with its slots by name."""

    @property
    def model(self) -> ServedModel:
        """The model it runs."""

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""

    @property
    def failure(self) -> PhobosError | None:
        """Why it ended, if it did."""

    def submit(self, prepared: Prepared, sink: Sink, *, choice: int = 0, queue_wait_s: float = 0.0) -> Submission:
        """Run one choice; events go to `sink` on the engine's thread. Returns at once."""

    def read(self, request: ScoreRequest | EmbedRequest, sink: Sink, *, queue_wait_s: float = 0.0) -> Submission:
        """Run one scoring or embedding, likewise. Raises `RequestError` where the model has the other trade."""
