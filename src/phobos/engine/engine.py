"""The engine thread: inbox, turn loop, delivery to sinks, failure policy.

Any thread may submit, cancel and close; everything else belongs to the engine's own thread: sequences, slots, the
backend, and the counters marked so; `call` runs something there between two turns. A turn drains the inbox, gives free
slots to waiting sequences, runs one pass and delivers what came of it. A cancel takes effect before the next pass. With
nothing to do the thread sleeps on a condition and is woken by the inbox; it never polls.

Failures. What a sequence does wrong fails that sequence. An error of the backend leaves its state unknown: every
sequence fails, `failure` says why, and the engine takes no more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Listing
from concurrent.futures import Future
from dataclasses import replace
from typing import Literal, TypeVar

from phobos.chat.events import Event, Failed, Sink
from phobos.chat.messages import EmbedRequest, ScoreRequest
from phobos.counters import Counters
from phobos.engine.model import Model, Prepared
from phobos.engine.reading import Reader, Results, next_rows
from phobos.engine.sampler import Sampler
from phobos.engine.scheduler import Pace, mark_of, plan_chunks, view_prompts
from phobos.engine.scoring import PromptReading, open_reading
from phobos.engine.sequence import Admission, Sequence
from phobos.engine.slots.archive import Archive
from phobos.engine.slots.cache import ReusePlan, Slots
from phobos.engine.slots.forks import ForkPlan, Forks
from phobos.engine.slots.residency import Residency
from phobos.engine.slots.rows import Rows
from phobos.engine.slots.slot_actions import Calls, SlotActions
from phobos.engine.slots.store import Store
from phobos.engine.speculative.lookahead import Lookahead
from phobos.engine.tickets import Ticket, slot_of
from phobos.engine.waiting import find_trunks, find_youngest, is_held
from phobos.errors import ContextLengthError, PhobosError, UnavailableError
from phobos.kernels.sampling import RowKernels

log = logging.getLogger(__name__)
T = TypeVar("T")

PROMPT_LOGPROB_ROWS = 32  # at most so many of a prompt's rows give logits in one pass
PUBLISH_S = 0.05  # how often running requests are shown anew
SHUTTING_DOWN = "the server is shutting down: send the request again once it is back"


class Engine:
    """Runs one model. See the module for what each thread may do."""

    def __init__(self, model: Model, counters: Counters, store: Store | None = None) -> None:
        self.model = model
        self.counters = counters
        self.failure: PhobosError | None = None
        limits = model.backend.limits
        self._max_rows = limits.max_rows
        self._n_prompt_outputs = max(1, min(PROMPT_LOGPROB_ROWS, limits.max_outputs - model.n_slots))
        self._kernels = RowKernels(min(limits.n_vocab, model.tokenizer.n_vocab))
        self._reader = Reader(self._kernels, counters)
        self._can_cut = limits.can_cut
        self._slots = Slots(model.n_slots, model.n_ctx, can_cut=limits.can_cut)
        self._forks = Forks(limits.fork_block, model.n_ctx) if limits.fork_block and limits.can_cut else None
        self._pace = Pace(max(1, min(model.settings.chunk_rows, limits.max_rows - model.n_slots)))
        self.lookahead = Lookahead(
            self._pace.costs,
            limits,
            self._kernels,
            looks_up=model.settings.lookup and limits.can_cut,
            draft=model.draft,
        )
        archive = Archive(model.archive_bytes, can_cut=limits.can_cut)
        self._residency = Residency(model.backend, self._slots, archive, store, on_clear=self.lookahead.release)
        self._calls = Calls()
        self.slot_actions = SlotActions(self.call, model.n_slots, store)
        if store is not None:
            store.on_written = self._wake
        self._changed = threading.Condition()
        self._inbox: list[Ticket] = []  # guarded by _changed
        self._deadline_s: float | None = None  # guarded by _changed; set once closing
        self._woken = False  # guarded by _changed
        self._waiting: list[Ticket] = []
        self._running: list[Ticket] = []
        self._owners: dict[int, str] = {}  # by slot: the request that ran in it last
        self._turn = 0
        self._published_s = 0.0
        self._thread = threading.Thread(target=self._live, name="engine", daemon=True)

    # Any thread

    @property
    def alive(self) -> bool:
        """Whether the engine takes requests."""
        return self._thread.is_alive() and self.failure is None and self._deadline_s is None

    def start(self) -> None:
        """Start the thread."""
        self.counters.state = "IDLE"
        self.counters.slots = self._slots.describe()
        self.counters.cache = self._residency.describe()
        self._thread.start()

    def submit(self, prepared: Prepared, sink: Sink, *, choice: int = 0, queue_wait_s: float = 0.0) -> Ticket:
        """Queue one choice of a request that `Model.prepare` made ready; `sink` gets its events.

        Raises `UnavailableError` where the engine has failed or is closing, `ContextLengthError` where the prompt
        leaves no room for an answer.
        """
        model, tokens, answer = self.model, prepared.tokens, prepared.answer
        if not 0 < len(tokens) < model.n_ctx:
            raise ContextLengthError(len(tokens), model.n_ctx)
        scanner = answer.open_scanner() if answer is not None else None
        sequence = Sequence(
            prepared.request,
            tokens,
            model.tokenizer,
            Sampler(prepared.sampling, tokens, choice, self._kernels),
            n_ctx=model.n_ctx,
            max_tokens=model.settings.sampling.max_tokens,
            choice=choice,
            scanner=scanner,
            constraint=answer.open_binding(scanner) if answer is not None else None,
            submitted_s=time.monotonic(),
            queue_wait_s=queue_wait_s,
        )
        return self._enqueue(sequence, sink)

    def read(self, request: ScoreRequest | EmbedRequest, sink: Sink, *, queue_wait_s: float = 0.0) -> Ticket:
        """Queue a prompt that is only read; `sink` gets `Started`, `Scores` or `Embedded`, and `Finished`, or `Failed`.
        Raises as `submit` does."""
        model = self.model
        reading = open_reading(request, model.backend.limits.pooling, model.n_ctx, queue_wait_s=queue_wait_s)
        return self._enqueue(reading, sink)

    def _enqueue(self, sequence: Sequence | PromptReading, sink: Sink) -> Ticket:
        ticket = Ticket(sequence, sink, self._wake)
        with self._changed:
            self._check_open()
            self._inbox.append(ticket)
            self._changed.notify()
        return ticket

    def call(self, slot: int, work: Callable[[Residency], T]) -> Future[T]:
        """Run something between two turns, once a slot is idle. `UnavailableError` as `submit`."""
        with self._changed:
            self._check_open()
            self._woken = True
            self._changed.notify()
            return self._calls.add(slot, work)

    def _check_open(self) -> None:
        """Called with the lock held."""
        if self.failure is not None:
            raise UnavailableError(str(self.failure))
        if self._deadline_s is not None:
            raise UnavailableError(SHUTTING_DOWN)

    def close(self, drain_s: float = 0.0) -> None:
        """Take no more, give running sequences `drain_s` seconds to end, stop the thread, close the backend.

        Blocks until that is done. Twice is fine: the earlier deadline counts.
        """
        deadline_s = time.monotonic() + drain_s
        with self._changed:
            earlier = self._deadline_s
            self._deadline_s = deadline_s if earlier is None else min(earlier, deadline_s)
            self._changed.notify()
        if self._thread.ident is None:
            self._residency.close(save=False)
            self.model.close()
        elif self._thread is not threading.current_thread():
            self._thread.join()

    def _wake(self) -> None:
        """A cancel is to be noticed."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    # The engine's thread

    def _live(self) -> None:
        """Turns until closed or broken."""
        try:
            while self._await_work():
                self._run_turn()
        except Exception as error:
            log.exception("the engine stopped")
            self._break(error)
        finally:
            self._publish(now=True)
            if self.failure is None:
                self.counters.state = "STOPPING"
            self._calls.refuse(self.failure or UnavailableError(SHUTTING_DOWN))
            self._residency.close(save=self.failure is None)
            self.model.close()

    def _await_work(self) -> bool:
        """Sleep until there is something to do, and take in what has come; False once closed."""
        idle, is_settled = not self._waiting and not self._running, False
        rest_s = self._residency.rest_s if idle and not self._inbox else None  # looks through all that is kept
        with self._changed:
            while idle and not self._inbox and not self._woken and self._deadline_s is None:
                self.counters.state = "IDLE"
                is_settled = not self._changed.wait(rest_s)
                if is_settled:
                    break
            self._woken = False
            came, self._inbox = self._inbox, []
            deadline_s = self._deadline_s
        self._waiting += came
        self._drop_cancelled()
        if self._calls.run(self._residency, self._slots.busy):
            self._publish(now=True)
        if is_settled:
            self._residency.rest()
        if deadline_s is None:
            return True
        self.counters.state = "STOPPING"
        is_over = time.monotonic() >= deadline_s
        ended = [t for t in [*self._waiting, *self._running] if is_over or not t.sequence.has_begun]
        self._fail_all(ended, UnavailableError(SHUTTING_DOWN))
        return bool(self._running or self._waiting)

    def _run_turn(self) -> None:
        """One turn: admit, one pass, deliver."""
        self._admit_waiting()
        decoding = [t for t in self._running if not t.sequence.is_prefill]
        prompts = [t for t in self._running if t.sequence.is_prefill]
        if not self._running:
            return
        budget = min(self._pace.budget(len(decoding)), self._max_rows - len(decoding)) if prompts else 0
        planned_s = time.perf_counter()
        guesses = self.lookahead.plan([t.sequence for t in decoding], budget if prompts else None)
        self.counters.decode_s += time.perf_counter() - planned_s
        n_guessed = sum(len(guess) for guess in guesses)
        n_outputs = max(1, self._n_prompt_outputs - n_guessed)
        views = view_prompts([ticket.sequence for ticket in prompts], n_outputs, self._can_cut)
        planned = plan_chunks(views, budget - n_guessed, self._turn)
        chunks = [(prompts[chunk.key], chunk.n_rows) for chunk in planned]
        passed = [*decoding, *(ticket for ticket, _ in chunks)]
        runs = [next_rows(t.sequence, 1, guess) for t, guess in zip(decoding, guesses, strict=True)]
        runs += [next_rows(ticket.sequence, n) for ticket, n in chunks]
        if self._deadline_s is None:
            self.counters.state = "PREFILL" if chunks else "DECODE"
        for ticket, rows in zip(passed, runs, strict=True):
            if rows.n_outputs and ticket.sequence.constraint is not None:
                ticket.sequence.constraint.prepare()
        passed, runs = self._fit(passed, runs)
        if not runs:
            return
        started_s = time.perf_counter()
        results = self._reader.run(self.model.backend, runs, [ticket.sequence for ticket in passed])
        self._account(passed, runs, time.perf_counter() - started_s)
        self._turn += 1
        first = 0
        for ticket, rows in zip(passed, runs, strict=True):
            if rows.fork is None:
                self._slots.extend(rows.slot, rows.tokens[: rows.n_certain])
            if rows.first_position + len(rows.tokens) == mark_of(ticket.sequence, self._can_cut):
                self._slots.keep(rows.slot, self.model.backend.save_state(rows.slot))
            self._advance(ticket, rows, results.part(first, rows.n_outputs))
            first += rows.n_outputs
        self.lookahead.settle()
        self._publish()

    def _fit(self, passed: list[Ticket], runs: list[Rows]) -> tuple[list[Ticket], list[Rows]]:
        """What of these rows can run in the memory there is: the youngest sequences are set aside for the others."""
        while not self._residency.make_room(runs):
            youngest = find_youngest(self._running)
            if youngest is None or not isinstance(youngest.sequence, Sequence):
                raise AssertionError("what only reads has its memory")
            self._residency.set_aside(slot_of(youngest), time.monotonic())
            self._running.remove(youngest)
            youngest.sequence.set_aside()
            self._waiting.insert(0, youngest)
            self.counters.requests_set_aside += 1
            kept = [i for i, ticket in enumerate(passed) if ticket is not youngest]
            passed, runs = [passed[i] for i in kept], [runs[i] for i in kept]
        return passed, runs

    def _account(self, passed: list[Ticket], runs: list[Rows], seconds: float) -> None:
        """Count a pass and what its kinds of rows took."""
        n_prompt_rows = sum(len(r.tokens) for t, r in zip(passed, runs, strict=True) if t.sequence.is_prefill)
        n_decoding = sum(not ticket.sequence.is_prefill for ticket in passed)
        n_guessed = sum(rows.n_drafted for rows in runs)
        prompt_s = self._pace.observe(n_decoding, n_prompt_rows, seconds, n_guessed)
        counters = self.counters
        counters.passes += 1
        counters.bytes_read = self.model.backend.bytes_read
        counters.prompt_s += prompt_s
        counters.decode_s += seconds - prompt_s
        counters.prompt_tokens_computed += n_prompt_rows

    def _advance(self, ticket: Ticket, rows: Rows, results: Results) -> None:
        """The rows of one sequence have run, with these results: choose its next tokens."""
        sequence = ticket.sequence
        was_prefill = sequence.is_prefill
        sequence.n_rows += rows.n_certain
        sequence.last_turn = self._turn
        if ticket.is_closed:
            return
        try:
            events = self._reader.read(sequence, rows, results, was_prefill)
            self._slots.extend(rows.slot, rows.tokens[rows.n_certain : sequence.n_rows - rows.first_position])
        except PhobosError as error:
            self._end(ticket, [Failed(error)])
        except Exception:
            log.exception("request %s failed", sequence.request.request_id)
            self._end(ticket, [Failed(UnavailableError("the engine failed on this request; see the server's log"))])
        else:
            if sequence.finished is not None:
                self._end(ticket, events)
            else:
                ticket.deliver(events)

    # Slots

    def _admit_waiting(self) -> None:
        """Give idle slots to waiting sequences, first come first served. Behind one that waits for memory nobody
        starts, so that its turn comes."""
        n_idle = self._slots.n_idle
        for ticket in list(self._waiting):
            sequence = ticket.sequence
            sources = self._sources(sequence)
            found = self._plan_fork(sequence, sources) if isinstance(sequence, PromptReading) else None
            if isinstance(found, ForkPlan):
                if not self._residency.fork(found.fork.slot, found.fork.place + found.fork.size):
                    break
                self._open_fork(ticket, found)
            if found is not None:
                continue
            if n_idle == 0:
                continue
            pinned = sequence.request.cache_slot if sequence.choice == 0 else None
            plan = self._residency.plan(sequence.reusable, pinned=pinned, sources=sources)
            if plan is None:
                continue  # its own slot is busy: others may pass
            if not self._residency.has_room(self._residency.expect(len(sequence.tokens), sequence.n_most)):
                break
            n_idle -= 1
            running = [other.sequence for other in self._running]
            if not is_held(sequence, plan, sources, running, self._can_cut):
                self._waiting.remove(ticket)
                self._admit(ticket, plan)

    def _plan_fork(self, sequence: PromptReading, sources: frozenset[int] | None) -> ForkPlan | Literal["wait"] | None:
        """How a scoring can run in a fork of a slot that holds what others share with it, or whether it should wait for
        one. None where it needs a slot."""
        request = sequence.request
        if self._forks is None or request.n_shared is None:
            return None
        return self._forks.plan(
            sequence, request.n_shared, find_trunks(request, sources, self._slots.view(), self._running)
        )

    def _open_fork(self, ticket: Ticket, plan: ForkPlan) -> None:
        """Run a scoring in a fork, for which there is room."""
        fork, now_s = plan.fork, time.monotonic()
        if plan.n_copied:
            self.model.backend.copy_within(fork.slot, plan.source, fork.place, plan.n_copied)
        assert self._forks is not None and isinstance(ticket.sequence, PromptReading)
        self._forks.open(fork, ticket.sequence)
        self._slots.hold(fork.slot, now_s)
        self._waiting.remove(ticket)
        self._start(ticket, Admission(fork.slot, plan.n_reused, now_s, fork))

    def _sources(self, sequence: Sequence | PromptReading) -> frozenset[int] | None:
        """The slots a sequence may take a prefix from; None for all."""
        request = sequence.request
        if sequence.first_told == 0:
            return frozenset()
        if request.cache_prompt and self.model.settings.prefix_cache:
            return None
        return frozenset(slot for slot, owner in self._owners.items() if owner == request.request_id)

    def _admit(self, ticket: Ticket, plan: ReusePlan) -> None:
        """Run a sequence in its slot from now on."""
        sequence, now_s = ticket.sequence, time.monotonic()
        n_likely = self._residency.expect(len(sequence.tokens), sequence.n_most)
        n_reused = self._residency.admit(plan, sequence.reusable, n_likely, now_s)
        self._start(ticket, Admission(plan.slot, n_reused, now_s))

    def _start(self, ticket: Ticket, admission: Admission) -> None:
        """It runs from now on."""
        sequence = ticket.sequence
        self._owners[admission.slot] = sequence.request.request_id
        self._running.append(ticket)
        sequence.last_turn = self._turn
        counters = self.counters
        events = sequence.admit(admission)
        if events:  # else it goes on
            counters.requests_admitted += 1
            counters.prompt_tokens += sequence.n_prompt
            counters.prompt_tokens_reused += admission.n_cached
            ticket.deliver(events)
        self._publish(now=True)

    def _free(self, ticket: Ticket) -> None:
        """Take a running sequence off its slot."""
        self._running.remove(ticket)
        slot, admission = slot_of(ticket), ticket.sequence.admission
        if self._forks is not None and admission is not None and admission.fork is not None:
            self._forks.close(admission.fork, ticket.sequence.finished is not None)
        if slot in map(slot_of, self._running):
            return
        if self._forks is not None:
            self._forks.forget(slot)
        self._residency.give_back(slot, time.monotonic())
        if not self.model.settings.prefix_cache:
            self._release_idle()

    def _release_idle(self) -> None:
        """Without the prefix cache: give back what no further choice of its request will copy."""
        wanted = {ticket.sequence.request.request_id for ticket in self._waiting}
        for slot in self._slots.view():
            if not slot.is_busy and slot.index in self._owners and self._owners[slot.index] not in wanted:
                del self._owners[slot.index]
                self._residency.forget(slot.index)

    # Ends

    def _end(self, ticket: Ticket, events: Listing[Event]) -> None:
        """A running sequence finished or failed: free its slot, then deliver its last events."""
        self._free(ticket)
        failed = bool(events) and isinstance(events[-1], Failed)
        self._record(ticket, failed=failed)
        ticket.deliver(events, last=True)

    def _record(self, ticket: Ticket, *, failed: bool) -> None:
        """Count an end and show it among the recent requests."""
        counters = self.counters
        info = ticket.sequence.describe()
        if ticket.is_cancelled:
            counters.requests_cancelled += 1
        elif failed:
            counters.requests_failed += 1
        else:
            counters.requests_completed += 1
            if isinstance(ticket.sequence, Sequence):
                self._residency.note_answer(info.n_generated)
        reason = "cancelled" if ticket.is_cancelled else "failed" if failed else info.finish_reason
        finished_s = info.finished_s if info.finished_s is not None else time.monotonic()
        counters.recent.appendleft(replace(info, phase="done", finish_reason=reason, finished_s=finished_s))
        self._publish(now=True)

    def _drop_cancelled(self) -> None:
        """Forget what was cancelled since the last turn."""
        for ticket in [t for t in self._waiting if t.is_closed]:
            self._waiting.remove(ticket)
            self._record(ticket, failed=False)
            if not self.model.settings.prefix_cache:
                self._release_idle()
        for ticket in [t for t in self._running if t.is_closed]:
            self._free(ticket)
            self._record(ticket, failed=False)

    def _fail_all(self, tickets: list[Ticket], error: PhobosError) -> None:
        """End these sequences by an error."""
        for ticket in tickets:
            if ticket in self._running:
                self._end(ticket, [Failed(error)])
            else:
                self._waiting.remove(ticket)
                self._record(ticket, failed=True)
                ticket.deliver([Failed(error)], last=True)

    def _break(self, error: Exception) -> None:
        """The backend failed: nothing it holds can be trusted any more."""
        failure = UnavailableError(f"the engine stopped by an error ({type(error).__name__}): restart the server")
        failure.__cause__ = error
        with self._changed:
            self.failure = failure
            came, self._inbox = self._inbox, []
        self.counters.state = "FAILED"
        self.counters.failure = str(failure)
        running, self._running = self._running, []
        for ticket in [*running, *self._waiting, *came]:
            self._record(ticket, failed=True)
            ticket.deliver([Failed(failure)], last=True)
        self._waiting = []

    def _publish(self, *, now: bool = False) -> None:
        """Show slots and live requests to the readers of the counters."""
        now_s = time.monotonic()
        if not now and now_s - self._published_s < PUBLISH_S:
            return
        self._published_s = now_s
        self.counters.slots = self._slots.describe()
        self.counters.cache = self._residency.describe()
        self.counters.live = tuple(t.sequence.describe() for t in [*self._running, *self._waiting])
