"""`POST /v1/embeddings`, and llama-server's `/embedding`: texts in, vectors out, from models whose file says that they
embed. A vector is the pooled states of a text's tokens; it does not depend on what else is asked for or runs.

OpenAI's vectors have length 1, also those cut to `dimensions`: models trained for it (Matryoshka) keep their sense.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from phobos.chat.events import Embedded
from phobos.chat.messages import EmbedRequest
from phobos.errors import NO_EMBEDDINGS, RequestError, UnavailableError
from phobos.http.generation import Generations
from phobos.http.protocols.fields import Natural, convert, sort_fields
from phobos.http.reply_headers import reply_headers
from phobos.http.served import ServedModel
from phobos.http.transport.wire import Response, json_response

if TYPE_CHECKING:  # NumPy's weight is left to where a model runs
    from phobos.http.protocols.vectors import Vector

MAX_INPUTS = 2048
_EUCLIDEAN = 2  # the power whose norm is the length
_Input = str | list[str | Natural | list[Natural]]
Text = str | tuple[int, ...]


class EmbeddingFields(msgspec.Struct, kw_only=True):
    """`POST /v1/embeddings`."""

    input: _Input
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Meta(ge=1)] | None = None


class LlamaEmbeddingFields(msgspec.Struct, kw_only=True):
    """`POST /embedding`."""

    content: _Input | None = None
    input: _Input | None = None
    embd_normalize: Annotated[int, Meta(ge=-1, le=64)] = _EUCLIDEAN


@dataclass(frozen=True)
class Asked:
    """A parsed request; `write` makes the reply of the vectors, the count of tokens and the model's name."""

    texts: tuple[Text, ...]
    write: Callable[[list[Vector], int, str], Any]
    model: str | None = None
    dimensions: int | None = None
    ignored: tuple[str, ...] = ()


def parse_embedding(body: Mapping[str, Any], *, strict: bool) -> Asked:
    """OpenAI's request. Raises `RequestError`."""
    fields = sort_fields(dict(body), frozenset(EmbeddingFields.__struct_fields__), strict=strict)
    asked = convert(fields.values, EmbeddingFields)

    def write(vectors: list[Vector], n_tokens: int, model: str) -> dict[str, Any]:
        from phobos.http.protocols.vectors import normalize, to_base64, to_list

        encode = to_base64 if asked.encoding_format == "base64" else to_list
        data = [
            {"object": "embedding", "index": i, "embedding": encode(normalize(vector[: asked.dimensions], _EUCLIDEAN))}
            for i, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
        return {"object": "list", "data": data, "model": model, "usage": usage}

    return Asked(_read_texts(asked.input, "input"), write, asked.model, asked.dimensions, fields.unknown)


def parse_llama_embedding(body: Mapping[str, Any], *, strict: bool) -> Asked:
    """llama-server's request. Raises `RequestError`."""
    fields = sort_fields(dict(body), frozenset(LlamaEmbeddingFields.__struct_fields__), strict=strict)
    asked = convert(fields.values, LlamaEmbeddingFields)
    name = "content" if asked.content is not None else "input"
    value = asked.content if asked.content is not None else asked.input
    if value is None:
        raise RequestError("content is required: send text, token ids or a list of either", param="content")

    def write(vectors: list[Vector], n_tokens: int, model: str) -> list[dict[str, Any]]:
        from phobos.http.protocols.vectors import normalize, to_list

        return [
            {"index": i, "embedding": [to_list(normalize(vector, asked.embd_normalize))]}
            for i, vector in enumerate(vectors)
        ]

    return Asked(_read_texts(value, name), write, ignored=fields.unknown)


def _read_texts(value: _Input, name: str) -> tuple[Text, ...]:
    """One text, its token ids, or several of either."""
    if isinstance(value, str):
        return (value,)
    numbers = [item for item in value if isinstance(item, int)]
    if numbers and len(numbers) == len(value):
        return (tuple(numbers),)
    if numbers:
        raise RequestError(f"{name} mixes token ids with texts: send lists of ids", param=name)
    if not 1 <= len(value) <= MAX_INPUTS:
        raise RequestError(f"{name} must hold 1 to {MAX_INPUTS} texts, not {len(value)}", param=name)
    return tuple(item if isinstance(item, str) else tuple(item) for item in value if not isinstance(item, int))


async def answer(generations: Generations, asked: Asked, request_id: str) -> Response:
    """The whole of one request. Raises `RequestError`."""
    async with generations.admitted(len(asked.texts), None) as (run, engine):
        model = engine.model
        if not model.embeds:
            raise RequestError(NO_EMBEDDINGS, code="unsupported_endpoint")
        generations.check_model(asked.model, model)
        requests = await generations.prepare(_prepare, asked.texts, model, request_id)
        results = await generations.read_all(run, engine, requests, len(requests), Embedded)
        from phobos.http.protocols.vectors import are_numbers, to_vector

        vectors = [to_vector(result.values) for result in results]
        if not are_numbers(vectors):
            raise UnavailableError("the model gave no numbers: check the model file")
        width = len(vectors[0])
        if asked.dimensions is not None and asked.dimensions > width:
            raise RequestError(f"dimensions must be at most {width}, the width of this model", param="dimensions")
        n_tokens = sum(len(request.tokens) for request in requests)
        reply = asked.write(vectors, n_tokens, asked.model or generations.model_name(model))
        return json_response(reply, headers=reply_headers(run.place.queue_wait_s, asked.ignored))


def _prepare(texts: Sequence[Text], model: ServedModel, request_id: str) -> list[EmbedRequest]:
    return [EmbedRequest(request_id, model.prepare_text(text)) for text in texts]
