"""`POST /completion` in llama-server's shape: fields in, a `Job` out; events in, its reply or its stream out.

`n_predict` -1 means as much as there is room for, 0 reads the prompt and writes nothing. A sampler Phobos does not have
is refused unless it is sent switched off, as that server's own clients send it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from phobos.chat.events import Event, Finished, Started, TextDelta, TokenLogprob
from phobos.chat.messages import MAX_TOP_LOGPROBS, GenerationRequest, OutputFormat, SamplingParams
from phobos.errors import RequestError
from phobos.http.protocols.fields import convert, sort_fields
from phobos.http.protocols.ledger import Ledger
from phobos.http.protocols.openai import MAX_BIASES
from phobos.http.protocols.prompts import MAX_PROMPTS, parse_prompts, parse_stops
from phobos.http.protocols.sampling import LLAMA_SAMPLING
from phobos.http.reply import Job, ReplyFacts
from phobos.http.served import ServedTokenizer
from phobos.http.transport.wire import SSE_DONE, SSE_HEARTBEAT, Refusal, Response, sse
from phobos.sampling_fields import FIELDS
from phobos.settings import ServeSettings

MAX_BIAS_CHARS = 256  # of a text that stands for its tokens
MAX_PREDICT = 1 << 30  # what -1 stands for; the room left bounds it

_STOP_TYPES = {"stop": "eos", "length": "limit", "tool_calls": "eos"}

# Fields for what is not here, with the values that ask for nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "mirostat": (0,),
    "dynatemp_range": (0,),
    "xtc_probability": (0,),
    "dry_multiplier": (0,),
    "top_n_sigma": (-1, 0),
    "n_indent": (0,),
    "t_max_predict_ms": (-1, 0),
    "image_data": ([],),
    "multimodal_data": ([],),
    "lora": ([],),
    "post_sampling_probs": (False,),
}


class LlamaFields(msgspec.Struct, kw_only=True):
    """`POST /completion`, beside the sampling fields."""

    prompt: Any = None
    model: str | None = None
    n_predict: Annotated[int, Meta(ge=-1)] | None = None
    stop: str | list[str] | None = None
    n_probs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    logit_bias: Any = None
    ignore_eos: bool | None = None
    response_fields: list[str] | None = None
    json_schema: Any = None
    grammar: str | None = None
    stream: bool | None = None
    return_tokens: bool | None = None
    cache_prompt: bool | None = None
    id_slot: Annotated[int, Meta(ge=-1)] | None = None


_NAMES = frozenset(LlamaFields.__struct_fields__) | LLAMA_SAMPLING.names | frozenset(_NEUTRAL)


def parse_llama_completion(body: dict[str, Any], request_id: str, settings: ServeSettings) -> Job:
    """A request. Raises `RequestError`."""
    fields = sort_fields(body, _NAMES, strict=settings.strict_fields)
    for name, neutral in _NEUTRAL.items():
        if name in fields.values and fields.values[name] not in neutral:
            raise RequestError(f"{name} is not offered here", code="unsupported_parameter", param=name)
    asked = convert(fields.values, LlamaFields)
    if asked.prompt is None:
        raise RequestError("prompt is required", param="prompt")
    n_predict = asked.n_predict
    with_tokens = bool(asked.return_tokens) or bool(asked.stream)
    requests = tuple(
        GenerationRequest(
            request_id=request_id,
            prompt=prompt,
            output=_parse_output(asked),
            sampling=_sampling(fields.values, asked),
            max_tokens=MAX_PREDICT if n_predict == -1 else n_predict,
            stop=parse_stops(asked.stop),
            top_logprobs=asked.n_probs if asked.n_probs else 0 if with_tokens else None,
            cache_slot=None if asked.id_slot == -1 else asked.id_slot,
            cache_prompt=asked.cache_prompt is not False,
        )
        for prompt in _read_prompts(asked.prompt)
    )
    form = LlamaForm(requests, bool(asked.n_probs), with_tokens, n_predict, tuple(asked.response_fields or ()))
    return Job(requests, bool(asked.stream), asked.model, form, fields.unknown)


def _read_prompts(value: Any) -> tuple[str | tuple[int | str, ...], ...]:
    """One prompt or a list: text, ids, both in a row, or an object that holds the text."""
    if isinstance(value, list) and any(isinstance(item, list | dict) for item in value):
        if len(value) > MAX_PROMPTS:
            raise RequestError(
                f"prompt holds {len(value)} prompts, and at most {MAX_PROMPTS} are taken", param="prompt"
            )
        return tuple(map(_read_prompt, value))
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return parse_prompts(value)
    return (_read_prompt(value),)


def _read_prompt(value: Any) -> str | tuple[int | str, ...]:
    if isinstance(value, dict) and not value.get("multimodal_data"):
        value = value.get("prompt_string")
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise RequestError("prompt must be text, token ids, or a list of prompts", param="prompt")
    for part in value:
        if not isinstance(part, str | int) or isinstance(part, bool) or (isinstance(part, int) and part < 0):
            raise RequestError("prompt must hold token ids and texts", param="prompt")
    return tuple(value)


def _sampling(values: dict[str, Any], asked: LlamaFields) -> SamplingParams:
    biases = _parse_biases(asked.logit_bias)
    return SamplingParams(
        **LLAMA_SAMPLING.read(values),
        logit_bias={key: bias for key, bias in biases.items() if isinstance(key, int)},
        text_bias={key: bias for key, bias in biases.items() if isinstance(key, str)},
        ignore_eos=bool(asked.ignore_eos),
    )


def _parse_biases(value: Any) -> dict[int | str, float]:
    """`[[id, bias], ...]` or `{"id": bias}`; a text stands for each of its tokens, false forbids a token."""
    pairs = list(value.items()) if isinstance(value, dict) else value if value is not None else []
    if not isinstance(pairs, list):
        raise _wrong_bias()
    if len(pairs) > MAX_BIASES:
        raise RequestError(f"logit_bias holds more than {MAX_BIASES} pairs: send fewer", param="logit_bias")
    biases: dict[int | str, float] = {}
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise _wrong_bias()
        token, bias = pair
        if isinstance(token, str) and len(token) > MAX_BIAS_CHARS:
            raise RequestError(f"logit_bias has a text of more than {MAX_BIAS_CHARS} characters", param="logit_bias")
        if isinstance(token, str) and token.isascii() and token.isdigit() and len(token) < 10:
            token = int(token)
        if bias is False:
            bias = -100
        if not isinstance(token, int | str) or isinstance(token, bool) or (isinstance(token, int) and token < 0):
            raise _wrong_bias()
        if not isinstance(bias, int | float) or isinstance(bias, bool) or not -100 <= bias <= 100:
            raise _wrong_bias()
        biases[token] = float(bias)
    return biases


def _wrong_bias() -> RequestError:
    message = "logit_bias must hold pairs of a token id, or a text, and a bias from -100 to 100"
    return RequestError(message, param="logit_bias")


def _parse_output(asked: LlamaFields) -> OutputFormat:
    if asked.json_schema is not None and asked.grammar:
        raise RequestError("json_schema and grammar say the same: send one of them", param="grammar")
    if asked.json_schema is not None:
        if not isinstance(asked.json_schema, dict):
            raise RequestError("json_schema must be a JSON schema object", param="json_schema")
        return OutputFormat("json_schema", schema=asked.json_schema)
    return OutputFormat("grammar", pattern=asked.grammar) if asked.grammar else OutputFormat()


# --- replies --------------------------------------------------------------------------------------------------------


def _shape(entry: TokenLogprob, *, with_top: bool = True) -> dict[str, Any]:
    shape: dict[str, Any] = {
        "id": entry.token_id,
        "token": entry.text,
        "bytes": list(entry.data),
        "logprob": entry.logprob,
    }
    if with_top:
        shape["top_logprobs"] = [_shape(top, with_top=False) for top in entry.top]
    return shape


@dataclass
class _Text:
    """One prompt's answer so far."""

    index: int
    request: GenerationRequest
    form: LlamaForm
    tokenizer: ServedTokenizer | None
    ledger: Ledger = field(default_factory=lambda: Ledger(1))
    pieces: list[str] = field(default_factory=list)
    entries: list[TokenLogprob] = field(default_factory=list)
    n_tokens: int = 0
    started: Started | None = None
    finished: Finished | None = None

    def push(self, event: Event) -> None:
        """Take one event."""
        self.ledger.push(0, event)
        match event:
            case Started():
                self.started = event
            case TextDelta():
                self.pieces.append(event.text)
                self.entries.extend(event.logprobs)
            case Finished():
                self.finished = event

    def whole(self, model: str, *, with_text: bool) -> dict[str, Any]:
        """The reply; in a stream its last part, without the text that was sent already."""
        end, text = self.finished, "".join(self.pieces)
        assert end is not None and self.started is not None
        body: dict[str, Any] = {
            "index": self.index,
            "content": text if with_text else "",
            "tokens": self._tokens(self.entries) if with_text else [],
            "id_slot": self.started.slot,
            "stop": True,
            "model": model,
            "tokens_predicted": end.usage.n_generated,
            "tokens_evaluated": end.usage.n_prompt,
            "tokens_cached": end.usage.n_prompt + end.usage.n_generated,
            "generation_settings": self._settings(),
            "prompt": self.request.prompt,
            "has_new_line": "\n" in text,
            "truncated": False,
            "stop_type": "word" if end.stop_text is not None else _STOP_TYPES[end.reason],
            "stopping_word": end.stop_text or "",
            "timings": self.ledger.describe_timings(),
        }
        if self.form.with_probs and with_text:
            body["completion_probabilities"] = [_shape(entry) for entry in self.entries]
        return _choose(body, self.form.response_fields) if self.form.response_fields else body

    def parts(self, event: TextDelta) -> Iterator[dict[str, Any]]:
        """The parts of the stream: one for each token, as that server sends them."""
        for entry in event.logprobs:
            yield self.part(TextDelta(entry.text, (entry,)))
        if event.text and not event.logprobs:
            yield self.part(event)

    def part(self, event: TextDelta) -> dict[str, Any]:
        """A part of the stream."""
        usage_prompt = self.started.n_prompt if self.started is not None else 0
        body: dict[str, Any] = {
            "index": self.index,
            "content": event.text,
            "tokens": self._tokens(event.logprobs),
            "stop": False,
            "id_slot": self.started.slot if self.started is not None else -1,
            "tokens_evaluated": usage_prompt,
        }
        if self.form.with_probs:
            body["completion_probabilities"] = [_shape(entry) for entry in event.logprobs]
        return body

    def _tokens(self, entries: Iterable[TokenLogprob]) -> list[int]:
        return [entry.token_id for entry in entries] if self.form.with_tokens else []

    def _settings(self) -> dict[str, Any]:
        return {
            **{field.llama_name: getattr(self.request.sampling, field.name) for field in FIELDS},
            "seed": self.started.seed if self.started is not None else None,
            "n_predict": self.form.n_predict if self.form.n_predict is not None else -1,
            "stop": list(self.request.stop),
            "n_probs": self.request.top_logprobs or 0,
            "logit_bias": self._biases(),
        }

    def _biases(self) -> list[dict[str, Any]]:
        """As ids; a token that is never drawn has null for its bias."""
        sampling = self.request.sampling
        never = self.tokenizer.end_ids if sampling.ignore_eos and self.tokenizer is not None else ()
        shown: dict[int, float | None] = dict(sampling.logit_bias) | dict.fromkeys(sorted(never))
        return [{"token": token, "bias": bias} for token, bias in shown.items()]


def _choose(body: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Those of the fields that were asked for; `a/b` is the field b of a, under that name."""
    chosen = {}
    for name in names:
        value: Any = body
        for step in name.split("/"):
            value = value.get(step) if isinstance(value, dict) else None
        if value is not None:
            chosen[name] = value
    return chosen


class LlamaFold:
    """A whole reply: an object, or a list of them for several prompts."""

    def __init__(self, form: LlamaForm, facts: ReplyFacts) -> None:
        self._model = facts.model
        self._texts = [_Text(index, request, form, facts.tokenizer) for index, request in enumerate(form.requests)]

    def push(self, choice: int, event: Event) -> None:
        """Take one event."""
        self._texts[choice].push(event)

    def reply(self) -> Any:
        """The reply's body."""
        bodies = [text.whole(self._model, with_text=True) for text in self._texts]
        return bodies[0] if len(bodies) == 1 else bodies


class LlamaWriter:
    """A stream."""

    def __init__(self, form: LlamaForm, facts: ReplyFacts) -> None:
        self._model = facts.model
        self._texts = [_Text(index, request, form, facts.tokenizer) for index, request in enumerate(form.requests)]

    def push(self, choice: int, event: Event) -> bytes:
        """The part of one event."""
        text = self._texts[choice]
        text.push(event)
        if isinstance(event, TextDelta):
            return b"".join(map(sse, text.parts(event)))
        return sse(text.whole(self._model, with_text=False)) if isinstance(event, Finished) else b""

    def end(self) -> bytes:
        """Nothing follows the last part."""
        return b""

    def fail(self, refusal: Refusal) -> bytes:
        """One error event and the end mark."""
        return sse(refusal.envelope()) + SSE_DONE


class LlamaForm:
    """How `/completion` replies."""

    heartbeat = SSE_HEARTBEAT

    def __init__(
        self,
        requests: tuple[GenerationRequest, ...],
        with_probs: bool,
        with_tokens: bool,
        n_predict: int | None,
        response_fields: tuple[str, ...] = (),
    ) -> None:
        self.requests = requests
        self.with_probs = with_probs
        self.with_tokens = with_tokens
        self.n_predict = n_predict
        self.response_fields = response_fields

    def fold(self, facts: ReplyFacts) -> LlamaFold:
        """A collector for a whole reply."""
        return LlamaFold(self, facts)

    def writer(self, facts: ReplyFacts) -> LlamaWriter:
        """A writer for a stream."""
        return LlamaWriter(self, facts)

    def error(self, refusal: Refusal) -> Response:
        """The envelope of all routes."""
        return refusal.response()
