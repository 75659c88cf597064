"""A partner with an engine of its own in this process."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from phobos import decide
from phobos.chat.events import Sink, Submission
from phobos.chat.messages import GenerationRequest
from phobos.counters import Counters
from phobos.engine.engine import Engine
from phobos.errors import PhobosError, UnavailableError
from phobos.repl.partner import PartnerInfo, Token, Verdict
from phobos.repl.settings import ChatSettings
from phobos.runtime import LoadLine, start_engine
from phobos.settings import SamplingDefaults


class LocalPartner:
    """Runs one model; see `partner.Partner`."""

    def __init__(self, engine: Engine, list_models: Sequence[str] = ()) -> None:
        self._engine = engine
        self._models = list(list_models)
        model, info = engine.model, engine.model.info
        self.path = model.settings.model_path
        detail = ", ".join(part for part in (info.architecture, info.quantization) if part)
        self._info = PartnerInfo(
            model=info.name,
            detail=detail,
            n_ctx=model.n_ctx,
            has_chat=model.template is not None,
            can_think=model.supports_thinking,
        )

    @property
    def info(self) -> PartnerInfo:
        """What is talked to."""
        return self._info

    @property
    def failure(self) -> PhobosError | None:
        """Why the engine ended, if it did."""
        if self._engine.alive:
            return None
        return self._engine.failure or UnavailableError("the engine stopped: /save the conversation and start again")

    def submit(self, request: GenerationRequest, sink: Sink) -> Submission:
        """Render, tokenize and run."""
        return self._engine.submit(self._engine.model.prepare(request), sink)

    def prompt_progress(self) -> tuple[int, int] | None:
        """From the engine's counters: there is only this chat's request."""
        live = self._engine.counters.live
        running = next((info for info in live if info.phase == "prefill"), None)
        return (running.n_prompt_done, running.n_prompt) if running is not None else None

    def tokenize(self, text: str) -> list[Token]:
        """As the model reads what people write: nothing in it is a control token."""
        tokenizer = self._engine.model.tokenizer
        return [Token(i, tokenizer.piece(i).decode("utf-8", "replace")) for i in tokenizer.encode(text)]

    def count_prompt(self, request: GenerationRequest) -> int:
        """The tokens of the rendered conversation."""
        return len(self._engine.model.prepare(request).tokens)

    def models(self) -> list[str]:
        """The models on this machine."""
        return self._models

    def can_decide(self) -> bool:
        """Every model can: it is read, not asked."""
        return True

    def decide(self, state: str, question: str, labels: Sequence[str]) -> Verdict:
        """Score the labels as continuations."""
        asked = decide.Question("q", "choice", question or None, tuple(labels), (None,) * len(labels))
        decision = decide.Decision(f"decide-{uuid.uuid4().hex}", state, (asked,))
        model = self._engine.model
        (answer,) = decide.decide(self._engine, decision, model.tokenizer, model.n_ctx)
        return Verdict(tuple(labels), answer.probabilities, answer.confidence)

    def close(self) -> None:
        """Stop the engine."""
        self._engine.close(0.0)


def open_local(settings: ChatSettings, path: Path) -> LocalPartner:
    """Load a model with its progress on one line of standard error."""
    # What is not set in the chat falls through to the model's own values, so that `/set temp default` means those.
    engine_settings = replace(settings.engine(path), sampling=SamplingDefaults())
    line = LoadLine(sys.stderr)
    try:
        engine = start_engine(engine_settings, Counters(), line)
    finally:
        line.clear()
    return LocalPartner(engine, settings.list_models())
