"""The kernels of the CPU team by name; see `kernels/names.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phobos.kernels.names import Named as Named
from phobos.kernels.names import made as made
from phobos.kernels.names import name_modules

if TYPE_CHECKING:
    from phobos.kernels.cpu.code import activations as activations
    from phobos.kernels.cpu.code import attention as attention
    from phobos.kernels.cpu.code import delta as delta
    from phobos.kernels.cpu.code import embed as embed
    from phobos.kernels.cpu.code import gated as gated
    from phobos.kernels.cpu.code import matmul as matmul
    from phobos.kernels.cpu.code import moe as moe
    from phobos.kernels.cpu.code import norm as norm
    from phobos.kernels.cpu.code import pointwise as pointwise
    from phobos.kernels.cpu.code import probe as probe
    from phobos.kernels.cpu.code import rope as rope
    from phobos.kernels.cpu.code import run as run
    from phobos.kernels.cpu.code import sampling as sampling
    from phobos.kernels.cpu.code import scan as scan
    from phobos.kernels.cpu.code import short_conv as short_conv
    from phobos.kernels.cpu.code import streams as streams
else:
    __getattr__ = name_modules
