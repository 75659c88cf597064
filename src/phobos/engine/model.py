"""A loaded model: file, tokenizer, template, backend, frozen into one `Model`; and from a request to what is run.

`load_model` is called by one thread, the loader. A `Model` is immutable; `prepare` may be called by any thread, the
backend only by the engine's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from phobos.archs import build_program
from phobos.chat.dialects import knows_reasoning
from phobos.chat.messages import GenerationRequest, SamplingParams
from phobos.chat.request_prompt import encode_segments, render_request
from phobos.chat.template import ChatTemplate, make_template
from phobos.chat.template_sources import find_template
from phobos.counters import LoadProgress, ModelInfo
from phobos.engine.capabilities import check_request, check_token
from phobos.engine.constrained.answers import AnswerPlan, Answers, choose_answers
from phobos.engine.sampler import Sampling, resolve_sampling
from phobos.engine.slots.archive import choose_archive_bytes
from phobos.engine.slots.identity import digest_sources, identify
from phobos.engine.slots.slot_files import Identity
from phobos.engine.speculative.draft import check_draft, open_draft
from phobos.errors import ContextLengthError, RequestError
from phobos.gguf.reader import GGUF, open_gguf
from phobos.gguf.tokenizer import Tokenizer, load_tokenizer
from phobos.host.machine import read_memory, release_free_memory
from phobos.kernels.backend import Backend, Progress, cache_bound
from phobos.kernels.sampling import load_row_kernels
from phobos.sampling_fields import FIELDS
from phobos.settings import EngineSettings, SamplingDefaults


@dataclass(frozen=True)
class Prepared:
    """A request as its model runs it: what `Model.prepare` worked out and `Engine.submit` takes, once a choice.

    `sampling` has every setting decided, the seed too; `answer` is None where the model reads and binds no answers.
    """

    request: GenerationRequest
    tokens: tuple[int, ...]
    sampling: Sampling
    answer: AnswerPlan | None = None

    @property
    def left_open(self) -> tuple[str, ...]:
        """The places of the request's schemas that no grammar holds, and that are left to the client."""
        return self.answer.left_open if self.answer is not None else ()


@dataclass(frozen=True)
class Model:
    """A loaded model. `created` is in Unix seconds; `sampling` are the model file's own defaults; `archive_bytes` is
    what conversations that gave way to others may take; `identity` is there where states are saved.

    `answers` plans what reads and binds the answers to a request; None where the model has no such thing. `draft` is
    the model that guesses for this one, if there is one.
    """

    path: Path
    label: str
    architecture: str
    created: int
    n_ctx: int
    n_slots: int
    tokenizer: Tokenizer
    template: ChatTemplate | None
    backend: Backend
    sampling: SamplingDefaults
    settings: EngineSettings
    info: ModelInfo
    supports_thinking: bool = False
    answers: Answers | None = None
    draft: Backend | None = None
    archive_bytes: int = 0
    identity: Identity | None = None

    @property
    def embeds(self) -> bool:
        """Whether it embeds texts instead of writing any."""
        return self.backend.limits.pooling is not None

    @property
    def supports_chat(self) -> bool:
        """Whether it has a chat template."""
        return self.template is not None

    @property
    def supports_tools(self) -> bool:
        """Whether tool calls can be offered, enforced and read."""
        return self.answers is not None and self.template is not None

    @property
    def supports_grammar(self) -> bool:
        """Whether an output format can be enforced."""
        return self.answers is not None

    @property
    def supports_infill(self) -> bool:
        """Whether it has tokens for a prompt with a suffix."""
        return self.tokenizer.infill_ids is not None

    def close(self) -> None:
        """Close the backends; twice is fine."""
        self.backend.close()
        if self.draft is not None:
            self.draft.close()

    def warm(self) -> None:
        """Begin in the background with what the first tool call or output format would wait for."""
        if self.answers is not None:
            self.answers.grammars.warm()

    def check(self, request: GenerationRequest) -> None:
        """Refuse at once what this model cannot honour, before anything is rendered. Raises `RequestError`."""
        check_request(request, self)

    def prepare(self, request: GenerationRequest, *, any_length: bool = False) -> Prepared:
        """Check, render, tokenize and plan. Raises `RequestError` for what this model cannot honour, and
        `ContextLengthError` for a prompt that leaves no room for an answer unless `any_length`."""
        self.check(request)
        param = "messages" if request.is_chat else "prompt"
        tokens = self._encode_chat(request, any_length) if request.is_chat else self._encode_prompt(request, any_length)
        if not tokens:
            raise RequestError("the prompt is empty: send some text", param=param)
        if len(tokens) >= self.n_ctx and not any_length:
            error = ContextLengthError(len(tokens), self.n_ctx)
            error.param = param
            raise error
        return Prepared(
            request,
            tuple(tokens),
            resolve_sampling(self._bias(request.sampling), self.settings.sampling, self.sampling),
            self.answers.plan(request, tokens) if self.answers is not None else None,
        )

    def prepare_text(self, text: str | Sequence[int]) -> tuple[int, ...]:
        """The tokens of a text to be embedded, with what the file says stands before and behind one; spellings of
        control tokens are those tokens. Token ids stay as they are. Raises `RequestError`."""
        if isinstance(text, str):
            self._check_texts([text], "input")
        if not isinstance(text, str):
            for token in text:
                check_token(token, self.tokenizer.n_vocab, "input")
            tokens = list(text)
        elif tokens := self.tokenizer.encode(text, special=True, bos=True) if text else []:
            tokens += self.tokenizer.ending
        if not tokens:
            raise RequestError("input holds an empty text: send some", param="input")
        if len(tokens) > self.n_ctx:
            error = ContextLengthError(len(tokens), self.n_ctx)
            error.param = "input"
            raise error
        return tuple(tokens)

    def _check_texts(self, texts: Sequence[str], param: str) -> None:
        """Refuse what is too long however it is split, before that costs time and memory."""
        n_least = sum(map(self.tokenizer.least_tokens, texts))
        if n_least > self.n_ctx:
            error = ContextLengthError(n_least, self.n_ctx, at_least=True)
            error.param = param
            raise error

    def _bias(self, sampling: SamplingParams) -> SamplingParams:
        """With the biases of texts and of the tokens that end a turn put into `logit_bias`."""
        biases: dict[int, float] = {}
        for text, value in sampling.text_bias.items():
            biases.update(dict.fromkeys(self.tokenizer.encode(text, continues=True), value))
        biases.update(sampling.logit_bias)
        if sampling.ignore_eos:
            biases.update(dict.fromkeys(self.tokenizer.end_ids, -math.inf))
        return replace(sampling, logit_bias=biases) if biases else sampling

    def _encode_prompt(self, request: GenerationRequest, any_length: bool) -> list[int]:
        """A completion's prompt: text as it is, its control tokens meant as such, token ids, or both in a row."""
        prompt = request.prompt
        if not any_length:
            parts = prompt if isinstance(prompt, tuple) else (prompt or "",)
            self._check_texts([*(part for part in parts if isinstance(part, str)), request.suffix or ""], "prompt")
        if isinstance(prompt, tuple):
            tokens: list[int] = []
            for part in prompt:
                if isinstance(part, str):
                    tokens += self.tokenizer.encode(part, special=True, bos=not tokens, continues=bool(tokens))
                else:
                    tokens.append(part)
        else:
            tokens = self.tokenizer.encode(prompt or "", special=True, bos=True)
        return tokens if request.suffix is None else self._infill(tokens, request.suffix)

    def _infill(self, tokens: list[int], suffix: str) -> list[int]:
        """Prefix, suffix, then the place where the model writes what stands between."""
        tokenizer = self.tokenizer
        assert tokenizer.infill_ids is not None, "checked"
        before, after, middle = tokenizer.infill_ids
        opening = tokens[:1] if tokenizer.add_bos and tokens[:1] == [tokenizer.bos_id] else []
        return [*opening, before, *tokens[len(opening) :], after, *tokenizer.encode(suffix), middle]

    def _encode_chat(self, request: GenerationRequest, any_length: bool) -> list[int]:
        """The messages in the model's own chat format, with exactly one BOS where the file wants one."""
        assert self.template is not None, "checked"
        segments = render_request(self.template, request)
        if not any_length:
            self._check_texts([segment.text for segment in segments], "messages")
        return encode_segments(segments, self.template, self.tokenizer)


def read_sampling(metadata: Mapping[str, Any]) -> SamplingDefaults:
    """The model file's own defaults, from `general.sampling.*`; what has another type than it should, or is out of
    range, is left out."""
    found: dict[str, Any] = {}
    for field in FIELDS:
        value = metadata.get(f"general.sampling.{field.file_key}")
        if isinstance(value, int | float) and not isinstance(value, bool) and field.holds(value):
            found[field.name] = int(value) if field.whole else value
    return SamplingDefaults(**found)


def load_model(settings: EngineSettings, progress: Progress) -> Model:
    """Load the file of `settings`, telling how far it is; the tokenizer and the sampling kernels are made
    ready beside the backend.

    Raises `FileError` or `UnsupportedModelError`.
    """
    from phobos.kernels.placing.opening import open_backend  # brings the compiler with it

    progress(LoadProgress("mapping", 0.0, settings.model_path.name))
    with open_gguf(settings.model_path) as gguf:  # closed when loaded: its pages are given back
        if settings.draft_path is not None:
            check_draft(settings.draft_path, gguf)
        with ThreadPoolExecutor(2, thread_name_prefix="phobos-load") as pool:
            words = pool.submit(_load_words, gguf, settings)
            sampling_kernels = pool.submit(load_row_kernels)
            if settings.slot_save_path is not None:
                pool.submit(digest_sources)  # `identify` asks for it
            backend, info = open_backend(build_program(gguf), gguf, settings, progress)
            try:
                tokenizer, template = words.result()
                answers, template = choose_answers(template, tokenizer, bare_calls=settings.bare_calls)
                sampling_kernels.result()
                path = settings.draft_path
                draft = None if path is None else open_draft(settings, path, backend.limits, progress)
            except BaseException:
                backend.close()
                raise
        progress(LoadProgress("ready", 1.0))
        limits = backend.limits
        return Model(
            path=settings.model_path,
            label=f"GGUF, {gguf.architecture}",
            architecture=gguf.architecture,
            created=int(settings.model_path.stat().st_mtime),
            n_ctx=limits.n_ctx,
            n_slots=limits.n_slots,
            tokenizer=tokenizer,
            template=template,
            backend=backend,
            sampling=read_sampling(gguf.metadata),
            settings=settings,
            info=replace(info, dialect=answers.dialect.name),
            supports_thinking=template is not None and _knows_thinking(template, answers),
            answers=answers,
            draft=draft,
            archive_bytes=choose_archive_bytes(settings, _free_beside(backend)),
            identity=identify(gguf, settings, backend) if settings.slot_save_path is not None else None,
        )


def _free_beside(backend: Backend) -> int | None:
    """Bytes free once all slots are full; None where the system does not tell."""
    free = read_memory().available
    return None if free is None else free - cache_bound(backend)


def _knows_thinking(template: ChatTemplate, answers: Answers) -> bool:
    """Whether reasoning can be asked for: the template takes the wish, or always has the dialect's block."""
    return template.traits.knows_thinking or knows_reasoning(answers.dialect, template.source)


def _load_words(gguf: GGUF, settings: EngineSettings) -> tuple[Tokenizer, ChatTemplate | None]:
    """The tokenizer, and the chat template: the setting's, else the file's, else none."""
    tokenizer = load_tokenizer(gguf)
    release_free_memory()  # as much as a quarter of what stays was needed to make it
    source = settings.chat_template if settings.chat_template is not None else find_template(gguf.metadata)
    return tokenizer, None if source is None else make_template(source, tokenizer)
