"""The kernels of the CPU team by name; see `kernels/names.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phobos.kernels.names import KernelModule, Named, made

if TYPE_CHECKING:
    from phobos.kernels.cpu.code import (
        activations,
        attention,
        delta,
        embed,
        gated,
        matmul,
        moe,
        norm,
        pointwise,
        probe,
        rope,
        run,
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
    gated = KernelModule("gated")
    matmul = KernelModule("matmul")
    moe = KernelModule("moe")
    norm = KernelModule("norm")
    pointwise = KernelModule("pointwise")
    probe = KernelModule("probe")
    rope = KernelModule("rope")
    run = KernelModule("run")
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
    "gated",
    "made",
    "matmul",
    "moe",
    "norm",
    "pointwise",
    "probe",
    "rope",
    "run",
    "sampling",
    "scan",
    "short_conv",
    "streams",
]
