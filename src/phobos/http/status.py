"""What the server says about itself: `/`, `/health`, `/metrics`, `/v1/models`."""

from __future__ import annotations

import time
from typing import Any

from phobos.counters import Counters
from phobos.errors import RequestError, UnavailableError
from phobos.http.generation import Generations
from phobos.http.metrics import METRICS_TYPE, render_metrics
from phobos.http.served import ServedModel
from phobos.http.transport.wire import Response, json_response, quoted, text_response

GREETING = "phobos-inference"


def answer_root() -> Response:
    """`GET /`."""
    return text_response(GREETING)


def answer_health(generations: Generations, counters: Counters, *, detailed: bool) -> Response:
    """`GET /health`: 200 once requests are answered at once, 503 while loading and after a failure.

    Without the key (`detailed` false) only the status is told.
    """
    failure = generations.failure
    if failure is not None:
        status, code = "error", 503
    elif generations.engine is None:
        status, code = "loading", 503
    else:
        status, code = "ok", 200
    if not detailed:
        # Whoever has no key learns that something answers here, and no more.
        return json_response({"status": "ok"} if code == 200 else {"status": status}, code)
    snapshot = counters.snapshot()
    body: dict[str, Any] = {
        "status": status,
        "state": snapshot.state,
        "uptime_s": round(snapshot.taken_s - snapshot.started_s, 3),
        "scheduler": generations.metrics.scheduler(generations.queue),
    }
    if code != 200 and generations.engine is None:
        body["load"] = {"stage": snapshot.load.stage, "fraction": round(snapshot.load.fraction, 4)}
    if failure is not None:
        body["error"] = str(failure) if isinstance(failure, UnavailableError) else "the engine has failed"
    if generations.engine is not None:
        model = generations.engine.model
        body["model"] = generations.model_name(model)
        body["tokens"] = {
            "prompt": snapshot.prompt_tokens,
            "prompt_computed": snapshot.prompt_tokens_computed,
            "prompt_reused": snapshot.prompt_tokens_reused,
            "generated": snapshot.generated_tokens,
        }
        body["kv_tokens"] = sum(slot.n_tokens for slot in snapshot.slots)
    return json_response(body, code)


def answer_metrics(generations: Generations, counters: Counters) -> Response:
    """`GET /metrics`."""
    snapshot = counters.snapshot()
    with_llamacpp = generations.settings.metrics_llamacpp
    text = render_metrics(generations.metrics, generations.queue, snapshot, with_llamacpp=with_llamacpp)
    started = round(time.time() - (snapshot.taken_s - snapshot.started_s))
    return Response(200, text, METRICS_TYPE, (("Process-Start-Time-Unix", str(started)),) if with_llamacpp else ())


def describe_model(generations: Generations, model: ServedModel) -> dict[str, Any]:
    """The model object of `/v1/models`."""
    info = model.info
    return {
        "id": generations.model_name(model),
        "object": "model",
        "created": model.created,
        "owned_by": "phobos",
        "context_length": model.n_ctx,
        "max_model_len": model.n_ctx,
        "capabilities": _list_capabilities(model),
        "meta": {
            "name": info.name,
            "architecture": model.architecture,
            "quantization": info.quantization,
            "n_params": info.n_params,
            "n_vocab": info.n_vocab,
            "n_ctx": model.n_ctx,
            "n_slots": model.n_slots,
            "size": info.weights_bytes,
        },
    }


def _list_capabilities(model: ServedModel) -> list[str]:
    if model.embeds:
        return ["embedding"]
    flags = {
        "chat": model.supports_chat,
        "tools": model.supports_tools,
        "structured_output": model.supports_grammar,
        "reasoning": model.supports_thinking,
        "infill": model.supports_infill,
    }
    return ["text", "completion", *(name for name, present in flags.items() if present)]


async def answer_models(generations: Generations) -> Response:
    """`GET /v1/models`; waits for the model."""
    model = await generations.model()
    return json_response({"object": "list", "data": [describe_model(generations, model)]})


async def answer_model(generations: Generations, name: str) -> Response:
    """`GET /v1/models/{id}`: the model by its id or its label."""
    model = await generations.model()
    if name not in (generations.model_name(model), model.label):
        raise RequestError(
            f"the model {quoted(name)} is not here: this server has {quoted(generations.model_name(model))}",
            code="model_not_found",
            param="model",
            status=404,
        )
    return json_response(describe_model(generations, model))
