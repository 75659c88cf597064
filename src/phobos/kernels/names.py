"""Kernels by name, as the host speaks of them: "module:function", so that a warm start need not import their source.

Each device has a `names.py`. To an editor and to mypy `norm.quantize` there is the kernel itself, so it can be followed
to its source and must exist; to the running program it is the kernel's name. Kernels that their module makes on
request, one for each type or activation, are named by `made`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


class Named(Protocol):
    """A kernel, or its name."""

    @property
    def name(self) -> str:
        """Module and function: "norm:quantize"."""


@dataclass(frozen=True)
class KernelName:
    """A kernel that is not imported."""

    name: str


class KernelModule:
    """Stands for a module of kernels that is not imported: its attributes are names."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, function: str) -> KernelName:
        return KernelName(f"{self.__name__}:{function}")


def name_modules(module: str) -> KernelModule:
    """The `__getattr__` of a device's `names.py` when the program runs."""
    if module.startswith("__"):
        raise AttributeError(module)
    return KernelModule(module)


def made(module: Any, *parts: str | int) -> Named:
    """The kernel of a module that is made for what `parts` name: `made(matmul, "matmul", "q4_k")`."""
    return KernelName(f"{module.__name__.rpartition('.')[2]}:{'_'.join(map(str, parts))}")
