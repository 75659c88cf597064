"""Opens the backend that settings ask for, for a model file."""

from __future__ import annotations

import errno
import math

from phobos.counters import ModelInfo
from phobos.errors import PhobosError, UsageError
from phobos.gguf.reader import GGUF
from phobos.host.machine import read_memory
from phobos.kernels.backend import Backend, BackendLimits, Progress, cache_bound
from phobos.kernels.model_info import describe_model, warn_of_widened
from phobos.kernels.placing.capacity import plan_limits
from phobos.kernels.placing.devices import open_cards
from phobos.program.steps import Program
from phobos.settings import EngineSettings

BACKENDS = ("cpu", "reference")
CACHE_BLOCK = 32  # dimensions of a q8_0 cache that share a scale


def open_backend(
    program: Program, gguf: GGUF, settings: EngineSettings, progress: Progress
) -> tuple[Backend, ModelInfo]:
    """Load `program` with the weights of `gguf` as `settings` ask, and say what was loaded.

    `UsageError` for settings this model or machine cannot have, `UnsupportedModelError` for a model that the device
    cannot run.
    """
    if settings.backend not in BACKENDS:
        raise UsageError(f"there is no backend {settings.backend!r} here: use --backend {' or '.join(BACKENDS)}")
    _check_cache_types(program, settings)
    if settings.gpu_layers and settings.backend == "reference":
        raise UsageError(f"--backend reference runs on no card: leave out --gpu-layers {settings.gpu_layers}")
    cards = open_cards(settings) if settings.backend != "reference" else ()
    if cards:
        from phobos.kernels.placing.offload import open_on_cards

        on_cards = open_on_cards(cards, program, gguf, settings, progress)
        if on_cards is not None:
            return on_cards, describe_model(gguf, program, on_cards)
    limits = plan_limits(program, settings, _free_for_cache(gguf, program, settings.backend))
    try:
        backend = _open(program, gguf, limits, settings, progress)
    except (MemoryError, OSError) as error:
        raise _explain_failure(error, limits) from error
    needed = backend.slot_bytes(limits.n_ctx)
    if cache_bound(backend) < needed:  # by the pages a context ends in
        backend.close()
        raise UsageError(f"--cache-memory is too little for one context: give it {needed} bytes or more")
    return backend, describe_model(gguf, program, backend)


def _explain_failure(error: MemoryError | OSError, limits: BackendLimits) -> PhobosError:
    """The sentence for what the system refused while loading."""
    if isinstance(error, OSError) and error.errno != errno.ENOMEM:
        what = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
        return PhobosError(f"the model could not be loaded, the system says: {what}")
    return PhobosError(
        f"there is not enough memory for this model with a context of {limits.n_ctx} tokens and {limits.n_slots} "
        "slots: use a smaller --ctx-size or --parallel, or a smaller model"
    )


def _check_cache_types(program: Program, settings: EngineSettings) -> None:
    """`UsageError` for a cache this backend or model cannot have."""
    dims = {"k": {layer.k_dim for layer in program.layers}, "v": {layer.v_dim for layer in program.layers}}
    for flag, kind in (("k", settings.cache_type_k), ("v", settings.cache_type_v)):
        if kind == "f16":
            continue
        if kind != "q8_0":
            raise UsageError(f"--cache-type-{flag} {kind} is not supported: use f16 or q8_0")
        if settings.backend == "reference":
            raise UsageError(f"--backend reference caches floats: leave out --cache-type-{flag} {kind}")
        odd = [dim for dim in sorted(dims[flag]) if dim % CACHE_BLOCK]
        if odd:
            raise UsageError(
                f"--cache-type-{flag} {kind} needs heads of a multiple of {CACHE_BLOCK} dimensions and this model's "
                f"have {odd[0]}: use f16"
            )


def _open(program: Program, gguf: GGUF, limits: BackendLimits, settings: EngineSettings, progress: Progress) -> Backend:
    if settings.backend == "reference":
        from phobos.kernels.reference.backend import ReferenceBackend

        return ReferenceBackend(program, gguf, limits, progress)
    from phobos.kernels.cpu.backend import CpuBackend

    backend = CpuBackend(program, gguf, limits, settings.n_threads, progress)
    warn_of_widened(gguf, backend.widened)
    return backend


def _free_for_cache(gguf: GGUF, program: Program, backend: str) -> int | None:
    """Bytes that weights leave of the free memory; None where the system does not tell what is free."""
    free = read_memory().available
    if free is None:
        return None
    if backend == "reference":
        return free - 4 * sum(math.prod(tensor.shape) for tensor in gguf.tensors.values())
    from phobos.kernels.cpu.needs import weights_bytes

    return free - weights_bytes(gguf, program)
