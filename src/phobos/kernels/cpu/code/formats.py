"""Finds how a packed type is read: each file of `types/` has the formats of its family in a table."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

from phobos.kernels.cpu.code.types.record import FloatFormat, Format
from phobos.kernels.cpu.declaration import Kernel
from phobos.kernels.cpu.packed_types import PACKED

__all__ = ["FloatFormat", "Format", "find_format", "load_family", "make_lookup_of_kernels"]


def load_family(family: str) -> Any:
    """The file of a family of types."""
    return importlib.import_module(f"phobos.kernels.cpu.code.types.{family}")


def find_format(name: str) -> Format | FloatFormat | None:
    """The readers of the packed type of this name; None where there is none."""
    families = (packed.family for packed in PACKED.values() if packed.name == name)
    return next((load_family(family).FORMATS[name] for family in families), None)


def make_lookup_of_kernels(
    head: str, of_packed: Callable[[Format], Kernel], of_floats: Callable[[str, FloatFormat], Kernel]
) -> Callable[[str], Kernel]:
    """A module's `__getattr__`: its kernel `head_TYPE` is made when asked for, since there are as many as types."""

    @cache
    def find(name: str) -> Kernel:
        kind = name.removeprefix(f"{head}_")
        form = find_format(kind) if kind != name else None
        if isinstance(form, Format):
            return of_packed(form)
        if form is not None:
            return of_floats(kind, form)
        raise AttributeError(f"no kernel {name}")

    return find
