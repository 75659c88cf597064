"""What a kernel is: a Python function whose annotated parameters (`Int`, `Float`) are read from a step record, followed
by `thread` and `n_threads`. No Numba here: `compiling/` makes code of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from phobos.kernels.cpu.layout import FIRST_ARGUMENT, RECORD_WORDS

Int = int
Float = float


@dataclass(frozen=True)
class Kernel:
    """A kernel's source: `parameters` are those read from the record, in order."""

    function: Callable[..., None]
    parameters: tuple[type, ...]

    @property
    def name(self) -> str:
        """Module and function, as `load_kernels` takes it."""
        return f"{self.function.__module__.rpartition('.')[2]}:{self.function.__name__}"


def kernel(function: Callable[..., None]) -> Kernel:
    """Declare a kernel; it is compiled when first loaded."""
    hints = inspect.get_annotations(function, eval_str=True)
    names = list(inspect.signature(function).parameters)
    if names[-2:] != ["thread", "n_threads"] or len(names) - 2 > RECORD_WORDS - FIRST_ARGUMENT:
        raise TypeError(f"{function.__name__} is not a kernel: it must end in (thread, n_threads)")
    return Kernel(function, tuple(hints[name] for name in names[:-2]))
