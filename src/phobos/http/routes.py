"""Which path does what. `Routes` is the application a connection talks to.

A route is a row in `_TABLE`; the `/v1` routes also answer without the prefix. Refusals that need no body (host, key,
path, method, type) come from `refuse`, before the body is read. Errors a handler raises become responses here, so a
connection never sees one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import unquote

import phobos
from phobos.counters import Counters
from phobos.http import status
from phobos.http.generation import Generations
from phobos.http.protocols import embeddings, llama_server, systemone
from phobos.http.protocols.anthropic import count_tokens, parse_message_job
from phobos.http.protocols.anthropic_reply import anthropic_error
from phobos.http.protocols.fields import decode_object
from phobos.http.protocols.llama_completion import parse_llama_completion
from phobos.http.protocols.openai import count_chat_tokens, parse_chat, parse_completion
from phobos.http.protocols.responses import parse_response_job
from phobos.http.reply import Job
from phobos.http.served import ServedModel
from phobos.http.transport.security import ALLOWED_METHODS, Guard, is_from_browser
from phobos.http.transport.wire import (
    Channel,
    Headers,
    Refusal,
    Request,
    RequestHead,
    Response,
    bounded,
    json_response,
    quoted,
    refusal_of,
)
from phobos.log import TRACE
from phobos.settings import ServeSettings

log = logging.getLogger("phobos.http")

MAX_NAMES_LOGGED = 256
_MODELS = "/v1/models"
_MESSAGES = "/v1/messages"
_SLOTS = "/slots"
SMALL_BODY_BYTES = 32 << 10  # read on the loop
T = TypeVar("T")
Handler = Callable[["Routes", Request, Channel], Awaitable[Response | None]]


class Routes:
    """The application; used on the loop only."""

    def __init__(self, generations: Generations, counters: Counters, guard: Guard) -> None:
        self.generations = generations
        self.counters = counters
        self.guard = guard
        self._logged: set[str] = set()

    # --- Application ----------------------------------------------------------------------------------------------

    def refuse(self, head: RequestHead, peer: str) -> Response | None:
        """A refusal that needs no body, or None."""
        refusal = self.guard.refuse(head) or self._misdirected(head)
        if refusal is None:
            return None
        log.info("refused %s %s: %d %s", head.method, shown_path(head.path), refusal.status, refusal.code)
        return _in_envelope(head.path, refusal, None)

    def express(self, refusal: Refusal, path: str) -> Response:
        """A refusal as the protocol of this path writes it."""
        return _in_envelope(path, refusal, None)

    def is_never_refused(self, head: RequestHead) -> bool:
        """Whether a request is answered however many clients are connected: who watches the server must see that."""
        return _find(head.path)[0] in (_answer_health, _answer_metrics)

    def decorate(self, head: RequestHead | None, request_id: str) -> Headers:
        """Headers every reply carries."""
        return (("x-request-id", request_id), ("server", "phobos"), *self.guard.cors(head))

    async def answer(self, request: Request, channel: Channel) -> Response | None:
        """Find the route and run it; errors become responses."""
        if request.method == "OPTIONS":
            return Response(200, headers=self.guard.preflight(request.head))
        handler, _ = _find(request.path)
        owner = self.guard.owner(request.head)
        if owner is not None:
            request = replace(request, asker=owner)
            self.counters.note_asker(request.request_id, owner)
        if request.body and log.isEnabledFor(TRACE):
            log.log(TRACE, "%s %s: %s", request.request_id, request.path, request.body.decode("utf-8", "replace"))
        try:
            return await handler(self, request, channel)
        except Exception as error:
            if channel.opened or isinstance(error, ConnectionError):
                raise
            refusal = refusal_of(error)
            if refusal.code == "internal_error":
                log.error("%s failed: %s", request.told, type(error).__name__, exc_info=error)
            return _in_envelope(request.path, refusal, request.request_id)

    # --- rules ----------------------------------------------------------------------------------------------------

    def _misdirected(self, head: RequestHead) -> Refusal | None:
        if head.method == "OPTIONS":
            return None
        handler, methods = _find(head.path)
        if handler is _answer_unknown:
            return Refusal(404, f"there is nothing at {quoted(shown_path(head.path))}", code="not_found")
        if head.method not in methods:
            allow = ", ".join((*methods, "OPTIONS"))
            message = f"this path takes {' and '.join(methods)}, not {head.method}"
            return Refusal(405, message, code="method_not_allowed", headers=(("allow", allow),))
        if head.method == "POST" and not _is_json(head):
            message = "the body must be JSON: send Content-Type: application/json"
            return Refusal(415, message, code="unsupported_media_type")
        return None

    def note_ignored(self, names: tuple[str, ...]) -> None:
        """Log each unknown field once."""
        for name in names:
            if name not in self._logged and len(self._logged) < MAX_NAMES_LOGGED:
                self._logged.add(name)
                log.info("the request field %s is not known here and is ignored", quoted(name))


def _in_envelope(path: str, refusal: Refusal, request_id: str | None) -> Response:
    """A refusal as the protocol of this path writes it."""
    if _canonical(path).startswith(_MESSAGES):
        return anthropic_error(refusal, request_id)
    return refusal.response()


def shown_path(path: str) -> str:
    """A path as logs and errors show it."""
    return bounded(path, 128)


def _is_json(head: RequestHead) -> bool:
    """Whether a body may be JSON. A program that names no type is believed, a browser not: a page can have it send
    bodies without a type to any server, unasked."""
    kind = (head.header("content-type") or "").partition(";")[0].strip().lower()
    if not kind:
        return not is_from_browser(head)
    return kind in ("application/json", "text/json") or (kind.startswith("application/") and kind.endswith("+json"))


# --- handlers -------------------------------------------------------------------------------------------------------


async def _answer_root(routes: Routes, request: Request, channel: Channel) -> Response | None:
    return status.answer_root()


async def _answer_health(routes: Routes, request: Request, channel: Channel) -> Response | None:
    detailed = routes.guard.knows_key(request.head)
    return status.answer_health(routes.generations, routes.counters, detailed=detailed)


async def _answer_metrics(routes: Routes, request: Request, channel: Channel) -> Response | None:
    return status.answer_metrics(routes.generations, routes.counters)


async def _answer_models(routes: Routes, request: Request, channel: Channel) -> Response | None:
    return await status.answer_models(routes.generations)


async def _answer_model(routes: Routes, request: Request, channel: Channel) -> Response | None:
    return await status.answer_model(routes.generations, unquote(_canonical(request.path)[len(_MODELS) + 1 :]))


async def _answer_slots(routes: Routes, request: Request, channel: Channel) -> Response | None:
    model = await routes.generations.model()
    return json_response(llama_server.describe_slots(model, routes.counters.snapshot()))


async def _act_on_slot(routes: Routes, request: Request, channel: Channel) -> Response | None:
    await routes.generations.model()
    slot_id = _canonical(request.path)[len(_SLOTS) + 1 :]
    actions = routes.generations.slot_actions()
    # Not among the threads that prepare prompts: it may wait for its slot.
    return json_response(
        await asyncio.to_thread(llama_server.act_on_slot, actions, slot_id, request.head.query, request.body)
    )


async def _answer_props(routes: Routes, request: Request, channel: Channel) -> Response | None:
    model = await routes.generations.model()
    return json_response(llama_server.describe_props(model, routes.generations.model_name(model)))


async def _answer_tokenizer(routes: Routes, request: Request, channel: Channel) -> Response | None:
    return json_response(llama_server.describe_tokenizer(await routes.generations.model()))


async def _answer_version(routes: Routes, request: Request, channel: Channel) -> Response | None:
    return json_response({"version": phobos.__version__})


async def _read(routes: Routes, request: Request, parse: Callable[[dict[str, Any]], T]) -> T:
    """What a body asks for; a large one is read beside the loop."""
    if len(request.body) <= SMALL_BODY_BYTES:
        return parse(decode_object(request.body))
    return await routes.generations.prepare(lambda: parse(decode_object(request.body)))


def _asking(ask: Callable[[dict[str, Any], ServedModel], dict[str, Any]]) -> Handler:
    """The handler of a route that asks the model something without running it."""

    async def answer(routes: Routes, request: Request, channel: Channel) -> Response | None:
        model = await routes.generations.model()

        def work() -> Response:
            return json_response(ask(decode_object(request.body), model))

        return await routes.generations.prepare(work)

    return answer


def _counting(count: Callable[[dict[str, Any], ServedModel, str, ServeSettings], dict[str, Any]]) -> Handler:
    """The handler of a route that counts the tokens of a prompt."""

    async def answer(routes: Routes, request: Request, channel: Channel) -> Response | None:
        generations = routes.generations
        model = await generations.model()

        def work() -> Response:
            return json_response(count(decode_object(request.body), model, request.request_id, generations.settings))

        return await generations.prepare(work)

    return answer


def _generating(parse: Callable[[dict[str, Any], str, ServeSettings], Job]) -> Handler:
    """The handler of a route that generates."""

    async def answer(routes: Routes, request: Request, channel: Channel) -> Response | None:
        job = await _read(routes, request, lambda body: parse(body, request.request_id, routes.generations.settings))
        routes.note_ignored(job.ignored)
        return await routes.generations.answer(request, job, channel)

    return answer


def _embedding(parse: Callable[..., embeddings.Asked]) -> Handler:
    """The handler of a route that embeds."""

    async def answer(routes: Routes, request: Request, channel: Channel) -> Response | None:
        routes.counters.requests_received += 1
        strict = routes.generations.settings.strict_fields
        asked = await _read(routes, request, lambda body: parse(body, strict=strict))
        routes.note_ignored(asked.ignored)
        return await embeddings.answer(routes.generations, asked, request.request_id)

    return answer


async def _answer_decision(routes: Routes, request: Request, channel: Channel) -> Response | None:
    routes.counters.requests_received += 1
    asked = await _read(routes, request, lambda body: body)
    return await systemone.answer(routes.generations, asked, request.request_id, routes.note_ignored)


async def _answer_unknown(routes: Routes, request: Request, channel: Channel) -> Response | None:
    return Refusal(404, "there is nothing here", code="not_found").response()


_GET = ("GET", "HEAD")
_POST = ("POST",)
_TABLE: dict[str, tuple[Handler, tuple[str, ...]]] = {
    "/": (_answer_root, _GET),
    "/health": (_answer_health, _GET),
    "/metrics": (_answer_metrics, _GET),
    _MODELS: (_answer_models, _GET),
    _SLOTS: (_answer_slots, _GET),
    "/props": (_answer_props, _GET),
    "/tokenizer_info": (_answer_tokenizer, _GET),
    "/version": (_answer_version, _GET),
    "/v1/chat/completions": (_generating(parse_chat), _POST),
    "/v1/chat/completions/input_tokens": (_counting(count_chat_tokens), _POST),
    "/v1/completions": (_generating(parse_completion), _POST),
    _MESSAGES: (_generating(parse_message_job), _POST),
    _MESSAGES + "/count_tokens": (_counting(count_tokens), _POST),
    "/v1/responses": (_generating(parse_response_job), _POST),
    "/v1/embeddings": (_embedding(embeddings.parse_embedding), _POST),
    "/v1/systemone": (_answer_decision, _POST),
    "/completion": (_generating(parse_llama_completion), _POST),
    "/embedding": (_embedding(embeddings.parse_llama_embedding), _POST),
    "/tokenize": (_asking(llama_server.tokenize), _POST),
    "/detokenize": (_asking(llama_server.detokenize), _POST),
    "/apply-template": (_asking(llama_server.apply_template), _POST),
}


def _canonical(path: str) -> str:
    """The table's spelling of a path: with the prefix where the route has one, without a final slash."""
    if len(path) > 1:
        path = path.rstrip("/") or "/"
    if _is_known(path):
        return path
    other = path[len("/v1") :] if path.startswith("/v1/") else "/v1" + path
    return other if _is_known(other) else path


def _is_known(path: str) -> bool:
    return path in _TABLE or path.startswith((_MODELS + "/", _SLOTS + "/"))


def _find(path: str) -> tuple[Handler, tuple[str, ...]]:
    canonical = _canonical(path)
    if canonical.startswith(_MODELS + "/"):
        return _answer_model, _GET
    if canonical.startswith(_SLOTS + "/"):
        return _act_on_slot, _POST
    return _TABLE.get(canonical, (_answer_unknown, tuple(ALLOWED_METHODS.split(", "))))
