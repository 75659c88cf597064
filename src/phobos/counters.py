"""Counters of the running engine, and the frozen snapshot everybody else reads.

Rules. A field of `Counters` has one writer, named in its comment; readers never touch `Counters` but call
`snapshot()`, which copies plain values and is cheap enough for five times a second for ever. Rates and history
are derived on the reading side. What is unknown is `None`, never zero.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from phobos.host import machine
from phobos.host.nvml import CardUse, CardWatch

MAX_ASKERS = 256  # requests whose askers are remembered


@dataclass(frozen=True)
class LoadProgress:
    """How far loading has come; `fraction` is 0..1 over the whole load."""

    stage: str = "starting"  # "mapping", "packing weights", "compiling kernels", "tokenizer", "ready", "failed"
    fraction: float = 0.0
    detail: str = ""  # the tensor or kernel at hand
    kernels_total: int = 0
    kernels_compiled: int = 0
    kernels_cached: int = 0
    slowest_kernel: str = ""
    slowest_kernel_s: float = 0.0
    error: str | None = None


@dataclass(frozen=True)
class ModelInfo:
    """What was loaded; sizes in bytes."""

    name: str
    architecture: str
    quantization: str
    n_params: int
    n_ctx: int
    n_layers: int
    n_vocab: int
    dialect: str
    weights_bytes: int
    cache_bytes: int  # the most that all conversations together may take
    scratch_bytes: int
    n_ctx_train: int = 0  # the model's own context
    layer_kinds: tuple[str, ...] = ()  # one word a layer: "full", "window", "delta", …


@dataclass(frozen=True)
class CardInfo:
    """What computes: a processor or a graphics card."""

    name: str
    kind: str  # "cpu" or "cuda"
    features: str  # the instruction path in use
    n_threads: int
    bandwidth_limit_gbs: float | None = None
    bus_ids: tuple[str, ...] = ()  # of graphics cards, as the system counts them


@dataclass(frozen=True)
class RequestInfo:
    """One request as the dashboard and `/slots` show it; times in seconds on the monotonic clock."""

    request_id: str
    phase: str  # "queued", "prefill", "decode", "done"
    slot: int | None
    n_prompt: int
    n_cached: int
    n_prompt_done: int
    n_generated: int
    submitted_s: float
    started_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    finish_reason: str | None = None
    n_draft: int = 0
    n_draft_accepted: int = 0
    asker: str = ""  # whose key it carried


@dataclass(frozen=True)
class SlotInfo:
    """What one slot of the cache holds."""

    index: int
    n_tokens: int
    busy: bool
    last_used_s: float


@dataclass(frozen=True)
class SlotReport:
    """What an action on a slot did: tokens and file bytes it concerned, and the seconds it took."""

    n_tokens: int
    n_bytes: int
    seconds: float


@dataclass(frozen=True)
class CacheInfo:
    """The memory of conversations: what all slots hold now and at most, the archive of those that gave way, and the
    files that outlive the server. Sizes in bytes; the last six count from the start."""

    held_bytes: int
    bound_bytes: int
    archived_bytes: int = 0
    archive_bound_bytes: int = 0
    n_archived: int = 0
    n_files: int = 0
    files_bytes: int = 0
    evicted: int = 0
    restored: int = 0
    tokens_restored: int = 0
    files_written: int = 0
    files_read: int = 0
    files_failed: int = 0


@dataclass(frozen=True)
class MachineUse:
    """What this process takes of its machine; sizes in bytes, `None` where the system does not say."""

    cpu_s: float  # processor seconds of all threads since the process started
    n_cpus: int
    process_bytes: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None


@dataclass(frozen=True)
class Snapshot:
    """One moment of the engine, as plain frozen values."""

    taken_s: float
    started_s: float
    state: str  # "LOADING", "IDLE", "PREFILL", "DECODE", "FAILED", "STOPPING"
    address: str
    load: LoadProgress
    model: ModelInfo | None
    card: CardInfo | None
    requests_received: int
    requests_admitted: int
    requests_completed: int
    requests_failed: int
    requests_cancelled: int
    requests_rejected: int
    queue_depth: int
    prompt_tokens: int  # tokens of prompts, reused or computed
    prompt_tokens_computed: int
    prompt_tokens_reused: int
    generated_tokens: int
    decode_tokens: int  # those of decode passes: a prompt pass makes a first token in no time of its own
    draft_tokens: int
    draft_tokens_accepted: int
    prompt_s: float  # engine time in prompt rows
    decode_s: float  # engine time in decode rows
    passes: int
    slots: tuple[SlotInfo, ...]
    live: tuple[RequestInfo, ...]
    recent: tuple[RequestInfo, ...]  # newest first
    requests_set_aside: int = 0
    failure: str | None = None  # why the engine stopped
    bytes_read: int | None = None  # weights and cache read by all passes
    cache: CacheInfo | None = None
    machine: MachineUse | None = None
    card_uses: tuple[CardUse, ...] = ()  # of the graphics cards in use, as far as they can be asked


@dataclass
class Counters:
    """The mutable counters. Writers: *engine* thread, *loader* thread, *listener* loop, as each comment says."""

    started_s: float = field(default_factory=time.monotonic)
    state: str = "LOADING"  # loader, then engine
    address: str = ""  # listener
    load: LoadProgress = field(default_factory=LoadProgress)  # loader
    model: ModelInfo | None = None  # loader
    card: CardInfo | None = None  # loader
    requests_received: int = 0  # listener
    requests_rejected: int = 0  # listener: refused before admission
    queue_depth: int = 0  # listener: waiting for the model or for a slot
    requests_admitted: int = 0  # engine
    requests_set_aside: int = 0  # engine: how often one had to give way, to go on later
    requests_completed: int = 0  # engine
    requests_failed: int = 0  # engine
    requests_cancelled: int = 0  # engine
    prompt_tokens: int = 0  # engine
    prompt_tokens_computed: int = 0  # engine
    prompt_tokens_reused: int = 0  # engine
    generated_tokens: int = 0  # engine
    decode_tokens: int = 0  # engine
    draft_tokens: int = 0  # engine
    draft_tokens_accepted: int = 0  # engine
    prompt_s: float = 0.0  # engine
    decode_s: float = 0.0  # engine
    passes: int = 0  # engine
    slots: tuple[SlotInfo, ...] = ()  # engine: replaced whole
    live: tuple[RequestInfo, ...] = ()  # engine: replaced whole
    recent: deque[RequestInfo] = field(default_factory=lambda: deque(maxlen=64))  # engine: appendleft
    failure: str | None = None  # engine: one sentence, when it stopped by an error
    bytes_read: int | None = None  # engine: stays None where the backend cannot tell
    cache: CacheInfo | None = None  # engine: replaced whole
    askers: OrderedDict[str, str] = field(default_factory=OrderedDict)  # listener: of the last requests
    watch: CardWatch = field(default_factory=CardWatch)  # whoever takes a snapshot

    def note_asker(self, request_id: str, name: str) -> None:
        """Remember whose key a request carried."""
        self.askers[request_id] = name
        if len(self.askers) > MAX_ASKERS:
            self.askers.popitem(last=False)

    def snapshot(self) -> Snapshot:
        """Copy the present values; safe from any thread."""
        return Snapshot(
            taken_s=time.monotonic(),
            started_s=self.started_s,
            state=self.state,
            address=self.address,
            load=self.load,
            model=self.model,
            card=self.card,
            requests_received=self.requests_received,
            requests_admitted=self.requests_admitted,
            requests_set_aside=self.requests_set_aside,
            requests_completed=self.requests_completed,
            requests_failed=self.requests_failed,
            requests_cancelled=self.requests_cancelled,
            requests_rejected=self.requests_rejected,
            queue_depth=self.queue_depth,
            prompt_tokens=self.prompt_tokens,
            prompt_tokens_computed=self.prompt_tokens_computed,
            prompt_tokens_reused=self.prompt_tokens_reused,
            generated_tokens=self.generated_tokens,
            decode_tokens=self.decode_tokens,
            draft_tokens=self.draft_tokens,
            draft_tokens_accepted=self.draft_tokens_accepted,
            prompt_s=self.prompt_s,
            decode_s=self.decode_s,
            passes=self.passes,
            slots=self.slots,
            live=self._named(self.live),
            recent=self._named(tuple(self.recent)),
            failure=self.failure,
            bytes_read=self.bytes_read,
            cache=self.cache,
            machine=read_machine(),
            card_uses=self.watch.read(self.card.bus_ids) if self.card is not None else (),
        )

    def _named(self, requests: tuple[RequestInfo, ...]) -> tuple[RequestInfo, ...]:
        """The requests with the names of those who asked."""
        if not self.askers:
            return requests
        return tuple(replace(request, asker=self.askers.get(request.request_id, "")) for request in requests)


def read_machine() -> MachineUse:
    """What the process uses now; about 0.1 ms on Linux, elsewhere only what the standard library knows."""
    process_bytes: int | None = None
    with contextlib.suppress(OSError, ValueError, IndexError):
        process_bytes = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    memory = machine.read_memory()
    return MachineUse(time.process_time(), _n_cpus(), process_bytes, memory.available, memory.total)


@cache
def _n_cpus() -> int:
    """Processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
