"""llama.cpp as the peer of a bench: its low-level calls through llama-cpp-python, where that is installed."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from phobos.bench.runs import Run
from phobos.errors import UsageError
from phobos.gguf.quants import GGMLType
from phobos.settings import EngineSettings

N_UBATCH = 512


@contextlib.contextmanager
def open_peer(name: str | None, settings: EngineSettings, n_threads: int) -> Iterator[Callable[[Run], float] | None]:
    """A function that times a run on the peer, or None where none is asked for; model, context and cache are ours."""
    if name is None:
        yield None
        return
    try:
        peer = importlib.import_module("llama_cpp.llama_cpp")
    except ImportError as error:
        raise UsageError("--against llama.cpp needs llama-cpp-python: install it beside Phobos first") from error
    log = peer.llama_log_callback(lambda *_: None)
    peer.llama_log_set(log, None)
    peer.llama_backend_init()
    model = peer.llama_model_load_from_file(str(settings.model_path).encode(), peer.llama_model_default_params())
    if not model:
        raise UsageError(f"llama.cpp cannot load {settings.model_path.name}: leave out --against")
    params = peer.llama_context_default_params()
    assert settings.n_ctx is not None
    params.n_ctx, params.n_batch, params.n_ubatch = settings.n_ctx + N_UBATCH, N_UBATCH, N_UBATCH
    params.type_k, params.type_v = (GGMLType[name.upper()] for name in (settings.cache_type_k, settings.cache_type_v))
    params.n_threads = params.n_threads_batch = n_threads
    params.flash_attn_type = 1
    context = peer.llama_init_from_model(model, params)
    n_vocab = peer.llama_vocab_n_tokens(peer.llama_model_get_vocab(model))
    try:
        yield _Peer(peer, context, n_vocab).time
    finally:
        peer.llama_free(context)
        peer.llama_model_free(model)


class _Peer:
    """A context of llama.cpp, measured as `measure.Subject` is."""

    def __init__(self, library: Any, context: Any, n_vocab: int) -> None:
        self._library = library
        self._context = context
        self._n_vocab = n_vocab
        self._held = 0  # tokens it was filled with

    def time(self, run: Run) -> float:
        """Seconds of the timed part."""
        self._fill(run.depth)
        started = time.perf_counter()
        if run.n_prompt:
            self._decode(run.n_prompt)
        for _ in range(run.n_generate):
            self._decode(1)
        return time.perf_counter() - started

    def _fill(self, depth: int) -> None:
        """Hold `depth` tokens: those an earlier run left, where the model's memory can be cut back to them."""
        memory = self._library.llama_get_memory(self._context)
        held = min(self._held, depth)
        if not self._library.llama_memory_seq_rm(memory, 0, held, -1):
            self._library.llama_memory_clear(memory, True)
            held = 0
        for start in range(held, depth, N_UBATCH):
            self._decode(min(N_UBATCH, depth - start))
        self._held = depth

    def _decode(self, n: int) -> None:
        ids = (ctypes.c_int32 * n)(*(random.randrange(self._n_vocab) for _ in range(n)))
        if self._library.llama_decode(self._context, self._library.llama_batch_get_one(ids, n)) != 0:
            raise UsageError("llama.cpp refused a batch: run without --against")
        self._library.llama_synchronize(self._context)
