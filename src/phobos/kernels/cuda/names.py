"""The kernels of cards by name; see `kernels/names.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phobos.kernels.names import KernelModule, Named, made

if TYPE_CHECKING:
    from phobos.kernels.cuda.code import (
        activations,
        attention,
        delta,
        embed,
        matmul,
        matmul_joined,
        matmul_stages,
        matmul_tile,
        moe,
        norm,
        pointwise,
        probe,
        rope,
        sampling,
        scan,
        short_conv,
        streams,
    )
else:
    activations = KernelModule("activations")
    attention = KernelModule("attention")
    delta = KernelModule("delta")
    embed = KernelModule("embed")
    matmul = KernelModule("matmul")
    matmul_joined = KernelModule("matmul_joined")
    matmul_stages = KernelModule("matmul_stages")
    matmul_tile = KernelModule("matmul_tile")
    moe = KernelModule("moe")
    norm = KernelModule("norm")
    pointwise = KernelModule("pointwise")
    probe = KernelModule("probe")
    rope = KernelModule("rope")
    sampling = KernelModule("sampling")
    scan = KernelModule("scan")
    short_conv = KernelModule("short_conv")
    streams = KernelModule("streams")

__all__ = [
    "Named",
    "activations",
    "attention",
    "delta",
    "embed",
    "made",
    "matmul",
    "matmul_joined",
    "matmul_stages",
    "matmul_tile",
    "moe",
    "norm",
    "pointwise",
    "probe",
    "rope",
    "sampling",
    "scan",
    "short_conv",
    "streams",
]
