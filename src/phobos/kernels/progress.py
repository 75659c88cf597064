"""How far a load is, told the same way by every backend that compiles: kernels first, then weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from phobos.counters import LoadProgress
from phobos.kernels.backend import Progress

COMPILING_SHARE = 0.4  # of the load's progress


class ReadyKernel(Protocol):
    """What a compiler says of a kernel that can run: "module:function", the seconds it took, or that it was there."""

    @property
    def name(self) -> str: ...

    @property
    def seconds(self) -> float: ...

    @property
    def cached(self) -> bool: ...


class LoadReport:
    """Counts what is done and passes it on to `progress`."""

    def __init__(self, progress: Progress, n_kernels: int) -> None:
        self._progress = progress
        self._state = LoadProgress(kernels_total=n_kernels)
        self._tell(replace(self._state, stage="compiling kernels"))  # the first may take many seconds

    def kernel(self, kernel: ReadyKernel) -> None:
        """One more kernel is ready."""
        before, name = self._state, kernel.name.partition(":")[2]
        n_compiled, n_cached = before.kernels_compiled + (not kernel.cached), before.kernels_cached + kernel.cached
        self._tell(
            replace(
                before,
                stage="compiling kernels",
                fraction=COMPILING_SHARE * (n_compiled + n_cached) / before.kernels_total,
                detail=name,
                kernels_compiled=n_compiled,
                kernels_cached=n_cached,
                slowest_kernel=name if kernel.seconds > before.slowest_kernel_s else before.slowest_kernel,
                slowest_kernel_s=max(kernel.seconds, before.slowest_kernel_s),
            )
        )

    def weights(self, name: str, fraction: float) -> None:
        """So much of the weights is in place; `name` is at hand."""
        share = COMPILING_SHARE + (1 - COMPILING_SHARE) * fraction
        self._tell(replace(self._state, stage="packing weights", fraction=share, detail=name))

    def ready(self) -> None:
        """The backend can run."""
        self._tell(replace(self._state, stage="ready", fraction=1.0, detail=""))

    def _tell(self, state: LoadProgress) -> None:
        self._state = state
        self._progress(state)
