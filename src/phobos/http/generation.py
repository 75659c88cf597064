"""One generation request's way: admission, preparation, submission, events, reply.

`Generations` belongs to the listener's loop. Protocols plug in as the `ReplyForm` of a job (`reply.py`). The status of
a stream is decided by its first output; a stream silent for a heartbeat is opened early, and a failure
after that is one error event.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from phobos.chat.events import (
    Event,
    Failed,
    Finished,
    ReasoningDelta,
    Started,
    Submission,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
)
from phobos.chat.messages import EmbedRequest, GenerationRequest, ScoreRequest
from phobos.counters import Counters
from phobos.decide import WINDOW
from phobos.errors import PhobosError, RequestError, UnavailableError
from phobos.http.admission import Place, RequestQueue
from phobos.http.delivery import EventStream, Mailbox, coalesce
from phobos.http.metrics import Metrics
from phobos.http.reply import Job, ReplyFacts, Writer
from phobos.http.reply_headers import reply_headers
from phobos.http.served import ServedEngine, ServedModel, SlotActions
from phobos.http.short_prompts import is_short, is_small
from phobos.http.transport.wire import (
    SSE_TYPE,
    Channel,
    Refusal,
    Request,
    Response,
    json_response,
    quoted,
    refusal_of,
)
from phobos.settings import ServeSettings

if TYPE_CHECKING:
    from phobos.engine.model import Prepared

log = logging.getLogger("phobos.http")

# A prompt of at most so much is prepared on the loop, where the last such one took no longer than this.
QUICK_S = 0.002
MAX_NOTED = 256
MAX_MODEL_CHARS = 512

T = TypeVar("T")
Beat = Callable[[], Awaitable[None]]


class Run:
    """A job that the engine works on."""

    def __init__(self, place: Place, events: EventStream, n_choices: int, metrics: Metrics) -> None:
        self.place = place
        self.events = events
        self.n_open = n_choices
        self.tickets: list[Submission] = []
        self.ignored: tuple[str, ...] = ()
        self.left_open: tuple[str, ...] = ()
        self._metrics = metrics
        self.submitted_s = time.monotonic()
        self._spoke = False

    def expect(self, n_choices: int) -> None:
        """So many are to end, now that it is known; for what is not a choice a place."""
        self.n_open = n_choices
        self.events.expect(n_choices)

    def note(self, choice: int, event: Event) -> None:
        """Keep the books; raises the error of a choice that failed."""
        if isinstance(event, Started):
            self.place.occupy(choice, event.slot)
        elif isinstance(event, Failed):
            raise event.error
        elif isinstance(event, Finished):
            self.n_open -= 1
            self.place.release_one(choice, self.n_open)
            self._metrics.engine_call.observe(time.monotonic() - self.submitted_s)
        elif not self._spoke and isinstance(event, (TextDelta, ReasoningDelta, ToolCallStart, ToolCallDelta)):
            self._spoke = True
            self._metrics.first_output.observe(time.monotonic() - self.submitted_s)

    def stop(self) -> None:
        """Take back what still runs and give the place up; twice is fine."""
        for ticket in self.tickets:
            ticket.cancel()
        if self.n_open:
            self._metrics.engine_call.observe(time.monotonic() - self.submitted_s)
            self.n_open = 0
        self.events.close()
        self.place.release()


class Generations:
    """Every generation of the server; see the module's text."""

    def __init__(self, settings: ServeSettings, counters: Counters, metrics: Metrics, mailbox: Mailbox) -> None:
        self.settings = settings
        self.metrics = metrics
        self._counters = counters
        self._mailbox = mailbox
        self.queue = RequestQueue(settings.max_queue, settings.queue_timeout_s, self._note_depth)
        self.engine: ServedEngine | None = None
        self._failure: PhobosError | None = None
        self._loaded = asyncio.Event()
        self._runs: set[Run] = set()
        # Rendering and tokenizing a long prompt takes long enough to hold up other clients' text.
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="phobos-prepare")
        self._noted: set[str] = set()  # places of schemas that were logged
        self._short_s = math.inf  # what preparing the last short prompt took

    # --- life -----------------------------------------------------------------------------------------------------

    def attach(self, engine: ServedEngine) -> None:
        """The model is ready."""
        self.engine = engine
        self._loaded.set()
        self.queue.open(engine.model.n_slots)

    def fail(self, error: PhobosError) -> None:
        """No answer will come any more: refuse who waits, end who runs."""
        if self._failure is None:
            self._failure = error
        self._loaded.set()
        self.queue.close(error)
        for run in list(self._runs):
            run.events.fail(error)

    def close(self) -> None:
        """Free the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def failure(self) -> PhobosError | None:
        """Why nothing can be answered, if so."""
        if self._failure is None and self.engine is not None and not self.engine.alive:
            cause = self.engine.failure
            reason = f": {cause}" if isinstance(cause, UnavailableError) else ""
            return UnavailableError(f"the engine has stopped{reason}; the server must be started again")
        return self._failure

    @property
    def n_running(self) -> int:
        """Jobs the engine works on."""
        return len(self._runs)

    async def model(self) -> ServedModel:
        """The model, waiting until it is loaded. Raises why there is none."""
        await self._loaded.wait()
        return self._engine().model

    def slot_actions(self) -> SlotActions:
        """What can be done with the engine's slots by name. Raises why there is no engine."""
        return self._engine().slot_actions

    async def prepare(self, work: Callable[..., T], *arguments: object) -> T:
        """Run something that takes its time beside the loop."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)

    def _engine(self) -> ServedEngine:
        failure = self.failure
        if failure is not None:
            raise failure
        assert self.engine is not None
        return self.engine

    def _note_depth(self, depth: int) -> None:
        self._counters.queue_depth = depth

    def model_name(self, model: ServedModel) -> str:
        """The id the model goes by."""
        return self.settings.model_id or model.label

    # --- one job --------------------------------------------------------------------------------------------------

    async def answer(self, request: Request, job: Job, channel: Channel) -> Response | None:
        """Run a job and reply: a response, or None when the reply was streamed."""
        self._counters.requests_received += 1
        started_s = time.monotonic()
        try:
            reply = await (self._stream(request, job, channel) if job.stream else self._whole(request, job))
        except asyncio.CancelledError:
            log.info("%s cancelled: the client left after %.1f s", request.told, time.monotonic() - started_s)
            raise
        except Exception as error:
            if channel.opened or isinstance(error, ConnectionError):
                raise
            return job.form.error(_refuse(request, error))
        return reply

    async def _whole(self, request: Request, job: Job) -> Response:
        entered_s = time.monotonic()
        async with self._run(request.request_id, job, None) as (run, facts):
            fold = job.form.fold(facts)
            while run.n_open:
                for choice, event in await self.next_events(run):
                    run.note(choice, event)
                    fold.push(choice, event)
            notes = reply_headers(facts.queue_wait_s, run.ignored, run.left_open)
            reply = json_response(fold.reply(), headers=notes)
        _note_completed(request, entered_s)
        return reply

    async def _stream(self, request: Request, job: Job, channel: Channel) -> None:
        entered_s = time.monotonic()
        held = b""
        spoke = False
        writer: Writer | None = None
        notes: tuple[tuple[str, ...], tuple[str, ...]] = (job.ignored, ())

        async def send(data: bytes, wait_s: float) -> None:
            nonlocal held
            if not channel.opened:
                await channel.open(200, SSE_TYPE, reply_headers(wait_s, *notes))
            data, held = held + data, b""
            await channel.send(data)

        async def beat() -> None:
            await send(job.form.heartbeat, time.monotonic() - entered_s)

        try:
            async with self._run(request.request_id, job, beat) as (run, facts):
                writer = job.form.writer(facts)
                notes = (run.ignored, run.left_open)
                while run.n_open:
                    for choice, event in coalesce(await self.next_events(run, beat)):
                        run.note(choice, event)
                        held += writer.push(choice, event)
                        spoke = spoke or not isinstance(event, Started)
                    if spoke and held and run.n_open:
                        await send(b"", facts.queue_wait_s)
                await send(writer.end(), facts.queue_wait_s)
            _note_completed(request, entered_s)
        except ConnectionError:
            raise
        except Exception as error:
            if not channel.opened and not spoke:
                raise
            tail = writer if writer is not None else job.form.writer(_no_facts(request.request_id))
            await send(tail.fail(_refuse(request, error)), time.monotonic() - entered_s)

    @contextlib.asynccontextmanager
    async def _run(self, request_id: str, job: Job, beat: Beat | None) -> AsyncIterator[tuple[Run, ReplyFacts]]:
        """A job that is admitted, prepared and submitted; what cannot be honoured does not wait to be refused."""
        if self.engine is not None and self.failure is None:
            self.check_model(job.model, self.engine.model)
            for request in job.requests:
                if is_small(request):
                    self.engine.model.check(request)
                else:
                    await self.prepare(self.engine.model.check, request)
        async with self.admitted(job.n_choices, job.requests[0].cache_slot, beat) as (run, engine):
            self.check_model(job.model, engine.model)
            await self._submit(engine, job, run, beat)
            self._note(job, run, engine.model)
            model = job.model or self.model_name(engine.model)
            wait_s = run.place.queue_wait_s
            yield run, ReplyFacts(request_id, int(time.time()), model, wait_s, engine.model.tokenizer)

    def _note(self, job: Job, run: Run, model: ServedModel) -> None:
        """What of the request is not honoured in full: told in the reply's headers, and logged once."""
        run.ignored = job.ignored
        if job.thinking_field and not model.supports_thinking and job.requests[0].thinking:
            run.ignored = (*job.ignored, job.thinking_field)
        for place in run.left_open:
            if place not in self._noted and len(self._noted) < MAX_NOTED:
                self._noted.add(place)
                log.info("%s cannot be enforced and is left to the client", quoted(place, 200))

    @contextlib.asynccontextmanager
    async def admitted(
        self, n_choices: int, slot: int | None, beat: Beat | None = None
    ) -> AsyncIterator[tuple[Run, ServedEngine]]:
        """Admission to release. Leaving early, by whatever way, cancels what runs."""
        failure = self.failure
        if failure is not None:
            raise failure
        place = await self._enter(n_choices, slot, beat)
        run = Run(place, EventStream(self._mailbox, n_choices), n_choices, self.metrics)
        self._runs.add(run)
        admitted_s = time.monotonic()
        self.metrics.admitted += 1
        self.metrics.queue_wait.observe(place.queue_wait_s)
        try:
            yield run, self._engine()
            self.metrics.completed += 1
        except (asyncio.CancelledError, ConnectionError):
            self.metrics.cancelled += 1
            raise
        except BaseException:
            self.metrics.failed += 1
            raise
        finally:
            self._runs.discard(run)
            run.stop()
            self.metrics.slot_duration.observe(time.monotonic() - admitted_s)

    async def _enter(self, n_choices: int, slot: int | None, beat: Beat | None) -> Place:
        try:
            return await self.queue.enter(n_choices, slot, beat, self.settings.heartbeat_s)
        except asyncio.CancelledError:
            self.metrics.cancelled += 1
            raise
        except RequestError as error:
            self._counters.requests_rejected += 1
            if error.code == "queue_timeout":
                self.metrics.timed_out += 1
            else:
                self.metrics.rejected += 1
            raise

    async def _submit(self, engine: ServedEngine, job: Job, run: Run, beat: Beat | None) -> None:
        choice = 0
        prompts = []
        for request in job.requests:
            prompts.append(await self._prepare(engine.model, job, request, beat))
        if not engine.alive:
            raise self.failure or UnavailableError("the engine has stopped")
        run.left_open = tuple(dict.fromkeys(place for prepared in prompts for place in prepared.left_open))
        run.submitted_s = time.monotonic()
        run.events.await_start()
        wait_s = run.place.queue_wait_s
        for prepared in prompts:
            for copy in range(prepared.request.n):
                sink = run.events.sink(choice)
                run.tickets.append(engine.submit(prepared, sink, choice=copy, queue_wait_s=wait_s))
                choice += 1

    async def _prepare(self, model: ServedModel, job: Job, request: GenerationRequest, beat: Beat | None) -> Prepared:
        """A request made ready off the loop; a single short one at once for as long as short ones are quick, since
        handing it to another thread and back would take longer."""
        is_one = len(job.requests) == 1 and is_short(request)
        if is_one and self._short_s <= QUICK_S:
            return self._prepare_timed(model, request)
        loop = asyncio.get_running_loop()
        if is_one:
            return await self._beating(loop.run_in_executor(self._pool, self._prepare_timed, model, request), beat)
        return await self._beating(loop.run_in_executor(self._pool, model.prepare, request), beat)

    def _prepare_timed(self, model: ServedModel, request: GenerationRequest) -> Prepared:
        began_s = time.perf_counter()
        try:
            return model.prepare(request)
        finally:
            self._short_s = time.perf_counter() - began_s

    async def _beating(self, future: asyncio.Future[T], beat: Beat | None) -> T:
        """Await a future, beating while it lasts."""
        while beat is not None:
            done, _ = await asyncio.wait({future}, timeout=self.settings.heartbeat_s)
            if done:
                break
            await beat()
        return await future

    async def next_events(self, run: Run, beat: Beat | None = None) -> list[tuple[int, Event]]:
        """What has come since, waiting for the first; beating meanwhile. Raises why nothing comes any more."""
        while True:
            batch = await run.events.next_batch(self.settings.heartbeat_s)
            if batch:
                return batch
            if self.failure is not None:
                raise self.failure
            if beat is not None:
                await beat()

    async def read_all(
        self, run: Run, engine: ServedEngine, requests: Iterable[ScoreRequest | EmbedRequest], n: int, kind: type[T]
    ) -> list[T]:
        """What came of `n` prompts that are only read, results of one kind, in their order. A few are asked for at a
        time, so that one who leaves leaves little behind."""
        run.expect(n)
        waiting = enumerate(requests)
        results: dict[int, T] = {}

        def submit(n_more: int) -> None:
            for _, (index, request) in zip(range(n_more), waiting, strict=False):
                run.tickets.append(engine.read(request, run.events.sink(index), queue_wait_s=run.place.queue_wait_s))

        submit(WINDOW)
        while run.n_open:
            n_before = run.n_open
            for index, event in await self.next_events(run):
                run.note(index, event)
                if isinstance(event, kind):
                    results[index] = event
            submit(n_before - run.n_open)
        return [results[index] for index in range(n)]

    def check_model(self, name: str | None, model: ServedModel) -> None:
        """Refuse another model's name where names count, and what is too long to be one: replies repeat it."""
        if name is not None and len(name) > MAX_MODEL_CHARS:
            raise RequestError(
                f"model has more than {MAX_MODEL_CHARS} characters: send the model's name", param="model"
            )
        if self.settings.strict_model and name not in (None, self.model_name(model)):
            raise RequestError(
                f"the model {quoted(name)} is not here: this server has {quoted(self.model_name(model))}",
                code="model_not_found",
                param="model",
                status=404,
            )


def _note_completed(request: Request, entered_s: float) -> None:
    log.info("%s completed in %.2f s", request.told, time.monotonic() - entered_s)


def _refuse(request: Request, error: Exception) -> Refusal:
    refusal = refusal_of(error)
    if refusal.code in ("internal_error", "engine_error"):
        log.error("%s failed: %s", request.told, type(error).__name__, exc_info=error)
    else:
        reason = f": {refusal.message}" if refusal.status == 429 else ""  # others may quote what a client wrote
        log.info("%s refused: %d %s%s", request.told, refusal.status, refusal.code, reason)
    return refusal


def _no_facts(request_id: str) -> ReplyFacts:
    return ReplyFacts(request_id, int(time.time()), "", 0.0, None)
