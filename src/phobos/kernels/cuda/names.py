"""The kernels of cards by name; see `kernels/names.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phobos.kernels.names import Named as Named
from phobos.kernels.names import made as made
from phobos.kernels.names import name_modules

if TYPE_CHECKING:
    from phobos.kernels.cuda.code import activations as activations
    from phobos.kernels.cuda.code import attention as attention
    from phobos.kernels.cuda.code import delta as delta
    from phobos.kernels.cuda.code import embed as embed
    from phobos.kernels.cuda.code import matmul as matmul
    from phobos.kernels.cuda.code import matmul_joined as matmul_joined
    from phobos.kernels.cuda.code import matmul_stages as matmul_stages
    from phobos.kernels.cuda.code import matmul_tile as matmul_tile
    from phobos.kernels.cuda.code import moe as moe
    from phobos.kernels.cuda.code import norm as norm
    from phobos.kernels.cuda.code import pointwise as pointwise
    from phobos.kernels.cuda.code import probe as probe
    from phobos.kernels.cuda.code import rope as rope
    from phobos.kernels.cuda.code import sampling as sampling
    from phobos.kernels.cuda.code import scan as scan
    from phobos.kernels.cuda.code import short_conv as short_conv
    from phobos.kernels.cuda.code import streams as streams
else:
    __getattr__ = name_modules
