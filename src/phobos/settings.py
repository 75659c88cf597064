"""Settings: frozen, read once from flags, environment and file, then handed down.

Units: tokens unless the name says `_s` (seconds) or `_bytes`. `None` means "decide from the model or the machine".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from phobos.sampling_fields import SamplingValues


@dataclass(frozen=True)
class SamplingDefaults(SamplingValues):
    """The flags that a request's missing sampling fields fall back to; `None` falls through to the model file, then to
    Phobos's own defaults (`sampling_fields`)."""

    max_tokens: int | None = None


@dataclass(frozen=True)
class EngineSettings:
    """How a model is loaded and run."""

    model_path: Path
    backend: str = "cpu"
    device: str = "auto"  # "cpu", "cuda", "cuda:N", "cuda:N,M", or "auto": a card where one can be used
    gpu_layers: int | None = None  # so many of the last layers on cards; else as many as fit
    n_threads: int | None = None
    n_ctx: int | None = None
    n_slots: int | None = None
    chunk_rows: int = 512
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    prefix_cache: bool = True
    lookup: bool = True  # guess ahead from the text so far; changes no token
    draft_path: Path | None = None  # a small model that guesses ahead; changes no token
    cache_bytes: int | None = None  # all slots together
    archive_bytes: int | None = None  # conversations that gave way
    slot_save_path: Path | None = None  # where they outlive the server
    chat_template: str | None = None
    bare_calls: bool = True  # an answer that is nothing but JSON calls of offered tools is these calls
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults)


@dataclass(frozen=True)
class ServeSettings:
    """How the listener behaves; see the HTTP contract in `docs/http.md`."""

    listen: str = "127.0.0.1:8080"
    model_id: str | None = None
    api_keys: tuple[str, ...] = ()
    insecure: bool = False
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_body_bytes: int = 4 << 20
    max_connections: int = 512
    max_connections_per_address: int | None = None  # of this machine as many as there are
    max_queue: int = 512
    queue_timeout_s: float = 300.0
    request_timeout_s: float = 30.0
    keep_alive_s: float = 75.0
    write_timeout_s: float = 60.0  # a client that reads nothing of its answer for so long is let go
    heartbeat_s: float = 5.0
    drain_s: float = 5.0
    strict_model: bool = False
    strict_fields: bool = False
    think: bool = False  # chats reason unless they say otherwise
    prefill_thinking: str | None = None
    continue_assistant: bool = True
    metrics_llamacpp: bool = False  # /metrics also tells what it tells under llama-server's names
