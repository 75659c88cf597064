"""What a kernel is: a Python function whose annotated parameters (`Int`, `Float`) are 8-byte integers (addresses are
integers) and float32. `kernel(n)` says how many threads a block of it has. No Numba here: `ptx.py` makes code of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_type_hints

Int = int
Float = float


@dataclass(frozen=True)
class Kernel:
    """A kernel's source, its parameters in order, numbers or records of `records.py`, the threads of a block, and how
    many blocks a multiprocessor should hold at least, which bounds the registers."""

    function: Callable[..., None]
    declared: tuple[type, ...]
    n_threads: int
    min_blocks: int

    @property
    def parameters(self) -> tuple[type, ...]:
        """The types of a launch's arguments: those of records field by field."""
        return tuple(kind for declared in self.declared for kind in fields_of(declared))

    @property
    def name(self) -> str:
        """Module and function, as `load_code` takes it."""
        return f"{self.function.__module__.rpartition('.')[2]}:{self.function.__name__}"


def fields_of(declared: type) -> tuple[type, ...]:
    """The types of a record's fields; a number is its own only one."""
    if not issubclass(declared, tuple):
        return (declared,)
    return tuple(get_type_hints(declared).values())


def kernel(n_threads: int, min_blocks: int = 1) -> Callable[[Callable[..., None]], Kernel]:
    """Declare a kernel; it is compiled when first loaded."""

    def declare(function: Callable[..., None]) -> Kernel:
        hints = inspect.get_annotations(function, eval_str=True)
        return Kernel(
            function, tuple(hints[name] for name in inspect.signature(function).parameters), n_threads, min_blocks
        )

    return declare
