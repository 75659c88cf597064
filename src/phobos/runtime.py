"""From settings to a running engine: what every front end that owns an engine does, and how it is watched.

`start_engine` is called by one thread, the loader, which writes the counters of loading. `LoadLine` shows progress
as one rewritten line on a terminal; `LoadLog` writes it as log lines.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
import time
from collections.abc import Callable
from typing import TextIO

from phobos.counters import Counters, LoadProgress
from phobos.engine.engine import Engine
from phobos.engine.model import Model, load_model
from phobos.engine.slots.store import Folder, Store
from phobos.errors import PhobosError
from phobos.kernels.backend import cache_bound
from phobos.printable import printable
from phobos.settings import EngineSettings
from phobos.sizes import format_bytes, format_seconds

Report = Callable[[LoadProgress], None]
KEPT_SHARE = 2  # of what cache and archive hold, for files
logger = logging.getLogger("phobos.load")


def start_engine(settings: EngineSettings, counters: Counters, report: Report) -> Engine:
    """Load the model and start its engine, keeping `counters` true; what fails is noted there and raised."""

    def note(progress: LoadProgress) -> None:
        if not progress.kernels_total:  # stages without kernels leave what was counted standing
            names = ("kernels_total", "kernels_compiled", "kernels_cached", "slowest_kernel", "slowest_kernel_s")
            progress = dataclasses.replace(progress, **{name: getattr(counters.load, name) for name in names})
        counters.load = progress
        report(progress)

    counters.state = "LOADING"
    folder: Folder | None = None
    try:
        if settings.slot_save_path is not None:
            folder = Folder(settings.slot_save_path)
        model = load_model(settings, note)
        counters.model = model.info
        counters.card = model.backend.describe()
        engine = Engine(model, counters, _open_store(model, folder))
        engine.start()
    except BaseException as error:
        if folder is not None:
            folder.close()
        reason = str(error) if isinstance(error, PhobosError) else f"{type(error).__name__}: {error}"
        note(dataclasses.replace(counters.load, stage="failed", error=reason))
        counters.state = "FAILED"
        raise
    return engine


def _open_store(model: Model, folder: Folder | None) -> Store | None:
    """What the folder keeps for this model: more than memory holds, so that earlier conversations are there too."""
    if folder is None or model.identity is None:
        return None
    n_bytes = KEPT_SHARE * (cache_bound(model.backend) + model.archive_bytes)
    return Store(folder, model.identity, n_bytes, can_cut=model.backend.limits.can_cut)


def describe_progress(progress: LoadProgress) -> str:
    """`compiling kernels 43%: matmul_q4_k`."""
    text = f"{progress.stage} {progress.fraction:.0%}"
    return printable(f"{text}: {progress.detail}") if progress.detail else text


class LoadLine:
    """Progress on the last line of a terminal, gone when it is done; silent where there is no terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shown = self._stream.isatty()
        self._next_s = 0.0

    def __call__(self, progress: LoadProgress) -> None:
        now = time.monotonic()
        if self._shown and now >= self._next_s:
            self._next_s = now + 0.1
            self._stream.write(f"\r\x1b[2K{describe_progress(progress)[:79]}")
            self._stream.flush()

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()


class LoadLog:
    """A log line for every stage, and every 5 seconds within one."""

    def __init__(self) -> None:
        self._stage = ""
        self._next_s = 0.0

    def __call__(self, progress: LoadProgress) -> None:
        now = time.monotonic()
        if progress.stage in ("ready", "failed"):
            return
        if progress.stage != self._stage or now >= self._next_s:
            self._stage, self._next_s = progress.stage, now + 5.0
            logger.info("%s", describe_progress(progress))


def log_ready(engine: Engine, counters: Counters, took_s: float) -> None:
    """The line that says what was loaded and how it runs."""
    info, card = engine.model.info, counters.card
    runs_on = f"{card.name}, {card.features}, {card.n_threads} threads" if card is not None else "unknown device"
    logger.info(
        "ready in %s: %s (%s, %s), context %d%s x %d slots, dialect %s, weights %s, cache %s, on %s",
        format_seconds(took_s),
        info.name,
        info.architecture,
        info.quantization,
        info.n_ctx,
        f" of the model's {info.n_ctx_train}" if info.n_ctx < info.n_ctx_train else "",
        engine.model.n_slots,
        info.dialect,
        format_bytes(info.weights_bytes),
        format_bytes(info.cache_bytes),
        runs_on,
    )
